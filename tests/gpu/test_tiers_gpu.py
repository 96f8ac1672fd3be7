"""The tiers `vmm` and `driver` on a real GPU: a captured graph, a script that knows nothing of Gandiva."""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

import pytest

from gandiva_slurm.node import driver_checkpoint, image_cards, imageable, nvml
from gandiva_slurm.node.procs import read_proc
from gandiva_slurm.wire.page import TIER_VMM, W_HELD, W_SEQ, W_TIER_USED
from tests.gpu import device
from tests.gpu.device import IS_SIM, ROOT
from tests.gpu.figures import figure
from tests.park_harness import Harness
from tests.skips import NO_PROCESS_CHECKPOINT, NO_SAVER, ONLY_CUDA, OTHER_PIDS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(IS_SIM, reason=ONLY_CUDA)]

GIB = 1 << 30
ROUNDS, LIVE = 5, 2 * GIB


def environment(**more):
    return device.environment(CUBLAS_WORKSPACE_CONFIG=":4096:8") | more


def preload():
    """What makes the saver take part, as docs/using.md says."""
    if importlib.util.find_spec("torch_memory_saver") is None:
        pytest.skip(NO_SAVER)
    from torch_memory_saver.hooks.mode_preload import configure_subprocess

    with configure_subprocess():
        library = os.environ["LD_PRELOAD"]
    return {"LD_PRELOAD": library, "TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}


def graphed(path, name, steps, **more):
    out, stop = path / f"{name}.json", path / f"{name}.stop"
    argv = [sys.executable, ROOT / "tests/gpu/graphed.py", out, steps, stop]
    return subprocess.Popen(list(map(str, argv)), env=environment(**more)), out, stop


@pytest.mark.parametrize("retained", ["0", "1"])
def test_captured_graph_is_parked_by_the_saver(tmp_path, library, retained):
    saver = preload() | {"TMS_RETAIN_CPU_BACKUP": retained}
    node = Harness(str(tmp_path / "node.sock"), 1)
    job, out, stop = graphed(tmp_path, "ours", 10**6, GANDIVA_SOCKET=str(tmp_path / "node.sock"), **saver)
    try:
        node.serve(120)
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            node.park(60)
            assert node.gang.phase == "parked", node.gang.last_error
            times.append([time.perf_counter() - start])
            view = node.views()[0]
            assert (view[W_TIER_USED], view[W_HELD]) == (TIER_VMM, 0)
            used = {use.pid: use.memory for use in library.uses()}
            assert used.get(job.pid, 0) < GIB, "no more than a context"
            start = time.perf_counter()
            node.resume(60)
            seq = node.gang.park_seq
            node.wait(lambda seq=seq: node.views()[0][W_SEQ] > seq, "a step", 60)
            times[-1].append(time.perf_counter() - start)
            node.wait(lambda seq=seq: node.views()[0][W_SEQ] > seq + 5, "steps", 60)
        stop.touch()
        assert job.wait(60) == 0
        losses = json.loads(out.read_text())
        alone, out, _ = graphed(tmp_path, "alone", len(losses))
        assert alone.wait(300) == 0 and json.loads(out.read_text()) == losses
        parks, resumes = ([f"{1e3 * took:.0f}" for took in way] for way in zip(*times, strict=True))
        what = "its copies kept" if retained == "1" else "its copies made anew"
        told = f"parks {', '.join(parks)} ms; until the next step {', '.join(resumes)} ms"
        figure(f"tier `vmm`, a captured graph, {what}", told, "a context stays, same losses")
    finally:
        job.kill()
        job.wait()
        node.close()


@pytest.fixture
def driver(library):
    why = call("probe", {})["why"]
    if why:
        pytest.skip(f"{NO_PROCESS_CHECKPOINT}: {why}")


def call(what, task):
    program = driver_checkpoint.start(what, task)
    program.wait(300)
    return driver_checkpoint.answer(program)


def plain(path, name, steps, live=LIVE):
    out, stop = path / f"{name}.json", path / f"{name}.stop"
    argv = [sys.executable, ROOT / "tests/gpu/plain.py", out, live, stop, steps]
    job = subprocess.Popen(list(map(str, argv)), env=environment(), stdout=subprocess.PIPE, text=True)
    job.stdout.readline()
    return job, out, stop


def losses_of(job, out):
    for _ in job.stdout:
        pass
    assert job.wait(120) == 0
    return json.loads(out.read_text())


def move(job):
    """Out and back; return how long each took, in seconds a GiB."""
    if job.pid not in {use.pid for use in nvml.load().uses()}:
        pytest.skip(OTHER_PIDS)
    start = time.perf_counter()
    out = call("out", {"procs": [read_proc(job.pid).id], "cgroups": []})
    out_s = time.perf_counter() - start
    assert out["is_out"] and not out["why"]
    assert job.pid not in {use.pid for use in nvml.load().uses() if use.memory}, "nothing is left"
    start = time.perf_counter()
    assert call("back", out) == {"is_out": False, "why": ""}
    size = sum(out["bytes"].values()) / GIB
    return out_s / size, (time.perf_counter() - start) / size


@pytest.mark.parametrize("live", [LIVE, 8 * LIVE])
def test_unmodified_script_loses_nothing_in_mid_step(driver, tmp_path, live):
    job, out, stop = plain(tmp_path, "moved", 10**9, live)
    try:
        times = []
        for _ in range(ROUNDS):
            times.append(move(job))
            job.stdout.readline()
        stop.touch()
        losses = losses_of(job, out)
        alone, out, _ = plain(tmp_path, "alone", len(losses), live)
        assert losses_of(alone, out) == losses
        tell(f"in mid-step, {live >> 30} GiB", times)
    finally:
        job.kill()
        job.wait()


def test_parked_rank_is_moved_at_its_boundary(driver, tmp_path):
    node = Harness(str(tmp_path / "node.sock"), 1)
    out, stop = tmp_path / "out.json", tmp_path / "stop"
    argv = [sys.executable, ROOT / "tests/gpu/train.py", out, 10**6, LIVE, GIB // 4, stop]
    env = environment(GANDIVA_SOCKET=str(tmp_path / "node.sock"), GANDIVA_TIER="hold")
    job = subprocess.Popen(list(map(str, argv)), env=env)
    try:
        node.serve(120)
        times = []
        for _ in range(ROUNDS):
            node.park(60)
            assert node.views()[0][W_HELD] >= LIVE * 0.9
            times.append(move(job))
            node.resume(60)
            seq = node.gang.park_seq
            node.wait(lambda seq=seq: node.views()[0][W_SEQ] > seq + 3, "steps", 60)
        stop.touch()
        assert job.wait(120) == 0
        tell("at a boundary", times)
    finally:
        job.kill()
        job.wait()
        node.close()


def test_a_script_off_its_gpu_has_no_device_open_and_goes_on_where_its_map_says(driver, tmp_path):
    """As for an image of its processes (ADR 0073), without one: the map leads to the GPU that it was on."""
    job, out, stop = plain(tmp_path, "mapped", 10**9)
    try:
        if job.pid not in {use.pid for use in nvml.load().uses()}:
            pytest.skip(OTHER_PIDS)
        assert imageable.open_card(job.pid).startswith(imageable.CARD)
        proc = read_proc(job.pid).id
        for _ in range(ROUNDS):
            card = {"is_off": False, "procs": [proc], "bytes": {}, "cgroups": [], "gpus": [0]}
            image_cards.take_off(card, [job.pid])
            image_cards.put_on(proc, image_cards.facts(card), [0])
            job.stdout.readline()
        stop.touch()
        losses = losses_of(job, out)
        alone, out, _ = plain(tmp_path, "alone", len(losses))
        assert losses_of(alone, out) == losses
        figure("process images: off a GPU and on again", f"{ROUNDS} times", "no device open, same losses")
    finally:
        job.kill()
        job.wait()


def tell(where, times):
    out, back = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    told = f"{out:.0f} ms a GiB out, {back:.0f} ms back (p50 of {ROUNDS})"
    figure(f"tier `driver` {where}", told, "nothing stays, same losses")
