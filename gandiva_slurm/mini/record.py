"""What is written down about a mini cluster and what stays of it: cluster.json, and logs that are kept."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from gandiva_slurm.mini import layout
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.spec import MiniNode, MiniSpec
from gandiva_slurm.model.errors import GandivaError, UsageError

#: How often a directory is made anew that the end of another cluster took along.
_MOST_TRIES = 100


def write_record(at: Layout, spec: MiniSpec) -> None:
    """Note what `up` was asked."""
    at.record.write_text(json.dumps({"version": 1, "spec": asdict(spec)}))


def recorded(at: Layout) -> MiniSpec | None:
    """What `up` was asked, None where there is no such cluster."""
    try:
        told = json.loads(at.record.read_text())["spec"]
    except (OSError, ValueError):
        return None
    nodes = tuple(MiniNode(**node) for node in told.pop("nodes"))
    # A record written before directories could be shared has none.
    return MiniSpec(nodes=nodes, shares=tuple(told.pop("shares", ())), **told)


def make_directory(at: Layout) -> None:
    """Make the directory of a new cluster; GandivaError: the one of all clusters is taken away each time.

    The end of another cluster removes that one where it is empty, also between the two steps of this.
    """
    for _ in range(_MOST_TRIES):
        with contextlib.suppress(FileNotFoundError):
            at.root.mkdir(parents=True)
            return
    raise GandivaError(f"{layout.BASE} is taken away each time; next: end what does that, and try again")


def remove_directory(at: Layout) -> None:
    """Delete what is left of a cluster on disk, once nothing runs in it; its logs go where they are kept."""
    if at.root.exists():
        spec = recorded(at)
        if spec is not None and spec.keep_logs and (why := copy_logs(at, Path(spec.keep_logs))):
            print(f"gandiva: {why}", file=sys.stderr)
        shutil.rmtree(at.root)
    with contextlib.suppress(OSError):
        layout.BASE.rmdir()


def require_log_folder(path: str) -> str:
    """Make the directory of `--keep-logs`; returns its real path. UsageError: it takes no files."""
    folder = Path(path).resolve()
    if folder.is_relative_to(layout.BASE):
        raise UsageError(f"--keep-logs {path}: clusters take {layout.BASE} with them; next: name another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except OSError as err:
        raise UsageError(f"--keep-logs {path}: {err.strerror}; next: name one with room for files") from None
    return str(folder)


def copy_logs(at: Layout, folder: Path) -> str:
    """Copy every log into `folder`, over earlier ones; returns why one is missing, "" when none is."""
    lost: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        to = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        # The small first: on a disk with little room most are kept then.
        names = [log.name for log in sorted(at.log.glob("*"), key=lambda log: log.stat().st_size)]
    except OSError as err:
        return f"the logs are not kept in {folder}: {err.strerror}; next: name another --keep-logs"
    try:
        for name in names:
            try:
                _copy(at.log / name, name, to)
            except OSError as err:
                lost.append(f"{name} ({err.strerror})")
    finally:
        os.close(to)
    if not lost:
        return ""
    return (f"{len(lost)} of {len(names)} logs are not kept whole in {folder}: {', '.join(lost)}; "
            "next: make room there, before the next down")


def _copy(log: Path, name: str, to: int) -> None:
    """Write a new file: a link that somebody put at its name is replaced, not followed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=to)
    made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=to)
    with log.open("rb") as source, os.fdopen(made, "wb") as target:
        shutil.copyfileobj(source, target)
