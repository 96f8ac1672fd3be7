"""The tier `torch` on a GPU: bits, bytes, two jobs on a card too small for both, and how fast."""

import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gandiva_slurm.client.device import Cuda
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.offload import TorchTier
from gandiva_slurm.wire.page import TIER_TORCH, W_HELD, W_SEQ, W_TIER_USED
from tests import offload_kit as kit
from tests.gpu import device
from tests.gpu.device import IS_SIM, MIB, ROOT
from tests.gpu.figures import figure
from tests.gpu.resnet import resnet50
from tests.park_harness import Harness
from tests.skips import ONLY_CUDA

pytestmark = pytest.mark.gpu

STEPS, PARKS = (12, 8) if IS_SIM else (60, 40)
#: What torch itself keeps beside tensors (generators, counters): no more than this, or than one segment.
LEFT_BYTES = 2 * MIB if IS_SIM else MIB
#: Of the card, what each of two jobs has live, and what it works with besides: together 1.2 cards.
LIVE_PART, WORK_PART = 0.1, 0.5
ROUNDS = 4
#: Of a park and a resume that are timed: how often, the first left out, and the batch trained between them.
ROUNDS_TIMED, WARM, BATCH = (4, 1, (1, 3, 64, 64)) if IS_SIM else (25, 5, (16, 3, 128, 128))


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
    alone = kit.train(kit.SOLO[name], device.kind(), STEPS, lambda: None)
    gauge = Cuda(torch)
    gauge.slack = 0  # small models are looked for, too
    parks = kit.Parks(gauge, PARKS, STEPS)
    # On a stack of its own: the tier looks through the variables of callers, and pytest has very many.
    with ThreadPoolExecutor(1) as thread:
        parked = thread.submit(kit.train, kit.SOLO[name], device.kind(), STEPS, parks.between)
        assert parked.result() == alone
    for _, released, _, left in parks.said:
        assert released > 0 and left <= LEFT_BYTES


@pytest.mark.skipif(IS_SIM, reason=ONLY_CUDA)
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
        # As a node sets it for a job: of what the steps cut from the largest block, the rest goes back.
        env = device.environment(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
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
    total = device.card().total
    live, work = int(total * LIVE_PART), int(total * WORK_PART)
    device.of_device().empty_cache()
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
        size = f"{2 * (LIVE_PART + WORK_PART):.1f} cards of {total >> 20} MiB"
        figure(f"two jobs, {size} at their peaks together", f"{2 * ROUNDS} turns, same losses", "no OOM")
    finally:
        for job in jobs:
            job.close()


def pinned_rates(size=256 * MIB, rounds=8):
    """What the machine copies, pinned, out and in: bytes a second, the best of some rounds."""
    here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device.kind())
    ways = ((here, there), (there, here))
    return [size / device.best_s(to.copy_, source, rounds=rounds) for to, source in ways]


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
    cuda, kind = device.of_device(), device.kind()
    before = cuda.memory_allocated()
    model = resnet50().to(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tier = TorchTier(torch, Cuda(torch), {1: lambda: model, 2: lambda: optimizer})
    begun, rested = watched(tier)
    whole, copies, left = [], {"out": [], "in": []}, 0
    for _ in range(ROUNDS_TIMED):
        optimizer.zero_grad()
        model(torch.randn(*BATCH, device=kind)).square().mean().backward()
        optimizer.step()
        took = 0.0
        for way, move in (("out", tier.release), ("in", tier.restore)):
            begun.clear()
            took += device.best_s(move, rounds=1)
            copies[way].append(rested[-1] - begun[0])
            if way == "out":
                left = max(left, cuda.memory_allocated() - before)
                assert cuda.memory_reserved() <= before + left + 64 * MIB
        whole.append(took)
    assert left <= LEFT_BYTES
    rates = pinned_rates()
    what = f"a ResNet-50's {tier.copied / MIB:.0f} MiB"
    p50_ms = statistics.median(whole[WARM:]) * 1e3
    figure(f"{what}: park + resume, p50", f"{p50_ms:.1f} ms; {left} bytes left", "< 50 ms")
    for (way, times), best in zip(copies.items(), rates, strict=True):
        rate = tier.copied / statistics.median(times[WARM:])
        told = f"{rate / 1e9:.1f} GB/s of {best / 1e9:.1f} pinned = {rate / best:.0%}"
        figure(f"{what}: copied {way}", told, "80 % of the pinned rate")
