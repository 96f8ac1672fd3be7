"""Sharing a GPU: the cap bounds this process and is lifted, the duty slows it down, NVML sees it."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch

from gandiva_slurm.client import spill
from gandiva_slurm.client.sharing import FULL, Share, tell_memory
from gandiva_slurm.wire import page
from tests.gpu import device
from tests.gpu.device import IS_SIM, MIB
from tests.gpu.figures import figure
from tests.skips import OTHER_PIDS

pytestmark = pytest.mark.gpu

#: A product of matrices of this size is a kernel's work.
SIZE = 512 if IS_SIM else 4096


@pytest.fixture
def words():
    made = memoryview(bytearray(page.PAGE_BYTES)).cast("Q")
    made[page.W_AT] = page.NEVER
    return made


def ask(share, duty, cap=0):
    share.words[page.W_BEAT] = time.monotonic_ns()
    share.words[page.W_MEM_CAP], share.words[page.W_THROTTLE] = cap, duty
    return share.heed()


def test_a_cap_bounds_this_process_and_is_lifted_again(words):
    cuda = device.of_device()
    cuda.empty_cache()
    share = Share(words)
    here = torch.empty(64 * MIB, dtype=torch.uint8, device=device.kind())
    cached = torch.empty(512 * MIB, dtype=torch.uint8, device=device.kind())
    del cached
    cuda.reset_peak_memory_stats()
    ask(share, FULL, 256 * MIB)
    assert cuda.memory_reserved() < 256 * MIB, "what it had cached is given back"
    tell_memory(words)
    before = words[page.W_OOMS]
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(512 * MIB, dtype=torch.uint8, device=device.kind())
    tell_memory(words)
    assert words[page.W_OOMS] == before + 1
    assert words[page.W_LIVE] >= 64 * MIB <= words[page.W_PEAK]
    ask(share, 0)
    torch.empty(512 * MIB, dtype=torch.uint8, device=device.kind())
    assert here.numel()


@pytest.fixture
def built():
    """The C library of client/spill.c; the simulated card's pools ask for none."""
    path = Path(spill.LIBRARY)
    if not IS_SIM and not path.exists():
        if shutil.which("make") is None or shutil.which("cc") is None:
            pytest.skip("client/libspill.so is not here, nor a C compiler: make spill elsewhere")
        subprocess.run(["make", "-s", "spill"], cwd=device.ROOT, check=True, timeout=60)
    return path


@pytest.fixture
def no_pool(monkeypatch, built):
    """A pool of this test's own."""
    if IS_SIM:
        monkeypatch.setattr(spill, "LIBRARY", __file__)
    yield
    spill.mine.give_back(device.of_device())
    assert not spill.mine.size, "all of it was given back"


def test_what_finds_no_room_under_a_cap_goes_on_in_host_memory(words, no_pool):
    """Twice, for a pool that was given back must not be fallen back on."""
    cuda = device.of_device()
    warm = torch.full((MIB,), 1, dtype=torch.uint8, device=device.kind()).add_(1)
    warm[::MIB].sum().item()  # these kernels' code comes into the context, and is none of the tensors'
    del warm
    cuda.reset_peak_memory_stats()
    for _ in range(2):
        share = Share(words)
        words[page.W_SPILL] = 512 * MIB
        ask(share, 50, 256 * MIB)
        assert spill.mine.size >= 400 * MIB
        spare = cuda.mem_get_info()[0]
        tensors = [torch.full((64 * MIB,), n, dtype=torch.uint8, device=device.kind()) for n in range(6)]
        device.settled()
        assert spare - cuda.mem_get_info()[0] <= 256 * MIB, "the card has no more of it than its cap"
        assert [int(one[::MIB].sum()) for one in tensors] == [64 * n for n in range(6)]
        tell_memory(words)
        assert words[page.W_SPILLED] >= 100 * MIB and words[page.W_PEAK] <= 257 * MIB
        if not IS_SIM:
            here, there = (device.best_s(one.add_, 1) for one in (tensors[0], tensors[-1]))
            figure("64 MiB in host memory, of the card's own rate", f"{here / there:.1%}")
        del tensors
        ask(share, 0)
        share.wake()
        assert spill.mine.size == 0 and cuda.get_per_process_memory_fraction() == 1.0
        assert not any(tuple(one["segment_pool_id"]) != (0, 0) for one in cuda.memory_snapshot())


@pytest.mark.parametrize("duty", [25, 50])
def test_a_duty_slows_kernels_down_to_its_part(words, duty):
    share, matrix = Share(words), torch.randn(SIZE, SIZE, device=device.kind())

    def steps(count, percent):
        device.settled()
        start = time.monotonic()
        for _ in range(count):
            for _ in range(10):
                matrix @ matrix
            ask(share, percent)
        device.settled()
        return (time.monotonic() - start) / count

    steps(5, FULL)
    alone = steps(40, FULL)
    part = alone / steps(40, duty)
    figure(f"kernels at a duty of {duty} %: of their rate alone", f"{part:.0%}", f"{duty} ± 8 %")
    # The simulated card's kernels are the processor's, which others use as well: told, not judged.
    assert IS_SIM or part == pytest.approx(duty / 100, abs=0.08)


def test_nvml_sees_this_process_and_how_much_it_takes(library):
    held = torch.empty(512 * MIB, dtype=torch.uint8, device=device.kind())
    device.settled()
    assert library.cards()[0] >= device.card().total
    mine = [use for use in library.uses() if use.pid == os.getpid()]
    if not mine:
        pytest.skip(OTHER_PIDS)
    assert mine[0].memory >= held.numel()
