"""The whole on a GPU: a mini cluster of this machine's own GPUs, or of the simulated card, real Slurm.

Needs root and Slurm: `tests/gpu/day.sh E` unpacks one that was packed elsewhere.
"""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import demo_holds, own_gpus
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.spec import MiniSpec
from tests.cluster import carded
from tests.cluster.carded import MIB, CardFleet
from tests.cluster.fleet import mended, wait_for
from tests.gpu import device
from tests.gpu.device import IS_SIM
from tests.gpu.figures import figure
from tests.skips import NO_GPU, ONLY_CUDA

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(500)]

QUANTUM_S, TURNS = (2.0, 2) if IS_SIM else (5.0, 4)
#: Of a GPU's memory each training has so much at its peak: two do not fit together.
PEAK_PART = 0.6
#: Shares are judged on a GPU; the simulated card's kernels are the processor's.
#: A window that begins and ends anywhere has a part of a turn more of one.
EVEN = 0.05 + 1 / (2 * TURNS)


@pytest.fixture(scope="module")
def cluster():
    if why := clusters.missing("local"):
        pytest.skip(why)
    if IS_SIM:
        from tests.device import build

        with carded.card_cluster("slurm-gpu", build.library(), QUANTUM_S) as made:
            yield made
        return
    if not torch.cuda.is_available():
        pytest.skip(NO_GPU)
    name, logs = f"gpu-{os.getpid()}", os.environ.get("GANDIVA_DAY_LOGS", "")
    spec = MiniSpec(name, (own_gpus.node(),), QUANTUM_S, packing=True, real_gpus=True, keep_logs=logs)
    made = MiniCluster.up(spec)
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def fleet(cluster):
    with mended(CardFleet(cluster)) as made:
        yield made


def alone(directory, steps, live, work):
    """The losses of the same training by itself."""
    if IS_SIM:
        from tests.device import build

        return carded.alone(build.library(), directory, steps)
    words = [carded.TRAIN, directory / "alone.json", steps, live, work, directory / "none"]
    subprocess.run([sys.executable, *map(str, words)], env=device.environment(), check=True, timeout=200)
    return json.loads((directory / "alone.json").read_text())


def test_two_trainings_sliced_by_the_whole_slurm(fleet, tmp_path):
    live, work = carded.LIVE, carded.WORK
    if not IS_SIM:
        live, work = 1024 * MIB, int(device.card().total * PEAK_PART)
    names = {"user1": "one", "user2": "two"}
    jobs = {user: fleet.fill(user, name, live, work) for user, name in names.items()}
    wait_for(lambda: fleet.are_there(jobs.values()), "both to begin", 120)
    wait_for(lambda: all(fleet.count("resume", job) for job in jobs.values()), "both to have a turn", 120)
    begin = time.monotonic_ns()
    fleet.wait_suspends(jobs.values(), TURNS, deadline_s=120)
    held, end = dict.fromkeys(jobs.values(), 0), time.monotonic_ns()
    for _, _, job, span in demo_holds.holds_in_events(fleet.events()):
        held[job] = held.get(job, 0) + max(0, min(span[1], end) - max(span[0], begin))
    part = held[jobs["user1"]] / sum(held.values())
    ended = {user: fleet.losses(user, name) for user, name in names.items()}
    for job in jobs.values():
        fleet.wait_ended(job, "COMPLETED")
    short, long = sorted(ended.values(), key=len)
    want = alone(tmp_path, len(long), live, work)
    assert long == want and short == want[: len(short)]
    told = f"{TURNS} turns each and more, {len(short) + len(long)} losses the same, a share of {part:.1%}"
    figure("two trainings that do not fit together, through Slurm", told, "same losses, 50 %")
    assert not [event for event in fleet.events() if event["event"] == "unrestored"]
    assert IS_SIM or abs(part - 0.5) < EVEN


@pytest.mark.skipif(IS_SIM, reason=ONLY_CUDA)
def test_two_of_small_kernels_are_packed_by_slurm(fleet):
    pace = carded.TRAIN.with_name("pace.py")
    script = f"export OUT=$HOME\nexec python {pace} small"
    jobs = [fleet.submit(user, script) for user in ("user1", "user2")]

    def packed():
        rows = {row["job_id"]: row["reason"] for row in fleet.ask("queue")["jobs"]}
        return all(rows.get(job) == "Packed" for job in jobs)

    wait_for(packed, lambda: f"both to be packed: {fleet.ask('queue')}", 180)
    figure("two of small kernels through Slurm", "packed and kept", "packed")
