"""NVIDIA's process checkpoint, against a driver that is played: every failure leaves the process running."""

import json
import os
import subprocess
import sys
import threading
import uuid

import pytest

from gandiva_slurm.node import driver_checkpoint as dc
from gandiva_slurm.node.nvml import Use
from gandiva_slurm.node.procs import read_proc
from tests.fake_driver import CHECKPOINTED, FAILED, LOCKED, NOT_READY, RUNNING, FakeDriver

PID = 4711
GIB = 1 << 30


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return FakeDriver(tmp_path_factory.mktemp("cuda") / "fake")


@pytest.fixture
def fake(made, monkeypatch):
    monkeypatch.setattr(dc, "LIBRARY", str(made.so))
    monkeypatch.setenv("FAKE_CUDA", str(made.directory))
    for path in made.directory.glob("fail-*"):
        path.unlink()
    (made.directory / "calls").write_text("")
    (made.directory / "uses").write_text("")
    made.free(1 << 40)
    made.use(PID)
    return made


def test_out_and_back(fake):
    driver = dc.Driver()
    dc.take_out(driver, PID)
    assert fake.state(PID) == CHECKPOINTED and fake.calls() == ["Lock", "Checkpoint"]
    dc.bring_back(driver, PID)
    assert fake.state(PID) == RUNNING and fake.calls()[2:] == ["Restore", "Unlock"]
    dc.bring_back(driver, PID)
    assert len(fake.calls()) == 4, "who runs is left alone"


def test_it_comes_back_on_the_gpus_that_stand_for_those_it_was_on(fake):
    driver, old, new = dc.Driver(), "GPU-00112233-4455-6677-8899-aabbccddeeff", f"GPU-{uuid.UUID(int=1)}"
    dc.take_out(driver, PID)
    dc.bring_back(driver, PID, [(old, new), (new, old)])
    first, second = old.removeprefix("GPU-").replace("-", ""), f"{1:032x}"
    pairs = [f"pair:{first}={second}", f"pair:{second}={first}"]
    assert fake.state(PID) == RUNNING and fake.calls()[2:] == [*pairs, "Restore", "Unlock"]


@pytest.mark.parametrize(
    ("name", "code", "state", "undone"),
    [
        ("Lock", NOT_READY, -1, []),  # the time-out
        ("Lock", NOT_READY, LOCKED, ["Unlock"]),
        ("Checkpoint", 2, -1, ["Unlock"]),
        ("Checkpoint", 2, CHECKPOINTED, ["Restore", "Unlock"]),
        ("Checkpoint", 2, RUNNING, []),
    ],
)
def test_failure_on_the_way_out_is_undone(fake, name, code, state, undone):
    fake.fail(name, code, state)
    with pytest.raises(dc.Refused, match=f"cuCheckpointProcess{name}: "):
        dc.take_out(dc.Driver(), PID)
    assert fake.state(PID) == RUNNING
    assert fake.calls() == ["Lock", "Checkpoint"][: 1 + (name == "Checkpoint")] + undone


@pytest.mark.parametrize(
    ("first", "then", "left"),
    [("Checkpoint", "Unlock", LOCKED), ("Checkpoint", "GetState", LOCKED)],
)
def test_what_cannot_be_undone_is_told_and_undone_later(fake, first, then, left):
    driver = dc.Driver()
    fake.fail(first)
    real = driver.checkpoint

    def checkpoint(pid):
        fake.fail(then)
        real(pid)

    driver.checkpoint = checkpoint
    with pytest.raises(dc.CudaError):
        dc.take_out(driver, PID)
    assert fake.state(PID) == left
    fake.mend(then)
    dc.bring_back(driver, PID)
    assert fake.state(PID) == RUNNING


@pytest.mark.parametrize(("name", "left"), [("Restore", CHECKPOINTED), ("Unlock", LOCKED)])
def test_failed_way_back_can_be_tried_again(fake, name, left):
    driver = dc.Driver()
    dc.take_out(driver, PID)
    fake.fail(name, 2)
    with pytest.raises(dc.CudaError, match=name):
        dc.bring_back(driver, PID)
    assert fake.state(PID) == left
    fake.mend(name)
    dc.bring_back(driver, PID)
    assert fake.state(PID) == RUNNING


@pytest.mark.parametrize("state", [LOCKED, CHECKPOINTED, FAILED])
def test_who_does_not_run_is_not_touched(fake, state):
    fake.put(PID, state)
    with pytest.raises(dc.Refused, match=f"is {dc.NAMES[state]} already"):
        dc.take_out(dc.Driver(), PID)
    assert fake.state(PID) == state and fake.calls() == []


