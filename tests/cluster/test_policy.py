"""A policy decides on a real cluster: its plans become starts, parks, moves and leaves (ADR 0037)."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, mended, own_cluster, said, wait_for
from tests.records import holds_of
from tests.slow import slow

TRAINING = Path(__file__).parents[1] / "node/scripts/attached.py"
QUANTUM_S = 1.0
USERS = ("user1", "user2", "user3")
NODES = ("n1", "n2")
#: A turn is 18 times what a move costs, here or as it was measured: so long a job stays where it is.
MOVE_S, TURN_S = 0.5, 9.0
FAIR_S = 6 * TURN_S


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one GPU, on which gandiva_fair decides."""
    with own_cluster(
        "policy", "v100:2x1", QUANTUM_S, policy="gandiva_fair", moves={"cost_s": MOVE_S}
    ) as made:
        for user in USERS:
            made.path(f"/home/{user}/{TRAINING.name}").write_text(TRAINING.read_text())
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[Fleet]:
    """At the end all jobs have ended and the books are whole."""
    with mended(Fleet(cluster)) as made:
        yield made


def train(fleet: Fleet, user: str) -> int:
    """Submit a training that can be moved, and ends when it is told to."""
    return fleet.submit(user, f"export OUT=~\nexec python {TRAINING.name} 20 1000000")


def lines(fleet: Fleet, user: str, job: int) -> list[str]:
    """What a training has written."""
    path = fleet.home(user, f"loss.{job}")
    return path.read_text().splitlines() if path.exists() else []


def held_s(fleet: Fleet) -> dict[int, float]:
    """GPU time of each job so far, by the nodes' own event logs."""
    found: dict[int, float] = {}
    for node in NODES:
        for hold in holds_of(fleet.events(node), time.monotonic_ns()):
            found[hold.job_id] = found.get(hold.job_id, 0.0) + (hold.t1_ns - hold.t0_ns) / 1e9
    return found


def story(fleet: Fleet, job: int) -> str:
    """What has happened to a job."""
    return said(fleet.mini, "why", str(job), "--story")


def end(fleet: Fleet, jobs: dict[str, int]) -> None:
    """Let all end; what they computed is what nobody touched would have."""
    for user, job in jobs.items():
        fleet.home(user, f"stop.{job}").touch()
    for user, job in jobs.items():
        fleet.wait_ended(job, "COMPLETED", deadline_s=90)
        *found, last = lines(fleet, user, job)
        loss = 1
        for number, line in enumerate(found):
            loss = loss * 48271 % 2147483647
            assert line == f"{number} {loss}"
        assert last == "end"


def test_three_users_share_two_nodes_by_turns_and_moves(fleet: Fleet) -> None:
    jobs = {user: train(fleet, user) for user in USERS}

    def is_shared() -> bool:
        """By turns alone the two that live together have 0.75 of a third; parts are even over some moves.

        How even, and how soon, is shown in virtual time: here a move takes as long as the machine is slow,
        and a turn 18 times that.
        """
        held = held_s(fleet)
        parts = [held.get(job, 0.0) for job in jobs.values()]
        return sum(parts) >= FAIR_S and min(parts) >= 0.7 * sum(parts) / 3

    wait_for(is_shared, lambda: f"each to have its part of two GPUs: {held_s(fleet)}", 180)
    wait_for(lambda: any("MovedOut" in story(fleet, job) for job in jobs.values()), "a job to be moved", 180)
    end(fleet, jobs)


@slow("50 s; tests/unit/test_led_owners.py has the rules, on a small Slurm")
def test_a_virtual_cluster_has_its_gpu_beside_one_whose_jobs_share(
    cluster: MiniCluster, fleet: Fleet
) -> None:
    files = {name: (cluster.at.etc / name).read_text() for name in ("gandiva.yaml", "job_submit.lua")}
    owned = files["gandiva.yaml"] + "virtual_clusters: {a: {v100: 1}, b: {v100: 1}}\n"
    (cluster.at.etc / "gandiva.yaml").write_text(owned)
    known = files["job_submit.lua"].replace("nodes_gpus =", 'vcs = {"a", "b"}, nodes_gpus =')
    (cluster.at.etc / "job_submit.lua").write_text(known)
    cluster.kill("gandivactld", signal.SIGHUP)
    try:
        script = f"export OUT=~\nexec python {TRAINING.name} 20 1000000"
        # b's owner comes last: one of a's has borrowed its GPU, and leaves it, begun or not.
        vcs = zip(USERS, ("a", "a", "b"), strict=True)
        jobs = {user: fleet.submit(user, script, f"--gandiva-vc={vc}") for user, vc in vcs}
        wait_for(
            lambda: all(lines(fleet, user, job) for user, job in jobs.items()),
            lambda: f"all to train: {[fleet.ask('why', str(job)) for job in jobs.values()]}",
            90,
        )
        before = held_s(fleet)

        def parts() -> list[float]:
            return [held_s(fleet)[job] - before[job] for job in jobs.values()]

        # What one of a's had of b's GPU before b's came may take two seconds of it.
        wait_for(lambda: sum(parts()) >= 100, "50 s of two GPUs", 180)
        one, other, alone = parts()
        assert alone >= 0.9 * (one + other), (one, other, alone)
        end(fleet, jobs)
    finally:
        for name, text in files.items():
            (cluster.at.etc / name).write_text(text)
        cluster.kill("gandivactld", signal.SIGHUP)


