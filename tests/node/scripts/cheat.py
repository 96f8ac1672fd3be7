"""A training that would rather work than wait: each way notes its work, 10 ms at a time, in $OUT/work.JOB.

Usage: cheat.py WAY   (work stands for what a GPU would do: gandivad knows the one as little as the other)
"""

import ctypes
import os
import signal
import struct
import sys
import time
from pathlib import Path

import gandiva_slurm as gandiva
from gandiva_slurm.client import stop
from gandiva_slurm.client.rank import this_rank
from gandiva_slurm.wire import page

out, job, way = Path(os.environ["OUT"]), os.environ["GANDIVA_JOB"], sys.argv[1]
notes = os.open(out / f"work.{job}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
TICK_S, WARM = 0.01, 5


def work() -> None:
    """Ten milliseconds of it; what was frozen meanwhile counts no more."""
    time.sleep(TICK_S)
    os.write(notes, struct.pack("=Q", time.monotonic_ns()))


def work_on() -> None:
    while True:
        work()


def train() -> None:
    """An honest rank, whose mini-batches are work as well."""
    while True:
        work()
        gandiva.step()


def idle() -> None:
    """A rank that only stands there and parks as it is told."""
    work()
    while True:
        time.sleep(TICK_S)
        gandiva.step()


def warm_up() -> None:
    for _ in range(WARM):
        work()
        gandiva.step()


def begin(detach: int) -> None:
    """Have a process work beside the rank: a child, one in its own session, one that has no parent."""
    if os.fork():
        return
    for _ in range(detach):
        os.setsid()
        if os.fork():
            os._exit(0)
    work_on()


def child() -> None:
    begin(0)
    idle()


def own_session() -> None:
    if not os.fork():
        os.setsid()
        work_on()
    idle()


def double_fork() -> None:
    begin(2)
    idle()


def parked_and_trains() -> None:
    """Write what a parked rank writes, and go on."""
    warm_up()
    rank = this_rank()

    def lie(self: stop.Stop, seq: int, hold_ns: int) -> None:
        word, words = self.words[page.W_WORD], self.words
        if page.command_of(word) == page.CMD_COMMIT:
            words[page.W_STATE_GEN], words[page.W_STATE_SEQ] = page.generation_of(word), seq
            words[page.W_STATE] = page.PARKED
        else:
            words[page.W_STATE] = page.RUN

    stop.Stop.obey = lie
    assert rank is not None
    train()


def group_lie() -> None:
    """A lone rank says that its group gives up after 2 ms, and comes to no boundary any more."""
    warm_up()
    rank = this_rank()
    assert rank is not None
    rank.words[page.W_GROUP_MS] = 2
    work_on()


def never_at_a_boundary() -> None:
    warm_up()
    work_on()


def slow_at_first() -> None:
    """Show one long mini-batch, so that later ones are waited for as long."""
    warm_up()
    for _ in range(100):
        work()
    gandiva.step()
    work_on()


def steps_lie() -> None:
    """Count boundaries by the thousand, backwards, and far beyond what anybody passes."""
    warm_up()
    rank = this_rank()
    assert rank is not None
    while True:
        work()
        gandiva.step()
        rank.seq += 1000
        rank.words[page.W_SEQ] = rank.seq if rank.seq % 3 else 1 << 63
        rank.words[page.W_USER_STEPS] = 1 << 62


def late_hello() -> None:
    """Work as much as one may before a client is missed, and be one only then."""
    for _ in range(100):
        work()
    train()


def no_client() -> None:
    work_on()


def handlers() -> None:
    """Work in the handler of a signal; somebody else sends them all the time."""
    busy = []

    def handle(*_: object) -> None:
        if not busy:
            busy.append(True)
            for _ in range(5):
                work()
            busy.clear()

    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)
    idle()


def traced() -> None:
    """Trace a child that works, and swallow each signal that would stop it."""
    child_pid = os.fork()
    if not child_pid:
        ctypes.CDLL(None).ptrace(0, 0, None, None)  # PTRACE_TRACEME
        work_on()
    if not os.fork():
        idle()
    trace = ctypes.CDLL(None).ptrace
    while True:
        os.waitpid(child_pid, 0)
        trace(7, child_pid, None, None)  # PTRACE_CONT, without the signal


def escape() -> None:
    """Move out of whatever control group one is in."""
    if not os.fork():
        for file in Path("/sys/fs/cgroup").glob("**/cgroup.procs"):
            try:
                file.write_text(str(os.getpid()))
            except OSError:
                continue
        work_on()
    idle()


def clean_environment() -> None:
    """Leave nothing of the job in the environment of what works on."""
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        script = str(Path(__file__).with_name("bare.py"))
        os.execve(sys.executable, [sys.executable, script, job, str(out)], {})
    idle()


globals()[way]()
