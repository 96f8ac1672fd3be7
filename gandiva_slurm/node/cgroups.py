"""Control groups, as far as gandivad uses them: what is in one can be frozen whole, and cannot leave it.

A group of version 2 is frozen by `cgroup.freeze` (kernel 5.2 and newer), one of version 1 by `freezer.state`.
A frozen process of version 2 can still be killed, one of version 1 only when it has been thawed.
See the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/freezer-subsystem.rst.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

#: gandivad's own groups are below this, at the root of a hierarchy.
OURS = "gandiva"
#: An empty group of a gandivad that is gone is removed when it is this old; a new one may still be filled.
STALE_S = 60.0

log = logging.getLogger(__name__)


def hierarchy(controller: str = "freezer", mountinfo: str = "/proc/self/mountinfo") -> Path | None:
    """Return where groups are: version 2 where it is mounted, else this controller's of version 1."""
    found: dict[str, Path] = {}
    with open(mountinfo, encoding="utf-8") as lines:
        for line in lines:
            # "36 35 98:0 /root /mount options - type source super-options" (proc_pid_mountinfo(5))
            before, _, after = line.partition(" - ")
            (kind, _, options), path = after.split()[:3], Path(before.split()[4])
            if not (path / "cgroup.procs").exists():
                continue  # none of these, or another mount hides it
            if kind == "cgroup2":
                found.setdefault("2", path)
            elif controller in options.split(","):
                found.setdefault("1", path)
    return found.get("2") or found.get("1")


def make(parent: Path, name: str) -> Path | None:
    """Make the group `name` below this one, or find it; None, and a line in the log, when that fails."""
    group = parent / name
    try:
        group.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        log.warning("%s cannot be made: %s", group, err.strerror)
        return None
    return group if can_freeze(group) else None


def can_freeze(group: Path) -> bool:
    """True when this group can be frozen: it is no root of a hierarchy, and the kernel knows how."""
    return (group / "cgroup.freeze").exists() or (group / "freezer.state").exists()


def enter(group: Path, pid: int) -> bool:
    """Move a process into a group; False when it is gone, or the group is. Its children are born there."""
    if pid <= 1:
        raise ValueError(f"process {pid} is no job's")
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as err:
        log.debug("process %d did not enter %s: %s", pid, group, err.strerror)
        return False
    return True


def freeze(group: Path, is_frozen: bool) -> bool:
    """Begin to freeze a group, or thaw it; False when it is gone. It arrives within milliseconds."""
    file, words = group / "cgroup.freeze", ("0", "1")
    if not file.exists():
        file, words = group / "freezer.state", ("THAWED", "FROZEN")
    try:
        file.write_text(words[is_frozen])
    except OSError as err:
        log.debug("%s: %s", file, err.strerror)
        return False
    return True


def is_frozen(group: Path) -> bool:
    """True when all that is in a group stands still."""
    with contextlib.suppress(OSError):
        return "frozen 1" in (group / "cgroup.events").read_text().splitlines()
    with contextlib.suppress(OSError):
        return (group / "freezer.state").read_text().strip() == "FROZEN"
    return False


def is_asked(group: Path) -> bool:
    """True when a group was told to freeze, and has not been told to thaw since."""
    with contextlib.suppress(OSError):
        return (group / "cgroup.freeze").read_text().strip() == "1"
    with contextlib.suppress(OSError):
        return (group / "freezer.state").read_text().strip() != "THAWED"
    return False


def pids(groups: Iterable[Path]) -> Iterator[int]:
    """Yield the processes in these groups and in those below them."""
    for group in groups:
        for directory, _, files in os.walk(group):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError, ValueError):
                    yield from [int(line) for line in Path(directory, "cgroup.procs").read_text().split()]


def remove(group: Path) -> bool:
    """Remove a group and those below it; False while something is in there."""
    below = [Path(directory) for directory, _, _ in os.walk(group, topdown=False)]
    with contextlib.suppress(OSError):
        for each in below:
            each.rmdir()
    return not group.exists()


def sweep(parent: Path, age_s: float = STALE_S) -> None:
    """Remove what gandivads have left that did not come back: empty groups of this age."""
    old_s = time.time() - age_s
    for pattern in ("*/*", "*"):
        for group in found(parent, pattern):
            with contextlib.suppress(OSError):
                if group.is_dir() and group.stat().st_mtime < old_s:
                    group.rmdir()


def found(parent: Path, pattern: str) -> list[Path]:
    """Return the groups that a pattern finds; none where Slurm or a gandivad removes some meanwhile."""
    with contextlib.suppress(OSError):
        return list(parent.glob(pattern))
    return []
