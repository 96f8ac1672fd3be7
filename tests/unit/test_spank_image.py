"""The plugin where a job goes on from an image: process 1 for what is restored, and its end for Slurm's."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.node import procs
from gandiva_slurm.node.imageable import FIRST, inner_pid
from tests import patience
from tests.park_harness import wait_until
from tests.unit.spank_runner import MISSING, STEP_BATCH, FakeGandivad, build

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.skipif(os.getuid() != 0, reason="namespaces are root's"),
    pytest.mark.skipif(not shutil.which("nsenter"), reason="no nsenter"),
]
ANEW = "OK GANDIVA_JOB=5\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("spank"))


def first_below(pid: int) -> int:
    """Process 1 of the namespaces that a task has begun."""
    end_s = patience.deadline(10)
    while time.monotonic() < end_s:
        found = [child for child in procs.children(pid) if procs.title(child) == FIRST]
        if found:
            return found[0]
        time.sleep(0.01)
    raise AssertionError("there is no process 1")


def begin_below(first: int, script: str) -> int:
    """Begin a program as criu leaves one, a child of process 1; return its pid here."""
    words = ["nsenter", "-t", str(first), "-p", "-m", "--", "setsid", "--fork", "sh", "-c", script]
    subprocess.run(words, check=True, timeout=20, stdin=subprocess.DEVNULL)
    end_s = patience.deadline(10)
    while time.monotonic() < end_s:
        found = [pid for pid in procs.children(first) if procs.title(pid) == "sh"]
        if found:
            return found[0]
        time.sleep(0.01)
    raise AssertionError("the program does not run")


class Task:
    """One batch task that is told by `behave` what there is for it."""

    def __init__(self, built: tuple[Path, Path], directory: Path) -> None:
        self.built, self.directory = built, directory
        self.first = self.root = 0
        self.later = b"LATER restoring: its processes are being restored\n"
        #: gandivad says nothing once it has said that it restores
        self.is_silent = False

    def run(
        self, script: str, meanwhile: Callable[[int], None] = lambda pid: None, taking_s: float = 0.0
    ) -> int:
        """Its exit status where this program was restored; "": none was.

        `meanwhile` gets the task's pid; `taking_s`: for as long the task is told to wait.
        """

        gate = self.directory / "gate"
        begin = f"while [ ! -e {gate} ]; do sleep 0.05; done; {script}"

        def behave(peer: socket.socket, pid: int) -> None:
            with contextlib.suppress(BrokenPipeError):  # the task has given up
                talk(peer, pid)

        def talk(peer: socket.socket, pid: int) -> None:
            if self.first:
                return  # it has given up waiting, and asks once more
            self.first = first_below(pid)
            until_s = time.monotonic() + taking_s
            is_asked = True
            while is_asked:
                peer.sendall(self.later)
                peer.recv(4096)
                is_asked = time.monotonic() < until_s
            if self.is_silent:
                peer.recv(4096)  # until it has gone away
                return
            root = self.root = begin_below(self.first, begin) if script else 0
            told = f" GANDIVA_RESTORED={root}:{inner_pid(root)}" if root else ""
            peer.sendall(ANEW.replace("\n", f"{told}\n").encode())
            gate.touch()
            if root:
                meanwhile(pid)

        daemon = FakeGandivad(self.directory / "n1.sock", behave, ready="READY IMAGE")
        plugin, host = self.built
        words = [f"arg:socket={self.directory}/%n.sock", f"step:{STEP_BATCH}", "opt:gandiva"]
        try:
            done = subprocess.run(
                [str(host), str(plugin), "remote", *words],
                env={"SLURMD_NODENAME": "n1"},
                capture_output=True,
                timeout=patience.deadline(30) - time.monotonic(),
                check=False,
            )
        finally:
            daemon.close()
        assert procs.read_proc(self.first) is None, "process 1 has gone"
        return done.returncode


def has_trap(pid: int, number: signal.Signals) -> bool:
    """True when a process has a handler for the signal."""
    caught = [line.split()[1] for line in procs.read_text(pid, "status").splitlines() if "SigCgt:" in line]
    return any(int(bits, 16) >> (number - 1) & 1 for bits in caught)


def waits_for_signals(pid: int) -> bool:
    """True when it does; that it sleeps has to do where the kernel does not tell in what."""
    told = procs.read_text(pid, "wchan")
    return "sigtimedwait" in told or (told in ("", "0") and "\nState:\tS" in procs.read_text(pid, "status"))


@pytest.fixture
def task(built: tuple[Path, Path], tmp_path: Path) -> Iterator[Task]:
    yield Task(built, tmp_path)


def test_it_ends_with_the_status_of_what_was_restored(task: Task) -> None:
    assert task.run("exit 7; true") == 7


def test_it_ends_by_the_signal_that_ended_what_was_restored(task: Task) -> None:
    assert task.run("kill -ABRT $$; sleep 60") == -signal.SIGABRT


def test_signals_are_handed_on(task: Task) -> None:
    def heard(pid: int) -> None:
        wait_until(lambda: has_trap(task.root, signal.SIGUSR1), "the shell to set its trap")
        wait_until(lambda: waits_for_signals(pid), "the task to wait for signals")
        os.kill(pid, signal.SIGUSR1)

    assert task.run("trap 'exit 5' USR1; while :; do sleep 0.1; done", heard) == 5


SILENT_S = 1.0


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The plugin, whose gandivad may be silent for a second while it restores."""
    flags = f"-DRESTORE_SILENT_MS={SILENT_S * 1000:.0f}"
    return build(tmp_path_factory.mktemp("impatient"), flags)


def test_a_restore_takes_as_long_as_gandivad_says_that_it_goes_on(
    impatient: tuple[Path, Path], tmp_path: Path
) -> None:
    assert Task(impatient, tmp_path).run("exit 7; true", taking_s=4 * SILENT_S) == 7


def test_it_waits_for_nothing_else_for_ever(impatient: tuple[Path, Path], tmp_path: Path) -> None:
    task = Task(impatient, tmp_path)
    task.later = b"LATER no plan names it yet\n"
    assert task.run("exit 7; true", taking_s=1000) == 1, "it may not begin without its GPUs"


def test_a_gandivad_that_falls_silent_in_the_midst_is_not_waited_for(
    impatient: tuple[Path, Path], tmp_path: Path
) -> None:
    task = Task(impatient, tmp_path)
    task.is_silent = True
    assert task.run("") == 1, "it may not begin without its GPUs"


def test_where_nothing_was_restored_process_1_ends_and_the_task_begins(task: Task) -> None:
    assert task.run("") == 0


def test_all_that_was_restored_ends_with_its_root(task: Task) -> None:
    long = f"1000.{os.getpid()}"
    assert task.run(f"sleep {long} & sleep 0.5; exit 3") == 3
    for name in filter(str.isdigit, os.listdir("/proc")):
        assert procs.read_text(int(name), "cmdline") != f"sleep\0{long}\0"
