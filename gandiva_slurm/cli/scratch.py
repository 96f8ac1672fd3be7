"""A copy of a directory for one run of a script: no other run finds what it saves, and no user loses it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gandiva_slurm.model.errors import GandivaError

#: No more is copied, in bytes: a trial is not the place to copy data sets.
MOST_BYTES = 256 * 2**20
#: Directories that hold one of these are programs': a link does.
_PROGRAMS = ("pyvenv.cfg", "conda-meta")


def copy(source: Path, target: Path, but: Path) -> None:
    """Copy a directory, `but` for one below it; GandivaError where it is too large, or cannot be read."""
    try:
        found = list(_below(source, but))
        total = sum(path.lstat().st_size for path in found)
        if total > MOST_BYTES:
            raise GandivaError(
                "a script's own checkpoint is tried in copies of the directory it is started in, and "
                f"{source} holds {total / 2**20:.0f} MiB, more than {MOST_BYTES // 2**20}; next: start it in "
                "a directory of its own, and name its data by an absolute path"
            )
        target.mkdir()
        for path in found:
            _copy_one(path, source, target / path.relative_to(source))
    except OSError as err:
        raise GandivaError(f"cannot copy {source} for a trial: {err}") from err


def written_since(path: Path, since_ns: int) -> list[str]:
    """Return the files below a directory that were written since then, the last one first."""
    found = [one for one in path.rglob("*") if one.is_file() and not one.is_symlink()]
    times = {one: one.stat().st_mtime_ns for one in found}
    new = [one for one in found if times[one] >= since_ns and "__pycache__" not in one.parts]
    return [str(one.relative_to(path)) for one in sorted(new, key=lambda one: (-times[one], str(one)))]


def _below(path: Path, but: Path) -> Iterator[Path]:
    """Yield all that is to be copied below a directory, a directory before what is in it."""
    for entry in os.scandir(path):
        here = Path(entry.path)
        if here == but or not (entry.is_symlink() or entry.is_dir() or entry.is_file()):
            continue
        yield here
        if entry.is_dir(follow_symlinks=False) and not _is_linked(here):
            yield from _below(here, but)


def _is_linked(path: Path) -> bool:
    return path.name == ".git" or any((path / name).exists() for name in _PROGRAMS)


def _copy_one(path: Path, source: Path, target: Path) -> None:
    if path.is_symlink():
        # One that leads to a file of the directory leads to the copy's.
        text = os.readlink(path)
        is_inside = not os.path.isabs(text) and path.resolve().is_relative_to(source.resolve())
        target.symlink_to(text if is_inside else path.resolve())
    elif not path.is_dir():
        shutil.copy2(path, target)
    elif _is_linked(path):
        target.symlink_to(path.resolve())
    else:
        target.mkdir()
