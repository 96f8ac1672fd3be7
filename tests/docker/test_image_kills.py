"""A node of ten unmodified trainings with kept images is killed: they go on elsewhere (ADR 0061)."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.node.kept_images import LEAST_NS, PART
from tests.cluster.fleet import Fleet, own_cluster, wait_for
from tests.docker.conftest import require
from tests.docker.moving import OF_IMAGES, SUITE, TRAIN
from tests.docker.test_kept_images import S, end_all, kept, story, trained, wait_trained
from tests.slow import soak

pytestmark = [soak("five minutes and more; test_kept_images has three jobs"), pytest.mark.timeout(1500)]

JOBS, GPUS = 10, 3
USERS = ("user1", "user2", "user3")
#: Of jobs that Slurm does not start again, by its own word.
LOST = ("GONE", "NODE_FAIL")
IMAGED_S, GONE_ON_S = 420.0, 420.0
#: An image is due then, and waits for its job's turn to be parked and for those of nine others.
LATE_S = 60


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two nodes of three GPUs, between which nothing moves by itself."""
    require(SUITE)
    settings = {
        "moves": {"min_run_s": 3600, "cost_s": 60}, "node": {"image_parked": True}, "slots_per_gpu": 6,
    }  # fmt: skip
    with own_cluster("kills", f"v100:2x{GPUS}", 0.5, spec=OF_IMAGES, **settings) as cluster:
        for user in USERS:
            cluster.path(f"/home/{user}/train.py").write_text(TRAIN.read_text())
        yield Fleet(cluster)


def test_ten_jobs_of_a_killed_node_go_on_elsewhere_from_their_last_images(fleet: Fleet) -> None:
    mini = fleet.mini
    mini.exec(["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=later"])
    files: dict[int, Path] = {}
    for number in range(JOBS):
        user, name = USERS[number % len(USERS)], f"killed.{number}"
        script = f"export GANDIVA_AUTO_ATTACH=0\nexec python train.py {name} {10**6} 0.02"
        job = fleet.submit(user, script, "--gandiva-pack=never", "--requeue")
        files[job] = fleet.home(user, name)
    for job in files:
        fleet.wait_running(job, 180)
    for job in files:
        wait_for(lambda job=job: kept(fleet, job), lambda job=job: story(fleet, job), IMAGED_S)
    wait_trained(files, 20)
    mini.exec(["scontrol", "update", "NodeName=n2", "State=RESUME"])
    os.kill(mini.pids["n1"], signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    wait_for(lambda: not on_node(fleet, "n1"), "Slurm to give n1 up", GONE_ON_S)
    on = {job: file for job, file in files.items() if fleet.slurm_state(job) not in LOST}
    assert on, "Slurm has started none of them again"
    for job in on:
        wait_for(
            lambda job=job: fleet.count("restored", job, "n2"), lambda job=job: story(fleet, job), GONE_ON_S
        )
    wait_trained(on, 20)
    for job, file in on.items():
        check(fleet, job, file, killed_ns)
    print(f"{len(on)} of {len(files)} went on")
    end_all(fleet, on)


def on_node(fleet: Fleet, node: str) -> str:
    """The jobs that Slurm has on a node."""
    return fleet.mini.exec(["squeue", "-h", "-w", node, "-o", "%A"]).stdout.strip()


def check(fleet: Fleet, job: int, file: Path, killed_ns: int) -> None:
    """It did again, to the last bit, what it had done since its last image, no older than the interval."""
    steps = trained(file)
    # One that was killed in its rest behind its last image had nothing to do again.
    again = next((at for at in range(1, len(steps)) if steps[at][0] <= steps[at - 1][0]), 0)
    lost = steps[again - 1][0] + 1 - steps[again][0] if again else 0
    (*_, last) = kept(fleet, job)
    interval_ns = max(LEAST_NS, PART * round((last["dump_s"] + last["seal_s"]) * S))
    since_ns = killed_ns - last["mono_ns"]
    print(f"job {job}: {lost} of {steps[again - 1][0] + 1} lost, its image {since_ns / S:.1f} s before")
    assert since_ns <= interval_ns + LATE_S * S
    assert [step for step, _ in steps[again:]] == [*range(steps[again][0], steps[-1][0] + 1)]
    losses: dict[int, str] = {}
    assert all(losses.setdefault(step, loss) == loss for step, loss in steps), "the same to the last bit"
