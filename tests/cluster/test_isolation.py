"""Nodes that Slurm does not hear, on a real Slurm: what is frozen, and what becomes of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import LIGHT, Fleet, own_cluster, wait_for
from tests.slow import slow, soak

#: As long as `isolation` of a mini cluster, and longer than a node then works on.
SILENCE_S, LONG_S = 15, 25.0
#: Slurm sees a silent node some 12 s after SlurmdTimeout (15 s), and gandivad asks it once a second by then.
GIVEN_UP_S = 90.0


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one GPU."""
    with own_cluster("isolation", "v100:1x1,k80:1x1", 0.5) as made:
        yield made


def light(fleet: Fleet, user: str, gpu_type: str) -> int:
    """A job that notes its steps, seen at work."""
    fleet.home(user, "light.py").write_text(LIGHT)
    for left in (fleet.home(user, "light.stop"), *fleet.home(user).glob("light-*.steps")):
        left.unlink(missing_ok=True)
    script = "exec python light.py light-$SLURM_RESTART_COUNT.steps light.stop"
    job = fleet.submit(user, script, f"--gandiva-gpu-types={gpu_type}")
    fleet.wait_running(job)
    wait_for(lambda: noted(fleet, user), "it to work")
    return job


def stop_slurmctld(fleet: Fleet) -> None:
    """Stop it in order: killed it might have forgotten a job that has just begun, and would not show it."""
    fleet.mini.kill("slurmctld", signal.SIGTERM)


def noted(fleet: Fleet, user: str, restart: int | str = "") -> list[int]:
    """When an incarnation worked."""
    path = fleet.home(user, f"light-{restart}.steps")
    return [int(line) for line in path.read_text().split()[:-1]] if path.exists() else []


def works_on(fleet: Fleet, user: str, restart: int | str = "") -> None:
    """Wait until it has worked more."""
    before = len(noted(fleet, user, restart))
    wait_for(lambda: len(noted(fleet, user, restart)) > before + 20, "it to work on", 60)


def is_still(fleet: Fleet, user: str) -> bool:
    """True when it has not worked for 2 s: a step takes 5 ms."""
    return time.monotonic_ns() - noted(fleet, user)[-1] > 2_000_000_000


@slow("40 s; the same with a Slurm of hand is in tests/node")
def test_jobs_work_on_while_both_controllers_are_dead_and_all_nodes_answer(fleet: Fleet) -> None:
    """No node hears Slurm, and each hears all the others: nobody can have started anything."""
    first, second = light(fleet, "user1", "v100"), light(fleet, "user2", "k80")
    fleet.mini.kill("gandivactld")
    stop_slurmctld(fleet)
    end_s = time.monotonic() + LONG_S
    wait_for(lambda: time.monotonic() > end_s, "the time to go by", LONG_S + 5)
    for user in ("user1", "user2"):
        works_on(fleet, user)
    assert not fleet.count("halt", first, "n1") and not fleet.count("halt", second, "n2")


@soak("40 s; the same with a controller of hand is in tests/node")
def test_a_job_works_on_while_gandivactld_is_heard_though_no_slurmctld_is_there(fleet: Fleet) -> None:
    job = light(fleet, "user1", "v100")
    fleet.mini.kill("gandivad:n2", signal.SIGSTOP)
    try:
        stop_slurmctld(fleet)
        end_s = time.monotonic() + LONG_S
        wait_for(lambda: time.monotonic() > end_s, "the time to go by", LONG_S + 5)
        works_on(fleet, "user1")
        assert not fleet.count("halt", job)
    finally:
        fleet.mini.kill("gandivad:n2", signal.SIGCONT)


@slow("60 s; the same with a Slurm of hand is in tests/node")
def test_a_job_is_frozen_where_nobody_is_heard_and_goes_on_when_slurm_shows_it(fleet: Fleet) -> None:
    job = light(fleet, "user1", "v100")
    fleet.mini.kill("gandivad:n2", signal.SIGSTOP)
    try:
        before_ns = time.monotonic_ns()
        fleet.mini.kill("gandivactld")
        stop_slurmctld(fleet)
        killed_ns = time.monotonic_ns()
        wait_for(lambda: fleet.count("halt", job), "it to be frozen", 60)
        (halt,) = [event for event in fleet.events() if (event["event"], event.get("job")) == ("halt", job)]
        # Slurm's last word came between the two, through gandivactld or by itself.
        assert (halt["mono_ns"] - before_ns) / 1e9 > SILENCE_S - 3, halt
        assert (halt["mono_ns"] - killed_ns) / 1e9 < SILENCE_S + 1, halt
        wait_for(lambda: is_still(fleet, "user1"), "it to stand still")
        fleet.mini.start_daemon("slurmctld")
        wait_for(lambda: fleet.count("unhalt", job), "Slurm to show it", 60)
        works_on(fleet, "user1")
    finally:
        fleet.mini.kill("gandivad:n2", signal.SIGCONT)
    assert fleet.slurm_state(job) == "RUNNING" and not fleet.count("fence", job)


@soak("90 s; the same with a Slurm of hand is in tests/node")
def test_a_job_ends_when_slurm_has_given_its_node_up(fleet: Fleet) -> None:
    """slurmctld answers the node and does not hear it: in the end it does not show the job there any more."""
    job = light(fleet, "user1", "v100,k80")
    node = fleet.mini.exec(["squeue", "-h", "-j", str(job), "-o", "%N"]).stdout.strip()
    fleet.mini.kill(f"slurmd:{node}", signal.SIGSTOP)
    try:
        fleet.mini.kill("gandivactld")
        wait_for(lambda: fleet.count("fence", job, node), "it to be ended", GIVEN_UP_S)
        fleet.mini.start_daemon("gandivactld")
        wait_for(lambda: noted(fleet, "user1", 1), "its next incarnation to work", 120)
    finally:
        fleet.mini.kill(f"slurmd:{node}", signal.SIGCONT)
    (fence,) = [event for event in fleet.events(node) if event["event"] == "fence"]
    assert "Slurm does not show it on this node any more" in fence["why"]
    assert noted(fleet, "user1")[-1] < noted(fleet, "user1", 1)[0]
    works_on(fleet, "user1", 1)
