"""One demonstration at a time, and a clean end at any moment: the work runs in a process of its own.

The guard waits for it. On Ctrl-C, SIGTERM or SIGHUP it kills the work with all that it started and takes the
clusters down itself, so that it does not matter where the work was. Should the guard be killed, the work dies
with it, and the next demonstration clears away what is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import probe
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.model.errors import GandivaError

ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
#: In the directory of a cluster that a demonstration brought up and did not leave for its user.
MARK = "demonstration"
_PR_SET_PDEATHSIG = 1
_SHOW_CURSOR = "\x1b[?25h"

Say = Callable[[str], None]


def cluster_names(name: str) -> tuple[str, str]:
    """The clusters of the demonstration called `name`: the main one, and the one that measures slicing."""
    return name, f"{name}-slicing"


def guarded(name: str, work: Callable[[], int], say: Say) -> int:
    """Do the work in a child process; returns its exit code, or 128 + the signal that ended it.

    GandivaError: another demonstration of this name runs, or its cluster is in use.
    """
    with _only_one(name):
        # From here on a signal waits until it can be answered, also while another's rest is cleared away.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDS, signal.SIGCHLD})
        clear_away(name, say)
        guard = os.getpid()
        sys.stdout.flush()
        worker = os.fork()
        if worker == 0:
            _begin_work(guard, before)
            return work()
        code = _wait(worker)
        if code < 0:
            _end_session(worker)
            if sys.stdout.isatty():
                say(_SHOW_CURSOR)
            say(f"ended by {signal.Signals(-code).name}; taking down what it brought up")
            for cluster in cluster_names(name):
                clusters.down(cluster)
            say("nothing of it is left")
        return 128 - code if code < 0 else code


def clear_away(name: str, say: Say) -> None:
    """Take down what a killed demonstration left; GandivaError: a cluster of that name is no such."""
    for cluster in cluster_names(name):
        at = Layout.of(cluster)
        if not at.root.exists():
            continue
        if not ((at.root / MARK).exists() or _was_killed_at_start(at)):
            raise GandivaError(
                f"the cluster {cluster!r} is up, by `make demo KEEP=1` or by hand; once nobody needs it, "
                f"take it down: GANDIVA_MINI={cluster} {program()} mini down"
            )
        say(f"clearing away {at.root}, which a demonstration that was killed left")
        clusters.down(cluster)


def program() -> str:
    """The command that runs this, as its user can type it."""
    return sys.argv[0] if os.path.basename(sys.argv[0]) == "gandiva" else "gandiva"


def _was_killed_at_start(at: Layout) -> bool:
    """True when the process that brought the cluster up is no more, and had not done."""
    try:
        pid, _, ticks = at.maker.read_text().partition(" ")
    except OSError:
        return False
    return not pid or str(probe.start_ticks(int(pid))) != ticks


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Hold a name that is free again when the last process that holds it is gone, however it ends."""
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0gandiva-demo-{name}")
        except OSError:
            raise GandivaError(
                f"a demonstration {name!r} runs already; wait for it, or name another (GANDIVA_MINI=NAME)"
            ) from None
        yield


def _begin_work(guard: int, mask: set[signal.Signals | int]) -> None:
    """In the child: a session of its own, so that all it starts is found, and death with the guard."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(worker: int) -> int:
    """The worker's exit code; minus the signal that came first, or that killed it."""
    while True:
        came = signal.sigwait({*ENDS, signal.SIGCHLD})
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if came in ENDS:
            return -came


def _end_session(leader: int) -> None:
    """Kill every process of a session, until there is none."""
    while alive := [pid for pid in _processes() if _session(pid) == leader]:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(leader, os.WNOHANG)
        time.sleep(0.01)


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _session(pid: int) -> int:
    """The session of a process; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[3])
