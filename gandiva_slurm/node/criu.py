"""CRIU's command lines: as the job's user, with two capabilities and no more, never as root (ADR 0054).

As root criu opens files by their paths as root: an output file replaced by a symlink would be written there.
CHECKPOINT_RESTORE lets it see mapped files and choose pids, SETPCAP bring a bounding set back; what it
restores has neither. Its supplementary groups are those it was started with, so it needs no SETGID.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: What criu has of root's rights, as setpriv names it.
RIGHTS = "+checkpoint_restore,+setpcap"
#: Bytes of deleted files that are open or mapped (loaders' shared memory), which criu carries.
GHOST_BYTES = 1 << 30
#: criu's answer is bounded: one that hangs is killed.
DUMP_S, RESTORE_S = 120, 120
#: Programs that a node needs for images.
PROGRAMS = ("criu", "setpriv", "nsenter", "unshare", "mount", "umount", "setsid", "timeout")


def missing() -> str:
    """Say which program is missing on this node, "" when none is."""
    return next((f"this node has no program {name}" for name in PROGRAMS if not shutil.which(name)), "")


def as_user(user: str, gid: int) -> list[str]:
    """Return the words before a command that runs as a user, with criu's rights."""
    who = ["--reuid", user, "--regid", str(gid), "--init-groups"]
    return ["setpriv", *who, f"--inh-caps=-all,{RIGHTS}", f"--ambient-caps=-all,{RIGHTS}", "--"]


def bounded(seconds: int) -> list[str]:
    """Return the words before a command that is killed when its time is over."""
    return ["timeout", "--kill-after=2", "--signal=TERM", str(seconds)]


def within(first: int, clock_of: int = 0) -> list[str]:
    """Return the words before a command that runs where process `first` of this host is process 1.

    `clock_of`: in the time namespace of this process of this host, where it is told.
    """
    clock = [f"--time=/proc/{clock_of}/ns/time"] if clock_of else []
    return ["nsenter", "-t", str(first), "-m", "-p", *clock, "--"]


def shifted(ahead_s: int) -> list[str]:
    """Return the words before a command whose even clocks are this many seconds ahead of the host's.

    It has a session of its own, for one that began outside its pid namespace has no number there, and what is
    restored into it could not be dumped again.
    """
    return ["unshare", "-T", "--monotonic", str(ahead_s), "--boottime", str(ahead_s), "--", "setsid"]


#: A user's own configuration of criu is not read, whatever HOME says.
_BOTH = ["--no-default-config", "--unprivileged", "--shell-job", "--manage-cgroups=ignore", "-v2"]


def dump(pid: int, images: Path, goes_on: bool = False) -> list[str]:
    """Return the command that makes an image of a tree; it leaves the tree stopped, or lets it go on."""
    where = ["-t", str(pid), "-D", str(images), "-W", str(images), "-o", "dump.log"]
    then = "--leave-running" if goes_on else "--leave-stopped"
    return ["criu", "dump", *_BOTH, *where, then, "--link-remap", f"--ghost-limit={GHOST_BYTES}"]


def restore(images: Path, work: Path) -> list[str]:
    """Return the command that restores an image, detached, and goes."""
    where = ["-D", str(images), "-W", str(work), "-o", "restore.log"]
    return ["criu", "restore", *_BOTH, *where, "-d"]


def why(log: Path) -> str:
    """Return the first error in criu's log, made printable; its last is no more than that it failed.

    It lies in a directory of the job's user, so that a link there may lead to what that user may not read.
    """
    try:
        with open(os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            is_link = os.fstat(file.fileno()).st_nlink != 1
            text = "" if is_link else file.read(1 << 22).decode(errors="replace")
    except OSError:
        return "criu wrote no log"
    errors = [line.partition("): ")[2] or line for line in text.splitlines() if "Error (" in line]
    told = errors[0] if errors else "criu names no cause"
    return "".join(char if char.isprintable() else " " for char in told)[:200]
