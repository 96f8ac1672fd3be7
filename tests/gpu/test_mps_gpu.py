"""NVIDIA's MPS on a GPU: what bounds an opportunistic job there holds for a process that was given it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from gandiva_slurm.node import mps
from gandiva_slurm.wire.page import TIER_TORCH, W_TIER_USED
from tests.gpu import device
from tests.gpu.device import IS_SIM, MIB
from tests.gpu.figures import figure
from tests.gpu.test_frameworks_gpu import on_card, start
from tests.park_harness import Harness
from tests.skips import NO_MPS, ONLY_CUDA, OTHER_PIDS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(IS_SIM, reason=ONLY_CUDA), pytest.mark.timeout(200)]

#: Percent of the GPU's threads, and of its memory.
PART = 25
#: Its products a second; then how many tensors of a twentieth of the card it gets.
BOUNDED = """
import json, time, torch
total = torch.cuda.get_device_properties(0).total_memory
matrix = torch.randn(4096, 4096, device="cuda")
def rate():
    torch.cuda.synchronize(); begin = time.monotonic()
    for _ in range(200): matrix @ matrix
    torch.cuda.synchronize(); return 200 / (time.monotonic() - begin)
rate()
told = {"rate": rate(), "tensors": 0}
kept = []
try:
    while len(kept) < 16:
        kept.append(torch.empty(total // 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError: pass
told["tensors"] = len(kept)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """The control daemon, of this test's own; what names it in an environment."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        pytest.skip(NO_MPS)
    path = tmp_path_factory.mktemp("mps")
    words = {"CUDA_MPS_PIPE_DIRECTORY": str(path), "CUDA_MPS_LOG_DIRECTORY": str(path)}
    env = os.environ | words
    argv = ["nvidia-cuda-mps-control", "-d"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30)
    if done.returncode:
        pytest.skip(f"{NO_MPS}: {done.stdout}{done.stderr}")
    yield words
    subprocess.run(["nvidia-cuda-mps-control"], input="quit -t 1\n", env=env, text=True, timeout=60)


def told(**words):
    env = device.environment(**words)
    argv = [sys.executable, "-c", BOUNDED]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_its_part_of_threads_and_memory_holds(daemon, monkeypatch):
    for name, value in daemon.items():
        monkeypatch.setenv(name, value)
    assert mps.is_there()
    bounds = mps.environment(PART, PART, (device.card().total,))
    whole, part = told(**daemon), told(**daemon, **bounds)
    rate = f"{part['rate'] / whole['rate']:.0%} of its rate"
    sizes = f"{part['tensors']} tensors of a twentieth of the card ({whole['tensors']} without)"
    figure(f"MPS, {PART} % of threads and memory", f"{rate}, {sizes}", f"{PART} %, at most 5")
    assert part["tensors"] <= 5 < whole["tensors"]
    assert part["rate"] < 0.5 * whole["rate"]


def test_a_client_of_it_is_parked(daemon, tmp_path, library):
    node, out, stop = Harness(str(tmp_path / "node.sock"), 1), tmp_path / "out.json", tmp_path / "stop"
    job = start("scaled", out, 1_000_000, stop, GANDIVA_SOCKET=str(tmp_path / "node.sock"), **daemon)
    try:
        node.serve(120, boundaries=5)
        seen = on_card(library, job.pid)
        if seen is None:
            pytest.skip(OTHER_PIDS)
        took_s = node.park(60)
        assert node.gang.phase == "parked", node.gang.last_error
        left = on_card(library, job.pid)
        assert node.views()[0][W_TIER_USED] == TIER_TORCH
        node.resume(60)
        nvml = f"{seen >> 20} MiB training, {(left or 0) >> 20} parked"
        figure("a client of MPS is parked", f"{took_s * 1e3:.0f} ms; {nvml}", "its memory is gone")
        assert (left or 0) < seen - 200 * MIB
        stop.touch()
        assert job.wait(60) == 0
    finally:
        job.kill()
        job.wait()
        node.close()
