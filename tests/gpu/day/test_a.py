"""Stage A of a day on a GPU: what is there, copies, pinning, what a park leaves, a park while it is busy."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gandiva_slurm.client.offload import TorchTier
from tests.gpu.device import IS_SIM, MIB, ROOT, best_s, card, gauge, kind, queue, settled
from tests.gpu.figures import DEVICE, figure
from tests.gpu.resnet import resnet50
from tests.skips import ONLY_CUDA

pytestmark = pytest.mark.gpu

#: Sizes to pin, in MiB; the simulated card's host has none to spare.
PINNED_MIB = (16,) if IS_SIM else (1024, 4096, 16384)
COPIED_MIB = 16 if IS_SIM else 256
#: Slabs that a thread pins beside a training, and their size.
BESIDE_SLABS, SLAB_MIB = 64, 64
#: Work that is queued when a park is ordered, in seconds, and how long the park may take beyond it.
QUEUED_S, LATE_S = (0.2, 1.0) if IS_SIM else (3.0, 1.0)
#: Of a parked process's memory above its context, this part must be gone.
GONE = 0.95


def test_what_is_there() -> None:
    """Goes first: the table names the device."""
    figure(DEVICE, card().name)
    figure("torch, CUDA, driver", f"{torch.__version__}, {torch.version.cuda}, {card().driver}")
    figure("memory of the card, free of it", f"{card().total >> 20} MiB, {card().free >> 20} MiB")


@pytest.mark.parametrize("memory", ["pageable", "pinned"])
def test_what_it_copies(memory: str) -> None:
    here = torch.empty(COPIED_MIB * MIB, dtype=torch.uint8, pin_memory=memory == "pinned")
    there = torch.empty(COPIED_MIB * MIB, dtype=torch.uint8, device=kind())
    ways = ((here, there), (there, here))
    rates = [COPIED_MIB * MIB / best_s(to.copy_, source) / 1e9 for to, source in ways]
    figure(f"{memory} copies, out and in", " and ".join(f"{rate:.1f} GB/s" for rate in rates))


def proc_kib(file: str, key: str) -> int:
    """A figure of /proc/self, in KiB."""
    line = next(line for line in Path(f"/proc/self/{file}").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1])


@pytest.mark.parametrize("mib", PINNED_MIB)
def test_what_pinning_costs(mib: int) -> None:
    before = {key: proc_kib("status", key) for key in ("VmLck", "RssShmem", "RssAnon")}
    start = time.perf_counter()
    made = torch.empty(mib * MIB, dtype=torch.uint8, pin_memory=True)
    made[::4096].fill_(1)
    took_s = time.perf_counter() - start
    more = {key: (proc_kib("status", key) - was) >> 10 for key, was in before.items()}
    told = ", ".join(f"{key} {size:+d} MiB" for key, size in more.items())
    figure(f"pinning {mib} MiB", f"{took_s * 1024 / mib:.2f} s a GiB; {told}")
    del made


@pytest.mark.parametrize("way", ["allocated", "registered"])
@pytest.mark.skipif(IS_SIM, reason=ONLY_CUDA)
def test_what_pinning_beside_a_training_costs(way: str) -> None:
    """A thread pins four GiB, slab by slab, while steps go on; a registered slab is touched before."""
    model = resnet50().to(kind())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    slabs: list[torch.Tensor] = []

    def steps(until: Callable[[], bool]) -> list[float]:
        took = []
        while not until():
            start = time.perf_counter()
            optimizer.zero_grad()
            model(torch.randn(32, 3, 224, 224, device=kind())).square().mean().backward()
            optimizer.step()
            settled()
            took.append(1e3 * (time.perf_counter() - start))
        return took

    def pin() -> None:
        for _ in range(BESIDE_SLABS):
            slab = torch.empty(SLAB_MIB * MIB, dtype=torch.uint8, pin_memory=way == "allocated")
            if way == "registered":
                slab.fill_(0)
                assert torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), len(slab), 0) == 0
            slabs.append(slab)

    warm = itertools.count()
    steps(lambda: next(warm) >= 20)
    few = itertools.count()
    alone = steps(lambda: next(few) >= 100)
    thread = threading.Thread(target=pin)
    start = time.perf_counter()
    thread.start()
    beside = steps(lambda: not thread.is_alive())
    took_s = time.perf_counter() - start
    if way == "registered":
        for slab in slabs:
            torch.cuda.cudart().cudaHostUnregister(slab.data_ptr())

    def tell(times: list[float]) -> str:
        return f"p50 {statistics.median(times):.1f}, worst {max(times):.1f} ms"

    rate = took_s * 1024 / (BESIDE_SLABS * SLAB_MIB)
    figure(f"steps beside a thread that pins {BESIDE_SLABS} slabs of {SLAB_MIB} MiB, {way}",
           f"{tell(beside)}; alone {tell(alone)}; {rate:.2f} s a GiB")  # fmt: skip


@pytest.mark.parametrize("segments", ["default", "expandable"][: 1 if IS_SIM else 2])
def test_what_a_park_leaves_of_a_process(segments: str) -> None:
    """A ResNet-50 in a process of its own, whose memory is seen from outside."""
    setting = {"expandable": "expandable_segments:True"}.get(segments, "")
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTHONPATH": os.environ.get("PYTHONPATH", ".")}
    argv = [sys.executable, "-m", "tests.gpu.day.left_behind"]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    gone = 1 - (told["parked"] - told["context"]) / max(1, told["training"] - told["context"])
    parts = ", ".join(f"{name} {size >> 20} MiB" for name, size in told.items())
    what = f"a ResNet-50's process, {segments} segments: gone above its context"
    figure(what, f"{gone:.1%} ({parts})", "95 %")
    assert gone >= GONE


def test_a_park_waits_for_work_that_is_queued() -> None:
    """The script is seconds ahead of its device, as at an optimizer's step that nobody waits for."""
    model = torch.nn.Linear(64, 64).to(kind())
    tier = TorchTier(torch, gauge(), {1: lambda: model})
    want = [parameter.detach().cpu().clone() for parameter in model.parameters()]
    settled()
    queue(QUEUED_S)
    start = time.perf_counter()
    tier.release(QUEUED_S + LATE_S)  # a rank's own bound is of its steps: client/rank.py
    took_s = time.perf_counter() - start
    tier.restore()
    found = [parameter.detach().cpu() for parameter in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(want, found, strict=True))
    figure(f"a park behind {QUEUED_S:g} s of queued work", f"{took_s:.2f} s", f"< {QUEUED_S + LATE_S:g} s")
    assert took_s < QUEUED_S + LATE_S


def test_a_resnet_parks_and_comes_back() -> None:
    model = resnet50().to(kind())
    tier = TorchTier(torch, gauge(), {1: lambda: model})
    took = {"park": best_s(tier.release, rounds=1), "resume": best_s(tier.restore, rounds=1)}
    assert tier.copied > 50 * MIB
    figure(f"{tier.copied >> 20} MiB of a ResNet-50's weights, first park and resume",
           " and ".join(f"{1e3 * seconds:.0f} ms" for seconds in took.values()))  # fmt: skip
