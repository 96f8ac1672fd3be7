"""CRIU's command lines: as the job's user, with two capabilities and no more, never as root (ADR 0054).

As root criu opens files by their paths as root: an output file replaced by a symlink would be written there.
CHECKPOINT_RESTORE lets it see mapped files and choose pids, SETPCAP bring a bounding set back; what it
restores has neither. Its supplementary groups are those it was started with, so it needs no SETGID.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from gandiva_slurm.node import procs
from gandiva_slurm.node.procs import ProcId

#: What criu has of root's rights, as setpriv names it.
RIGHTS = "+checkpoint_restore,+setpcap"
#: Bytes of deleted files that are open or mapped (loaders' shared memory), which criu carries.
GHOST_BYTES = 1 << 30
#: criu has these seconds, and more for what it writes or reads: one that hangs is killed.
LEAST_S = 120
#: The slowest store that is waited for, in bytes a second: a quarter of a link of one gigabit, for several
#: nodes use it at once where one is drained.
SLOWEST = 32 << 20
#: Programs that a node needs for images.
PROGRAMS = ("criu", "setpriv", "prlimit", "nsenter", "unshare", "mount", "umount", "setsid", "timeout")


#: 3.17, bookworm's, fails on newer kernels; this one is what was run.
LEAST = (4, 1)
_ASK_S = 10.0


def unfit(path: str | None = None) -> str:
    """Say which program this node lacks, or that its criu is too old; "" when images can be made.

    `path`: the directories in which they are looked for, as in PATH, which it is by default.
    """
    lack = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if lack:
        return f"this node has no program {lack[0]}"
    found = version(path)
    if found < LEAST:
        told = ".".join(map(str, found)) or "of an unknown version"
        return f"criu is {told} here, and {'.'.join(map(str, LEAST))} or newer is needed"
    return ""


def version(path: str | None = None) -> tuple[int, ...]:
    """Return criu's version, () when it does not tell."""
    match = re.search(r"^Version: (\d+(?:\.\d+)*)", _ask(path, "--version")[1], re.MULTILINE)
    return tuple(map(int, match[1].split("."))) if match else ()


def fails_its_check(path: str | None = None) -> str:
    """Say what criu's own check of this kernel finds, "" when it passes; root alone may ask for it.

    It asks for more than images need: in a container it misses a sysctl that is read-only there (seen).
    """
    code, told = _ask(path, "check", "--unprivileged", "--no-default-config")
    errors = [line.partition("): ")[2] or line for line in told.splitlines() if "Error (" in line]
    return "" if code == 0 else printable(errors[0] if errors else f"it ended with exit code {code}")


def _ask(path: str | None, *words: str) -> tuple[int, str]:
    """Return the exit code and all output of criu, within a bound; (-1, why) where there is none."""
    argv = [shutil.which("criu", path=path) or "criu", *words]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return -1, str(err)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def as_user(user: str, gid: int) -> list[str]:
    """Return the words before a command that runs as a user, with criu's rights."""
    who = ["--reuid", user, "--regid", str(gid), "--init-groups"]
    return ["setpriv", *who, f"--inh-caps=-all,{RIGHTS}", f"--ambient-caps=-all,{RIGHTS}", "--"]


def bound_s(size: int) -> int:
    """Return how long criu may take for an image of `size` bytes, in seconds."""
    return LEAST_S + size // SLOWEST


def bounded(seconds: int) -> list[str]:
    """Return the words before a command that is killed when its time is over."""
    return ["timeout", "--kill-after=2", "--signal=TERM", str(seconds)]


def no_more(pid: int) -> list[str]:
    """Return the command behind which a process, and what it starts, can write to no file any more.

    criu that ignores SIGXFSZ then undoes its dump, and fails. A signal would end it with its own code in the
    processes that it has stopped: where that was the trap behind a system call, they die of it (ADR 0054).
    """
    return ["prlimit", "--pid", str(pid), "--fsize=0:0"]


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


def left_by(maker: ProcId) -> list[ProcId]:
    """Return criu, and what is above it, of a program that makes an image, and may have been killed."""
    words = {"criu", "dump"}
    of = procs.of_session(maker)
    return [proc for proc in of if words <= {*procs.read_text(proc.pid, "cmdline").split("\0")}]


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
    return printable(told)


def printable(told: str) -> str:
    """Return what criu said, fit to be shown."""
    return "".join(char if char.isprintable() else " " for char in told)[:200]
