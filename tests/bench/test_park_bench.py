"""A gang of two ranks is parked 400 times: re-aims, and how long a park takes beyond its mini-batches.

A park is aimed `margin` boundaries ahead and waits for the mini-batch under way, too: that is the script's
time, not ours. What is left must be at most 50 ms for 99 in 100. Measured on a machine that others use as
well, so that its load is told; steps take 5 ms besides what they compute.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gandiva_slurm.wire.page import W_LAST_NS, W_SEQ
from tests.park_harness import Harness

ROOT = Path(__file__).resolve().parents[2]
PARKS, WORLD, STEP_MS = 400, 2, 5
MOST_REAIMS, MOST_BEYOND_MS = PARKS // 20, 50.0


@pytest.fixture
def gang(tmp_path):
    """Two ranks of DistributedDataParallel that train until the end, and their node."""
    node = Harness(str(tmp_path / "node"), WORLD)
    argv = [sys.executable, str(ROOT / "tests/park_train.py"), "--steps", "1000000000", "--mark", "steps"]
    argv += ["--step-ms", str(STEP_MS), "--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GANDIVA_SOCKET": str(tmp_path / "node")}
    env |= {"GANDIVA_TIER": "hold", "WORLD_SIZE": str(WORLD)}
    ranks = [subprocess.Popen(argv, env=env | {"RANK": str(rank)}) for rank in range(WORLD)]
    try:
        node.serve()
        yield node
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        node.close()


def pass_boundaries(gang, count):
    """Wait until every rank has passed so many more; return the pages before and behind."""
    first = gang.views()
    goals = [view[W_SEQ] + count for view in first]
    gang.wait(
        lambda: all(view[W_SEQ] >= goal for view, goal in zip(gang.views(), goals, strict=True)),
        "training to go on",
        between=gang.tick,
    )
    return zip(first, gang.views(), strict=True)


def train_on(gang, boundaries):
    """Let it train so far; return the mean time between two boundaries of its slowest rank, ms."""
    pass_boundaries(gang, 1)  # the first after a park began before it
    pages = pass_boundaries(gang, boundaries)
    return max((now[W_LAST_NS] - was[W_LAST_NS]) / (now[W_SEQ] - was[W_SEQ]) for was, now in pages) / 1e6


def part(values, hundredths):
    """The value that so many hundredths do not exceed."""
    return sorted(values)[min(len(values) - 1, len(values) * hundredths // 100)]


def figures(values):
    return f"p50 {part(values, 50):.1f} p99 {part(values, 99):.1f} max {max(values):.1f}"


def test_four_hundred_parks(gang):
    chance, parks, beyond, steps = random.Random(4), [], [], []
    found, load = gang.gang, os.getloadavg()[0]
    for _ in range(PARKS):
        steps.append(train_on(gang, chance.randint(4, 12)))
        time.sleep(chance.random() * STEP_MS / 1000)  # a park begins anywhere within a mini-batch
        took_ms = gang.park() * 1000
        assert found.phase == "parked", found.last_error
        parks.append(took_ms)
        beyond.append(took_ms - (found.margin + 1) * steps[-1])
        gang.resume()
    print(f"\n{PARKS} parks of {WORLD} ranks, mini-batches of {part(steps, 50):.1f} ms, load {load:.1f}")
    print(f"park {figures(parks)} ms; beyond (margin + 1) mini-batches {figures(beyond)} ms")
    print(f"re-aims {found.reaims}, failed {found.failed_parks}")
    assert found.reaims < MOST_REAIMS and found.failed_parks == 0
    assert part(beyond, 99) <= MOST_BEYOND_MS
