"""A job's part of its GPU's threads: for opportunistic ones, where MPS runs and the site wants it."""

import os
import shutil
import subprocess

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import mps
from gandiva_slurm.node.binding import Admission, Peer
from gandiva_slurm.node.hello import Bind
from gandiva_slurm.node.members import Membership
from gandiva_slurm.node.procs import read_proc
from gandiva_slurm.wire.messages import NodePlan, PlannedJob
from tests.node_bench import QUANTUM_NS, TICKET, Bench
from tests.park_harness import wait_until

NAME = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.fixture
def control_daemon(tmp_path, monkeypatch):
    """A process of the control daemon's name, and its pid file."""
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep"), program)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    with subprocess.Popen([program, "600"]) as process:
        (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{process.pid}\n")
        wait_until(mps.is_there, "the program to have begun")
        yield process
        process.kill()


@pytest.fixture
def bind(tmp_path):
    """Start a task of a planned job; return what its environment gets."""

    def _bind(percent=40, memory=0, card=8 << 30, **of_job):
        bench = Bench(tmp_path / f"{percent}{memory}{card}{of_job}", 1)
        for name, value in (("mps_percent", percent), ("mps_memory_percent", memory), ("card_bytes", card)):
            object.__setattr__(bench.node.settings, name, value)
        job = PlannedJob(5, 0, "user1", os.getuid(), (0,), 100 * TICKET, 5, **of_job)
        bench.planning.take(NodePlan("n1", 1, 1, QUANTUM_NS, 1, (job,), (), "", 0))
        member = Membership(5, None, "batch")
        admission = Admission(bench.node, bench.slicer, bench.watcher, lambda pid: member)
        peer = Peer(read_proc(os.getpid()).id, os.getuid())
        return admission.bind(peer, Bind(JobKey(5, 0), "batch", 0, (), ()))

    return _bind


def test_an_opportunistic_job_gets_its_part_and_no_other(control_daemon, bind):
    assert bind(is_opportunistic=True)[NAME] == "40"
    assert NAME not in bind()
    assert NAME not in bind(percent=0, is_opportunistic=True)


def test_its_memory_is_limited_whatever_allocates_it(control_daemon, bind):
    """By the number that the job's GPU has for itself; where a GPU's memory is not known, not at all."""
    found = bind(percent=0, memory=25, is_opportunistic=True)
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M" and NAME not in found
    assert found["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert not any(name.startswith("CUDA_MPS") for name in bind(memory=25))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in bind(memory=25, card=0, is_opportunistic=True)


def test_without_a_control_daemon_nothing_is_said(control_daemon, bind, monkeypatch):
    control_daemon.kill()
    control_daemon.wait()
    assert NAME not in bind(is_opportunistic=True)
    pid_file = os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "nvidia-cuda-mps-control.pid")
    with open(pid_file, "w") as file:
        file.write(f"{os.getpid()}\n")
    assert not mps.is_there(), "its number is another program's by now"
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
    assert not mps.is_there()
