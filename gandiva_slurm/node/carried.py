"""Files that only a job's node has, and that go along with the image of its processes.

What a process has open or mapped below /tmp or /dev/shm would not be there on another node: criu opens files
by their paths. Those that are small, and the job's own, are copied into its image, and put where they were
before it is restored: as its user, never over what another has written there. What it only reads stays
here, too; what it writes is removed here when the job lives on elsewhere, lest two nodes have two of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gandiva_slurm.node import criu, procs

#: Directories that each node has its own of.
OWN = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/", "/var/lock/")
#: What can be carried is below these: what lies elsewhere is a service's, which has its own there.
_CARRIED = ("/tmp/", "/var/tmp/", "/dev/shm/")
DELETED = " (deleted)"
#: The most files of a job, and their bytes in all.
MOST_FILES, MOST_BYTES = 64, 64 << 20
#: To put one where it was, or to remove it, may take so long.
_PUT_S = 30.0
#: Standard input is what the file $1 has in the image, $2 its mode, $3 when it was changed. One that is there
#: and empty is what a new slurmstepd has made for the job's output.
_PUT = """\
umask 077
[ -d "${1%/*}" ] || mkdir -p -- "${1%/*}" || exit 1
if [ -h "$1" ] || { [ -e "$1" ] && ! [ -f "$1" ]; }; then echo 'something else is there' >&2; exit 1; fi
if [ -s "$1" ]; then cmp -s -- - "$1" && exit 0; echo 'another file is there' >&2; exit 1; fi
made=; [ -e "$1" ] || made=1
if cat >>"$1" && chmod "$2" -- "$1" && touch -d "@$3" -- "$1"; then exit 0; fi
[ -z "$made" ] || rm -f -- "$1"
exit 1
"""


class NotCarried(Exception):
    """A file of the node's alone cannot go along; the text says which, and why."""


class Carried(NamedTuple):
    """One file; `device` and `inode` as this node has it."""

    path: str
    mode: int
    mtime_s: int
    is_written: bool
    device: int
    inode: int


class _Use(NamedTuple):
    path: str
    is_written: bool


def is_own(path: str) -> bool:
    """True for what only this node has, and has a name of still: criu takes deleted files along."""
    return path.startswith(OWN) and not path.endswith(DELETED)


def find(pids: Collection[int], uid: int, besides: tuple[str, ...] = ()) -> list[Carried]:
    """Return what of this node's alone these processes use; NotCarried where it cannot go along.

    `besides`: how the paths begin that are no matter of theirs.
    """
    uses: dict[str, bool] = {}
    for pid in pids:
        for use in _uses(pid):
            if not use.path.startswith(besides):
                uses[use.path] = uses.get(use.path, False) or use.is_written
    if len(uses) > MOST_FILES:
        raise NotCarried(f"it uses {len(uses)} files that only this node has")
    seen_by, left, found = next(iter(pids), 0), MOST_BYTES, []
    for path, is_written in sorted(uses.items()):
        status = _status(seen_by, path, uid)
        left -= status.st_size
        if left < 0:
            raise NotCarried(f"{_told(path)}: it has more than {MOST_BYTES >> 20} MiB there")
        facts = (int(status.st_mtime), is_written, status.st_dev, status.st_ino)
        found.append(Carried(path, stat.S_IMODE(status.st_mode), *facts))
    written = {(file.device, file.inode): file.path for file in found if file.is_written}
    if written and (shared := _used_by_others(written, pids)):
        raise NotCarried(f"{_told(shared)}, and so does another program")
    return found


def why_not_kept(files: Iterable[Carried]) -> str:
    """Say why no image is kept of a job that goes on meanwhile: what it writes would be copied later."""
    written = next((file.path for file in files if file.is_written), "")
    return f"{_told(written)}, and writes to it" if written else ""


def names(files: Sequence[Carried]) -> dict[str, Carried]:
    """Return what each file is called in an image."""
    return {f"carried-{number}": file for number, file in enumerate(files)}


def sources(pid: int, told: Iterable[Sequence[Any]]) -> dict[str, Path]:
    """Return where each file of an image (`facts`) is now, as a process sees it."""
    return {str(name): Path(f"/proc/{pid}/root{path}") for name, path, *_ in told}


def facts(files: Sequence[Carried]) -> list[list[Any]]:
    """Return what an image's manifest says of them: name there, path, mode, time of change."""
    return [[name, file.path, file.mode, file.mtime_s] for name, file in names(files).items()]


def put(first: int, user: str, gid: int, place: Path, told: Iterable[Sequence[Any]]) -> str:
    """Put the files of an image where process `first` sees them, as the user; return why not, "" for done."""
    for name, path, mode, mtime_s in told:
        words = [*criu.within(first), *_as_user(user, gid), "sh", "-c", _PUT, "sh"]
        with open(os.open(place / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as source:
            done = subprocess.run(
                [*words, path, f"{mode:o}", str(mtime_s)], stdin=source, capture_output=True, cwd="/",
                timeout=_PUT_S, check=False,
            )  # fmt: skip
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().rpartition(": ")[2]
            return f"{path[:60]} cannot be put here: {criu.printable(said)}"
    return ""


def remove(user: str, gid: int, files: Iterable[Carried]) -> None:
    """Remove, as the user, what a job has written here that lives on elsewhere, where it is still that."""
    for file in files:
        try:
            status = os.stat(file.path, follow_symlinks=False)
        except OSError:
            continue  # gone, or in a /tmp of the job's own, which went with it
        if file.is_written and (status.st_dev, status.st_ino) == (file.device, file.inode):
            words = [*_as_user(user, gid), "rm", "-f", "--", file.path]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PUT_S, check=False)


def _as_user(user: str, gid: int) -> list[str]:
    return ["setpriv", "--reuid", user, "--regid", str(gid), "--init-groups", "--"]


def _told(path: str) -> str:
    return f"it uses {path[:60]}, which only this node has"


def _uses(pid: int) -> Iterator[_Use]:
    for number, path in procs.descriptors(pid):
        if is_own(path):
            flags = procs.read_text(pid, f"fdinfo/{number}").partition("flags:")[2].split()
            yield _Use(path, bool(int(flags[0], 8) & os.O_ACCMODE) if flags else True)
    for path, rights in procs.mappings(pid):
        if is_own(path):
            yield _Use(path, "w" in rights and "s" in rights)


def _status(pid: int, path: str, uid: int) -> os.stat_result:
    """Return what a file is that only this node has; NotCarried for what is no file of the user's own."""
    try:
        status = os.stat(f"/proc/{pid}/root{path}", follow_symlinks=False)
    except OSError:
        raise NotCarried(_told(path)) from None
    is_its = stat.S_ISREG(status.st_mode) and status.st_uid == uid and status.st_nlink == 1
    if not is_its or not path.startswith(_CARRIED):
        raise NotCarried(_told(path))
    return status


def _used_by_others(files: dict[tuple[int, int], str], pids: Collection[int]) -> str:
    """Return which of these files a process has that is none of these, and not root's; "" for none.

    slurmstepd may have what it opened for the job's output.
    """
    wanted = set(files.values())
    for proc in procs.table().values():
        if proc.pid in pids or (procs.uids(proc.pid) or (0, 0))[0] == 0:
            continue
        for path in {use.path for use in _uses(proc.pid)} & wanted:
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{proc.pid}/root{path}", follow_symlinks=False)
                if (status.st_dev, status.st_ino) in files:
                    return path
    return ""