@slow("60 s; what a policy does to gangs over nodes is in test_apply, and test_spans has them on real nodes")
def test_a_gang_over_both_nodes_has_its_turns_beside_a_job_of_one(fleet: Fleet) -> None:
    script = f"export OUT=~\nsrun --kill-on-bad-exit sh -c 'exec python {TRAINING.name} 20 1000000'"
    gang = fleet.submit("user1", script, "-N2", "--ntasks-per-node=1")
    single = train(fleet, "user2")

    def is_fair() -> bool:
        held = held_s(fleet)
        total = held.get(gang, 0.0) + held.get(single, 0.0)
        return total >= FAIR_S and 0.3 <= held.get(single, 0.0) / total <= 0.6

    wait_for(is_fair, "turns of both", 240)
    fleet.mini.exec(["scancel", str(gang)])
    end(fleet, {"user2": single})


def test_jobs_train_on_while_the_controller_is_dead_and_it_leads_again(fleet: Fleet) -> None:
    jobs = {user: train(fleet, user) for user in USERS}
    wait_for(lambda: all(lines(fleet, user, job) for user, job in jobs.items()), "all to train", 90)
    fleet.mini.kill("gandivactld")
    before = {user: len(lines(fleet, user, job)) for user, job in jobs.items()}
    wait_for(
        lambda: any(len(lines(fleet, user, job)) > before[user] + 50 for user, job in jobs.items()),
        "some to train without a controller",
    )
    fleet.start_dead()
    held = held_s(fleet)
    wait_for(
        lambda: all(held_s(fleet).get(job, 0.0) > held.get(job, 0.0) + 1 for job in jobs.values()),
        "a turn for each under the next controller",
        120,
    )
    end(fleet, jobs)
    told = replayed(fleet)
    assert told["segments"] >= 2 and told["equal"] and told["first"] is None, told


@slow("35 s; controller/test_controller_rounds has a Slurm that hangs")
def test_parked_jobs_have_turns_while_slurmctld_hangs(cluster: MiniCluster, fleet: Fleet) -> None:
    """gandivactld cannot decide; nodes are told to go by their own strides, until it can again.

    Killed, slurmctld would forget starts of the last seconds, and run jobs again that have ended since.
    """
    jobs = {user: train(fleet, user) for user in USERS}
    wait_for(lambda: all(lines(fleet, user, job) for user, job in jobs.items()), "all to train", 90)

    def shared() -> tuple[str, list[int]] | None:
        """A node on which two of them live."""
        rows = [row for row in fleet.ask("queue")["jobs"] if row["state"] in ("RUNNING", "SUSPENDED")]
        here = {node: [row["job_id"] for row in rows if row["node"] == node] for node in NODES}
        return next(((node, both) for node, both in here.items() if len(both) == 2), None)

    def halted() -> tuple[str, list[int]] | None:
        """Such a node, and slurmctld stands still: none of the two has been told to move meanwhile."""
        if not (found := shared()):
            return None
        fleet.mini.kill("slurmctld", signal.SIGSTOP)
        if shared() == found:
            return found
        fleet.mini.kill("slurmctld", signal.SIGCONT)
        return None

    begun = len(log_of(cluster))
    try:
        node, both = wait_for(halted, "two to live on one node", 90)
        wait_for(lambda: "go by their own strides" in log_of(cluster)[begun:], "nodes to have the turns", 60)
        fleet.wait_suspends(both, 2, node)
    finally:
        fleet.mini.kill("slurmctld", signal.SIGCONT)
    wait_for(lambda: "the policy decides again" in log_of(cluster)[begun:], "the policy to decide again", 60)
    end(fleet, jobs)


def test_another_policy_takes_over_at_a_reload_and_no_job_is_started_again(
    cluster: MiniCluster, fleet: Fleet
) -> None:
    job = train(fleet, "user1")
    wait_for(lambda: lines(fleet, "user1", job), "it to train")
    file = cluster.at.etc / "gandiva.yaml"
    text = file.read_text()
    try:
        for name, told in (("fifo", "policy fifo decides"), ("no-such", "there is no policy 'no-such'")):
            file.write_text(text.replace("policy: gandiva_fair", f"policy: {name}"))
            cluster.kill("gandivactld", signal.SIGHUP)
            wait_for(lambda told=told: told in log_of(cluster), told)
        before = len(lines(fleet, "user1", job))
        wait_for(lambda: len(lines(fleet, "user1", job)) > before + 50, "it to train on")
    finally:
        file.write_text(text)
        cluster.kill("gandivactld", signal.SIGHUP)
    assert cluster.exec(["scontrol", "show", "job", str(job)]).stdout.count("Restarts=0")
    end(fleet, {"user1": job})


def replayed(fleet: Fleet) -> dict[str, Any]:
    """What `gandiva replay` says of the journal of the running controller."""
    path = str(fleet.mini.at.spool / "gandivactld" / "journal.sqlite")
    told: dict[str, Any] = json.loads(fleet.mini.exec(["gandiva", "replay", path, "--json", "-"]).stdout)
    return told


def log_of(cluster: MiniCluster) -> str:
    """What gandivactld has logged."""
    return cluster.log("gandivactld").read_text(errors="replace")
