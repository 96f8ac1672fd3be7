"""Sharing a real GPU: the cap bounds this process and is lifted, the duty slows it down, NVML sees it."""

import os
import time

import pytest
import torch

from gandiva_slurm.client.sharing import FULL, Share, tell_memory
from gandiva_slurm.wire import page
from tests.skips import OTHER_PIDS

pytestmark = pytest.mark.gpu

MIB = 1 << 20


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
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    share = Share(words)
    here = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    cached = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    del cached
    torch.cuda.reset_peak_memory_stats()
    ask(share, FULL, 256 * MIB)
    assert torch.cuda.memory_reserved() < 256 * MIB, "what it had cached is given back"
    tell_memory(words)
    before = words[page.W_OOMS]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    tell_memory(words)
    assert words[page.W_OOMS] == before + 1
    assert words[page.W_LIVE] >= 64 * MIB <= words[page.W_PEAK]
    ask(share, 0)
    torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    assert here.numel()


@pytest.mark.parametrize("duty", [25, 50])
def test_a_duty_slows_kernels_down_to_its_part(words, duty):
    share, matrix = Share(words), torch.randn(4096, 4096, device="cuda")

    def steps(count, percent):
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(count):
            for _ in range(10):
                matrix @ matrix
            ask(share, percent)
        torch.cuda.synchronize()
        return (time.monotonic() - start) / count

    steps(5, FULL)
    alone = steps(40, FULL)
    assert alone / steps(40, duty) == pytest.approx(duty / 100, abs=0.08)


def test_nvml_sees_this_process_and_how_much_it_takes(library):
    held = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    assert library.cards()[0] >= torch.cuda.get_device_properties(0).total_memory
    mine = [use for use in library.uses() if use.pid == os.getpid()]
    if not mine:
        pytest.skip(OTHER_PIDS)
    assert mine[0].memory >= held.numel()