def test_who_uses_no_cuda_is_refused(fake):
    with pytest.raises(dc.Refused, match="GetState"):
        dc.take_out(dc.Driver(), PID + 1)


def test_driver_that_is_missing_old_or_without_a_gpu_is_refused(fake, monkeypatch, tmp_path):
    fake.fail("Init", 100)
    with pytest.raises(dc.Refused, match="cuInit: error 100"):
        dc.Driver()
    old = tmp_path / "old.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-xc", "-", "-o", old], input=b"int cuInit;", check=True, timeout=60
    )
    monkeypatch.setattr(dc, "LIBRARY", str(old))
    with pytest.raises(dc.Refused, match="no GetState"):
        dc.Driver()
    monkeypatch.setattr(dc, "LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(dc.Refused, match="this node has no"):
        dc.Driver()


def test_one_process_with_gpu_memory_is_chosen():
    me, other = read_proc(os.getpid()).id, read_proc(os.getppid()).id
    mine = [Use(0, me.pid, 5, -1), Use(1, me.pid, 7, -1)]
    stranger = Use(0, 1, 9, -1)
    assert dc.choose([*mine, stranger], [me, other]) == (me, {"0": 5, "1": 7})
    with pytest.raises(dc.Refused, match="2 of its processes"):
        dc.choose([*mine, Use(0, other.pid, 3, -1)], [me, other])
    with pytest.raises(dc.Refused, match="0 of its processes"):
        dc.choose([stranger], [me, other])
    with pytest.raises(dc.Refused, match="does not tell"):
        dc.choose([Use(0, me.pid, 0, -1)], [me])


def test_room_is_looked_for_before_anything_moves(tmp_path):
    dc.check_gpus((4 * GIB,), {"0": 3 * GIB})
    with pytest.raises(dc.Refused, match="GPU 0 has 4096 MiB free, and it needs 4096"):
        dc.check_gpus((4 * GIB,), {"0": 4 * GIB})
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    with pytest.raises(dc.Refused, match="takes 1024 MiB of host memory, and 1024 are free"):
        dc.check_host(GIB, [str(tmp_path)])
    (tmp_path / "memory.max").write_text("max\n")
    dc.check_host(0, [str(tmp_path)])


def test_one_at_a_time_works_on_a_process(monkeypatch):
    monkeypatch.setattr(dc, "WAIT_S", 0.1)
    me, entered, leave = read_proc(os.getpid()).id, threading.Event(), threading.Event()

    def hold():
        with dc.alone(me):
            entered.set()
            leave.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    assert entered.wait(30)
    with pytest.raises(dc.Refused, match="has not returned"), dc.alone(me):
        pass
    leave.set()
    other.join()
    with dc.alone(me):
        pass


def run(fake, what, task):
    """Run the program; return its answer."""
    argv = [sys.executable, "-m", dc.__name__, what, json.dumps(task)]
    env = os.environ | fake.environment()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_program_moves_out_and_back_and_waits_for_room(fake):
    me = read_proc(os.getpid()).id
    other = read_proc(os.getppid()).id
    fake.use(me.pid, GIB)
    assert run(fake, "probe", {}) == {"is_out": False, "why": ""}
    out = run(fake, "out", {"procs": [other, me], "cgroups": []})
    assert out == {"is_out": True, "why": "", "procs": [list(me)], "bytes": {"0": GIB}}
    fake.free(GIB)
    said = run(fake, "back", out)
    assert said["is_out"] and "GPU 0 has 1024 MiB free" in said["why"] and "Restore" not in fake.calls()
    fake.free(2 * GIB)
    assert run(fake, "back", out) == {"is_out": False, "why": ""} and fake.state(me.pid) == RUNNING
    # A daemon that heard no answer knows neither the process nor its bytes.
    fake.put(me.pid, LOCKED)
    assert not run(fake, "back", {"procs": [other, me], "bytes": {}})["is_out"]
    assert fake.state(me.pid) == RUNNING
    fake.put(me.pid, FAILED)
    said = run(fake, "back", out)
    assert not said["is_out"] and f"lost process {me.pid}" in said["why"]


def test_program_refuses_without_nvml(fake):
    (fake.directory / "pynvml.py").rename(fake.directory / "kept")
    (fake.directory / "pynvml.py").write_text("raise ImportError")
    try:
        assert "GPU memory cannot be told" in run(fake, "probe", {})["why"]
        said = run(fake, "out", {"procs": [], "cgroups": []})
        assert not said["is_out"] and "GPU memory cannot be told" in said["why"]
    finally:
        (fake.directory / "kept").rename(fake.directory / "pynvml.py")
