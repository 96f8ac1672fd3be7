"""Looking into a mini cluster from outside: processes, listening ports, waiting with a deadline."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gandiva_slurm.model.errors import GandivaError

LISTEN = "0A"
#: The flag of a Unix socket that listens (__SO_ACCEPTCON), as /proc shows it.
ACCEPTS = 0x10000
TAIL_LINES = 15
#: The longest sleep between two looks.
_MOST_PAUSE_S = 1.0


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat, which tells a process from a later one of the same number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def has_ended(pid: int, ticks: int | None) -> bool:
    """True when no thread is left of the process that began at `ticks`: the last one closes its sockets."""
    if start_ticks(pid) == ticks:
        return ticks is None
    try:
        return start_ticks(pid) is not None or len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return True


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # gone, or a kernel without that file
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _parent(entry) == pid]


def _parent(pid: str) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def processes_of(init_pid: int) -> Iterator[tuple[int, int]]:
    """(pid here, pid inside) of every process in the pid namespace of `init_pid`."""
    try:
        namespace = os.readlink(f"/proc/{init_pid}/ns/pid")
    except OSError:
        return
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if os.readlink(f"/proc/{entry}/ns/pid") != namespace:
                continue
            for line in Path(f"/proc/{entry}/status").read_text().splitlines():
                if line.startswith("NSpid:"):
                    yield int(entry), int(line.split()[-1])
        except OSError:
            continue


def is_listening(pid: int, port: int) -> bool:
    """True if somebody in the network namespace of `pid` listens on this TCP port."""
    want = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        if any(row.split()[1].endswith(want) and row.split()[3] == LISTEN for row in rows):
            return True
    return False


def is_open(pid: int, path: str) -> bool:
    """True if somebody in the network namespace of `pid` listens on this Unix socket.

    Its file is there before it listens: who connects in that moment is refused.
    """
    try:
        rows = Path(f"/proc/{pid}/net/unix").read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return False
    return any(int(row.split()[3], 16) & ACCEPTS for row in rows if row.endswith(f" {path}"))


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, indented; "" when there is none."""
    try:
        text = path.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join("    " + line for line in text)


def pause_s(look_s: float, least_s: float) -> float:
    """Return how long a wait sleeps after a look that took `look_s`.

    A look that costs a process leaves the processor to others for twice as long.
    """
    return max(least_s, min(_MOST_PAUSE_S, 2 * look_s))


def wait_until(
    holds: Callable[[], bool], what: str, deadline_s: float, *,
    broken: Callable[[], str] = lambda: "", log: Path | None = None, poll_s: float = 0.02,
) -> None:
    """Return once `holds()`; GandivaError with the log's end when `broken()` says why, or at the deadline."""
    end = time.monotonic() + deadline_s
    began = time.monotonic()
    while not holds():
        took, why = time.monotonic() - began, broken()
        if not why and time.monotonic() > end:
            why = f"not within {deadline_s:g} s"
        if why:
            shown = f"\n  end of {log}:\n{tail(log)}" if log is not None and log.exists() else ""
            raise GandivaError(f"{what}: {why}{shown}")
        time.sleep(pause_s(took, poll_s))
        began = time.monotonic()
