"""The tier `torch` on a real GPU: bits, bytes, two jobs on a card too small for both, and how fast."""

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gandiva_slurm.client.device import Cuda
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.offload import TorchTier
from gandiva_slurm.wire.page import TIER_TORCH, W_HELD, W_SEQ, W_TIER_USED
from tests import offload_kit as kit
from tests.gpu.figures import figure
from tests.gpu.resnet import resnet50
from tests.park_harness import Harness

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
STEPS, PARKS = 60, 40
#: What torch itself keeps beside tensors (generators, counters): no more than this.
LEFT_BYTES = MIB
#: Of the card, what each of two jobs has live, and what it works with besides: together 1.2 cards.
LIVE_PART, WORK_PART = 0.1, 0.5
ROUNDS = 4


@pytest.fixture
def same_bits(monkeypatch):
    """Algorithms that give the same bits each time."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    is_strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(is_strict)


@pytest.mark.parametrize("name", kit.SOLO)
def test_parks_change_no_bit_and_leave_no_tensor(name, same_bits):
    alone = kit.train(kit.SOLO[name], "cuda", STEPS, lambda: None)
    device = Cuda(torch)
    device.slack = 0  # small models are looked for, too
    parks = kit.Parks(device, PARKS, STEPS)
    # On a stack of its own: the tier looks through the variables of callers, and pytest has very many.
    with ThreadPoolExecutor(1) as thread:
        parked = thread.submit(kit.train, kit.SOLO[name], "cuda", STEPS, parks.between)
        assert parked.result() == alone
    for _, released, _, left in parks.said:
        assert released > 0 and left <= LEFT_BYTES


def test_captured_graph_is_refused_and_training_goes_on(same_bits):
    tier, graph = TorchTier(torch, Cuda(torch), {}), torch.cuda.CUDAGraph()
    there = torch.zeros(1024, device="cuda")
    with torch.cuda.graph(graph):
        made = there + 1
    with pytest.raises(Refused, match="CUDA graphs"):
        tier.release()
    graph.replay()
    assert made.sum().item() == 1024


class Job:
    """A training process of its own under a node of its own."""

    def __init__(self, path, name, live, work, is_ours=True, steps=1_000_000):
        self.out, self.stop = path / f"{name}.json", path / f"{name}.stop"
        self.node = Harness(str(path / f"{name}.sock"), 1) if is_ours else None
        env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        # As a node sets it for a job: of what the steps cut from the largest block, the rest goes back.
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        if is_ours:
            env["GANDIVA_SOCKET"] = str(path / f"{name}.sock")
        argv = [str(ROOT / "tests/gpu/train.py"), self.out, steps, live, work, self.stop]
        self.process = subprocess.Popen([sys.executable, *map(str, argv)], env=env)

    def finish(self):
        self.stop.touch()
        return self.wait()

    def wait(self):
        assert self.process.wait(300) == 0
        return json.loads(self.out.read_text())

    def close(self):
        self.process.kill()
        self.process.wait()
        if self.node:
            self.node.close()


def test_two_jobs_too_large_for_the_card_take_turns(tmp_path):
    total = torch.cuda.get_device_properties(0).total_memory
    live, work = int(total * LIVE_PART), int(total * WORK_PART)
    torch.cuda.empty_cache()
    jobs = []
    try:
        for name in ("one", "two"):
            jobs.append(Job(tmp_path, name, live, work))
            jobs[-1].node.serve(120)
            jobs[-1].node.park(60)
        for number in range(2 * ROUNDS):
            mine, other = jobs[number % 2], jobs[1 - number % 2]
            view = other.node.views()[0]
            assert view[W_TIER_USED] == TIER_TORCH and view[W_HELD] <= LEFT_BYTES
            mine.node.resume(60)
            seq = mine.node.gang.park_seq
            mine.node.wait(
                lambda mine=mine, seq=seq: min(v[W_SEQ] for v in mine.node.views()) > seq + 5, "steps", 60
            )
            other.node.beat()
            if number < 2 * ROUNDS - 1:
                mine.node.park(60)
                assert mine.node.gang.phase == "parked", mine.node.gang.last_error
        losses = [jobs[1].finish()]
        jobs[0].node.resume(60)
        losses.insert(0, jobs[0].finish())
        for number, series in enumerate(losses):
            jobs.append(Job(tmp_path, f"alone{number}", live, work, is_ours=False, steps=len(series)))
            assert jobs[-1].wait() == series
        size = f"{2 * (LIVE_PART + WORK_PART):.1f} cards of {total / 2**30:.0f} GiB"
        figure(f"two jobs, {size} at their peaks together", f"{2 * ROUNDS} turns, same losses", "no OOM")
    finally:
        for job in jobs:
            job.close()


def pinned_rates(size=256 * MIB, rounds=8):
    """What the machine copies, pinned, out and in: bytes a second, the best of some rounds."""
    here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    ways = ((here, there), (there, here))
    return [max(size / seconds(to.copy_, source) for _ in range(rounds)) for to, source in ways]


def seconds(function, *args):
    torch.cuda.synchronize()
    start = time.perf_counter()
    function(*args)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def watched(tier):
    """Have a tier note when it begins to copy and when its device has come to rest."""
    begun, rested = [], []

    def copy(*args, done=tier._copy, **how):
        begun.append(time.perf_counter())
        done(*args, **how)

    def drain(deadline, done=tier.device.drain):
        done(deadline)
        rested.append(time.perf_counter())

    tier._copy, tier.device.drain = copy, drain
    return begun, rested


def test_how_long_a_park_and_a_resume_take():
    before = torch.cuda.memory_allocated()
    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tier = TorchTier(torch, Cuda(torch), {1: lambda: model, 2: lambda: optimizer})
    begun, rested = watched(tier)
    whole, copies, left = [], {"out": [], "in": []}, 0
    for _ in range(25):
        optimizer.zero_grad()
        model(torch.randn(16, 3, 128, 128, device="cuda")).square().mean().backward()
        optimizer.step()
        took = 0.0
        for way, move in (("out", tier.release), ("in", tier.restore)):
            begun.clear()
            took += seconds(move)
            copies[way].append(rested[-1] - begun[0])
            if way == "out":
                left = max(left, torch.cuda.memory_allocated() - before)
                assert torch.cuda.memory_reserved() <= before + left + 64 * MIB
        whole.append(took)
    assert left <= LEFT_BYTES
    rates = pinned_rates()
    what = f"a ResNet-50's {tier.copied / MIB:.0f} MiB"
    p50_ms = statistics.median(whole[5:]) * 1e3
    figure(f"{what}: park + resume, p50", f"{p50_ms:.1f} ms; {left} bytes left", "< 50 ms")
    for (way, times), best in zip(copies.items(), rates, strict=True):
        rate = tier.copied / statistics.median(times[5:])
        told = f"{rate / 1e9:.1f} GB/s of {best / 1e9:.1f} pinned = {rate / best:.0%}"
        figure(f"{what}: copied {way}", told, "80 % of the pinned rate")
