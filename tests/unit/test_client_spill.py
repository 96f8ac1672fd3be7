"""Spilling: what torch is asked for, in which order, and what the C library asks of the driver."""

import ctypes
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gandiva_slurm.client import spill
from gandiva_slurm.client.device import _has_pools
from gandiva_slurm.client.spill import BLOCK, MIB, SMALL, Spill

SOURCE = Path(spill.__file__).with_name("spill.c")
TOTAL = 16 << 30


class Cuda:
    """A device of 16 GiB that notes what it is asked for."""

    def __init__(self):
        self.asked, self.part, self.segments, self.peak = [], 0.25, [], 3 << 30
        self.fails = False

    def current_device(self):
        return 0

    def get_device_properties(self, device):
        return SimpleNamespace(total_memory=TOTAL)

    def get_per_process_memory_fraction(self, device):
        return self.part

    def set_per_process_memory_fraction(self, part, device):
        self.part = part
        self.asked.append(f"bound {part * TOTAL / MIB:.0f}")

    def max_memory_allocated(self, device):
        return self.peak

    def max_memory_reserved(self, device):
        return self.peak

    def reset_peak_memory_stats(self, device):
        self.peak = 0
        self.asked.append("peak")

    def empty_cache(self):
        self.asked.append("empty")

    def CUDAPluggableAllocator(self, path, alloc, free):
        self.asked.append(f"library {Path(path).name} {alloc} {free}")
        return SimpleNamespace(allocator=lambda: "allocator")

    def MemPool(self, allocator, use_on_oom):
        self.asked.append(f"pool {allocator} {use_on_oom}")
        return SimpleNamespace(id=(0, 7))

    @contextmanager
    def use_mem_pool(self, pool):
        self.asked.append("in")
        yield
        self.asked.append("out")

    def memory_snapshot(self, pool):
        assert pool == (0, 7)
        return self.segments

    def empty(self, size, dtype, device):
        assert (dtype, device) == ("uint8", "cuda:0")
        if self.fails:
            raise RuntimeError("no memory to pin")
        self.asked.append(f"{size // MIB}")
        if size > MIB:
            self.segments.append({"total_size": size, "allocated_size": 0})


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    made = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(empty=made.empty, uint8="uint8", cuda=made))
    library = tmp_path / "libspill.so"
    library.touch()
    monkeypatch.setattr(spill, "LIBRARY", str(library))
    monkeypatch.setattr(spill, "free_bytes", lambda: 64 << 30)
    return made


def test_a_pool_is_made_and_filled_a_block_a_boundary(cuda):
    """Torch bounds the pool with the GPU's memory: the bound goes up before, and stays for what is there."""
    mine = Spill()
    mine.offer(cuda, 2 * BLOCK)
    first = BLOCK // MIB - SMALL
    names = "gandiva_spill_alloc gandiva_spill_free"
    assert cuda.asked == [
        "bound 4608", f"library libspill.so {names}", "pool allocator True",
        "in", *["1"] * SMALL, f"{first}", "out", "peak", f"bound {4096 + first}",
    ]  # fmt: skip
    assert mine.size == first * MIB and mine.pool_id == (0, 7)
    cuda.asked.clear()
    mine.offer(cuda, 2 * BLOCK)
    assert "in" in cuda.asked and "pool allocator True" not in cuda.asked and "1" not in cuda.asked
    cuda.asked.clear()
    mine.offer(cuda, 2 * BLOCK)
    assert not cuda.asked, "less than 32 MiB is missing"


def test_what_is_in_it_is_no_memory_of_the_gpu(cuda):
    mine = Spill()
    mine.offer(cuda, BLOCK)
    assert mine.peak(cuda, [0]) == 3 << 30, "that of before, and not what filling it took"
    cuda.peak, cuda.segments[0]["allocated_size"] = 4 << 30, 200 * MIB
    assert mine.used(cuda) == mine.most == 200 * MIB
    assert mine.peak(cuda, [0]) == (4 << 30) - mine.size, "no more than was reserved there"
    mine.give_back(cuda)
    assert mine.size, "something is in it"
    cuda.segments[0]["allocated_size"] = 0
    mine.give_back(cuda)
    assert mine.size == 0 and mine.pool_id is None and cuda.asked[-1] == "empty"


def test_a_park_moves_what_is_in_our_pool_and_in_no_other(cuda, monkeypatch):
    monkeypatch.setattr("gandiva_slurm.client.device.spill", SimpleNamespace(pool_id=(0, 7)))
    assert not _has_pools([{"segment_pool_id": (0, 0)}, {"segment_pool_id": (0, 7)}])
    assert _has_pools([{"segment_pool_id": (0, 8)}])


@pytest.mark.parametrize("why", ["pin", "library", "host"])
def test_what_cannot_be_is_said_once_and_changes_no_bound(cuda, monkeypatch, capsys, why):
    if why == "pin":
        cuda.fails = True
    elif why == "library":
        monkeypatch.setattr(spill, "LIBRARY", "/nowhere/spill.so")
    else:
        monkeypatch.setattr(spill, "free_bytes", lambda: BLOCK)
    mine = Spill()
    for _ in range(3):
        mine.offer(cuda, 2 * BLOCK)
    assert cuda.part == 0.25 and not mine.size
    told = capsys.readouterr().err
    assert told.count("cannot spill") == (why != "host")
    assert ("make spill" in told) is (why == "library")


DRIVER = """
#include <stdio.h>
#include <stdlib.h>
int cuMemHostAlloc(void **at, size_t size, unsigned flags)
{
    if (size > 1000) return 2;
    *at = malloc(size);
    printf("alloc %zu %u\\n", size, flags);
    return 0;
}
int cuMemFreeHost(void *at) { free(at); puts("free"); fflush(stdout); return 0; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler (make setup installs one)")
def test_the_library_asks_the_driver_for_mapped_memory_and_gives_it_back(tmp_path):
    """Portable and mapped (1 | 2); without a driver, or without memory, there is none."""
    (tmp_path / "driver.c").write_text(DRIVER)
    warn = ["-Wall", "-Wextra", "-Werror"]
    for source, name in ((tmp_path / "driver.c", "libcuda.so.1"), (SOURCE, "libspill.so")):
        argv = ["cc", "-std=gnu11", *warn, "-shared", "-fPIC", "-o", str(tmp_path / name), str(source)]
        subprocess.run(argv, check=True, timeout=60)
    script = (
        "import ctypes, sys; it = ctypes.CDLL(sys.argv[1])\n"
        "it.gandiva_spill_alloc.restype = ctypes.c_void_p\n"
        "size = ctypes.c_size_t; at = it.gandiva_spill_alloc(size(64), 0, None)\n"
        "if at: it.gandiva_spill_free(ctypes.c_void_p(at), size(64), 0, None)\n"
        "print(bool(at), it.gandiva_spill_alloc(size(2000), 0, None))"
    )
    for path, want in ((str(tmp_path), "alloc 64 3\nfree\nTrue None\n"), ("", "False None\n")):
        env = os.environ | {"LD_LIBRARY_PATH": path}
        argv = [sys.executable, "-c", script, str(tmp_path / "libspill.so")]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
        assert done.stdout == want, done.stderr
    assert ctypes.sizeof(ctypes.c_size_t) == 8
