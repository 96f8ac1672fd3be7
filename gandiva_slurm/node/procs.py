"""Processes as /proc shows them, and signals that never hit a reused process id."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class ProcId(NamedTuple):
    """A process for good: its id and when it started (clock ticks since boot; never the same twice)."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Proc:
    """One line of the process table. `state` is ps's letter: T stopped, t traced, Z zombie, X dead."""

    pid: int
    start: int
    parent: int
    state: str

    @property
    def id(self) -> ProcId:
        """What survives a reuse of the pid."""
        return ProcId(self.pid, self.start)

    @property
    def is_stopped(self) -> bool:
        """True when it does not run by itself: stopped, traced or dead."""
        return self.state in "TtZXx"


#: Errors that say nothing of a process: who takes it for gone would kill its job, or leave it stopped.
_NOT_ITS_END = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Letters of processes that have ended.
ENDED = "ZXx"


def read_proc(pid: int) -> Proc | None:
    """Return the process with this id, None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            data = stream.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything, parentheses and blanks included.
    fields = data[data.rindex(b")") + 2 :].split()
    return Proc(pid, int(fields[19]), int(fields[1]), chr(fields[0][0]))


def table() -> dict[int, Proc]:
    """Return all processes there are."""
    found = (read_proc(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc is not None}


def is_alive(proc: ProcId) -> bool:
    """True while this very process lives (a zombie does not)."""
    now = read_proc(proc.pid)
    return now is not None and now.start == proc.start and now.state not in ENDED


def descendants(procs: Mapping[int, Proc], roots: Iterable[int]) -> list[Proc]:
    """Return all processes below these, the roots left out."""
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc.parent, []).append(proc.pid)
    found: dict[int, Proc] = {}
    todo = [child for root in roots for child in children.get(root, ())]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found[pid] = procs[pid]
            todo.extend(children.get(pid, ()))
    return list(found.values())


def each(pids: Iterable[int]) -> Iterator[Proc]:
    """Yield those of these processes that are there."""
    yield from filter(None, map(read_proc, pids))


def below(roots: Iterable[int]) -> Iterator[Proc]:
    """Yield all processes below these, as `descendants` does, without a look at any other."""
    seen, todo = set(roots), list(roots)
    while todo:
        for proc in each(children(todo.pop())):
            if proc.pid not in seen:
                seen.add(proc.pid)
                todo.append(proc.pid)
                yield proc


def children(pid: int) -> list[int]:
    """Return the children of a process, of all its threads (proc_pid_task(5): `children`)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, read_text(pid, f"task/{thread}/children").split())
    return found


#: Signals that a program may catch to save itself or to end, and that Slurm or its user may send it.
_CATCHABLE = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU")
_ENDING = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGKILL - 1)
_WAKING = sum(1 << (signal.Signals[name] - 1) for name in _CATCHABLE)


def has_caught(pid: int) -> bool:
    """True when a signal waits for a process that has a handler for it and does not block it.

    One that stands still in a frozen group is ended by the others.
    """
    pending, blocked, caught = _signals(pid)
    return bool(pending & ~blocked & caught & _WAKING)


def is_told_to_end(pid: int) -> bool:
    """True when SIGTERM or SIGKILL waits for a process, as it does for one that stands still."""
    return bool(_signals(pid)[0] & _ENDING)


def _signals(pid: int) -> tuple[int, int, int]:
    """Which signals wait for a process, which it blocks, and for which it has a handler, as bits."""
    words = dict(line.split(":\t", 1) for line in read_text(pid, "status").splitlines() if ":\t" in line)
    own, shared, blocked, caught = (
        int(words.get(name, "0"), 16) for name in ("SigPnd", "ShdPnd", "SigBlk", "SigCgt")
    )
    return own | shared, blocked, caught


def ancestors(pid: int) -> Iterator[Proc]:
    """Yield the process, its parent, and so on up to init."""
    for _ in range(1000):
        proc = read_proc(pid)
        if proc is None:
            return
        yield proc
        if proc.parent <= 0:
            return
        pid = proc.parent


def uids(pid: int) -> tuple[int, int] | None:
    """Return (real uid, effective uid); None when the process is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            for line in stream:
                if line.startswith(b"Uid:"):
                    fields = line.split()
                    return int(fields[1]), int(fields[2])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None


def owner(pid: int) -> tuple[int, int] | None:
    """Return a process's real uid and gid, though it may be hidden from others; None when it is gone."""
    ids = re.search(r"^Uid:\s+(\d+).*\nGid:\s+(\d+)", read_text(pid, "status"), re.MULTILINE)
    return (int(ids[1]), int(ids[2])) if ids else None


def of_session(leader: ProcId) -> Iterator[ProcId]:
    """Yield what lives of a process's session, which it may have left behind; only /proc as a whole tells."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        fields = read_text(pid, "stat").rpartition(")")[2].split()
        is_of = len(fields) > 19 and fields[3] == str(leader.pid) and fields[0] not in ENDED
        if is_of and int(fields[19]) >= leader.start:
            yield ProcId(pid, int(fields[19]))


def title(pid: int) -> str:
    """Return what ps shows as the command: the first word of the command line, as the process set it."""
    return read_text(pid, "cmdline").split("\0", 1)[0]


def read_text(pid: int, name: str, limit: int = 256 * 1024) -> str:
    """Return a file of /proc/PID, "" when it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read(limit).decode(errors="replace")
    except OSError:
        return ""


#: A process may have hundreds of thousands, and to read them takes a minute.
MOST_DESCRIPTORS = 10_000


def descriptors(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the number of each descriptor of a process, and what it is of, as far as this may be seen.

    Of more than MOST_DESCRIPTORS these.
    """
    with contextlib.suppress(OSError):
        for number in itertools.islice(os.listdir(f"/proc/{pid}/fd"), MOST_DESCRIPTORS):
            with contextlib.suppress(OSError):
                yield number, os.readlink(f"/proc/{pid}/fd/{number}")


def mappings(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the path of each file that a process has mapped, and the rights of that, as "rw-s"."""
    for line in read_text(pid, "maps", 1 << 23).splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith("/"):
            yield words[5], words[1]


def open_pidfd(proc: ProcId) -> int | None:
    """Return a descriptor that means this very process, None when it is gone; OSError: none can be had."""
    try:
        fd = os.pidfd_open(proc.pid)
    except OSError as err:
        if err.errno in _NOT_ITS_END:
            raise
        return None
    is_it = False
    try:
        now = read_proc(proc.pid)
        is_it = now is not None and now.start == proc.start
    finally:
        if not is_it:
            os.close(fd)
    return fd if is_it else None


def send(proc: ProcId, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone."""
    fd = open_pidfd(proc)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def clock_shift_ns(pid: int) -> int:
    """Return how far a process's even clock is ahead of this one's (time_namespaces(7)); 0 where not told."""
    return _offset_ns(str(pid)) - _offset_ns("self")


def _offset_ns(name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{name}/timens_offsets", encoding="ascii") as lines:
            words = next(line.split() for line in lines if line.startswith("monotonic"))
        return int(words[1]) * 1_000_000_000 + int(words[2])
    return 0
