"""Two jobs of a real Slurm on one GPU: packed where both gain by it, by turns where they do not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gandiva_slurm.engine import invariants
from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, asked, own_cluster, said, wait_for
from tests.cluster.sharing import LIGHT
from tests.records import holds_of
from tests.slow import slow

QUANTUM_S = 1.0
#: Alone first, then a trial, then the verdict; beside others' load.
VERDICT_S = 90.0

#: A step that fills what there is one of, as a kernel that fills the GPU: with another it is longer than two
#: by turns. A core would do on an idle machine; on a busy one two processes get more of it than one.
HEAVY = """
import fcntl, os, sys, time
import gandiva_slurm as gandiva
core = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
while not os.path.exists(sys.argv[1]):
    try:
        fcntl.flock(core, fcntl.LOCK_EX | fcntl.LOCK_NB)
        took = 0.02
    except BlockingIOError:
        fcntl.flock(core, fcntl.LOCK_EX)
        took = 0.03
    time.sleep(took)
    fcntl.flock(core, fcntl.LOCK_UN)
    gandiva.step()
"""


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """One GPU, and a controller that packs."""
    with own_cluster("packing", "v100:1x1", QUANTUM_S, packing={"enabled": True}) as made:
        for user in ("user1", "user2"):
            made.path(f"/home/{user}/light.py").write_text(LIGHT)
            made.path(f"/home/{user}/heavy.py").write_text(HEAVY)
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[Fleet]:
    """The cluster's users; every job ends and the books are whole."""
    fleet = Fleet(cluster)
    try:
        yield fleet
    finally:
        fleet.finish()


def check_packs(fleet: Fleet) -> None:
    """Both of a pack say so for as long, by the node's own log."""
    assert invariants.packs_are_of_two(holds_of(fleet.events())) == []


def codes(fleet: Fleet, job: int) -> list[str]:
    """The reasons of its story, oldest first; none before the controller has seen it."""
    told = asked(fleet.mini, "why", str(job), "--story", "--json")
    return [line["code"] for line in json.loads(told.stdout)["story"]] if told.returncode == 0 else []


def queue_row(fleet: Fleet, job: int) -> dict:
    """Its line of `gandiva queue`; before the controller has seen it, one without a reason."""
    rows = (row for row in fleet.ask("queue")["jobs"] if row["job_id"] == job)
    return next(rows, {"reason": "", "detail": ""})


def accounts(fleet: Fleet, *jobs: int) -> dict[int, dict[str, Any]]:
    """Their rows of `gandiva acct`; the nodes' last holds come to it some time after a job's end."""
    rows = fleet.ask("acct", "-a", "-j", ",".join(map(str, jobs)))["jobs"]
    return {row["job_id"]: row for row in rows}


def test_two_that_mostly_wait_are_packed_kept_and_accounted_for(fleet: Fleet) -> None:
    one, two = (fleet.submit(user, "exec python light.py count stop") for user in ("user1", "user2"))
    wait_for(lambda: "PackTrial" in codes(fleet, one), "a trial", VERDICT_S)
    wait_for(lambda: f"with job {two}" in queue_row(fleet, one)["detail"], "it to say with whom", VERDICT_S)
    wait_for(lambda: queue_row(fleet, one)["reason"] == "Packed", "the pair to be kept", VERDICT_S)
    wait_for(lambda: queue_row(fleet, two)["reason"] == "Packed", "the other to say so")
    (node,) = [row for row in fleet.ask("nodes")["nodes"] if row["node"] == "n1"]
    (pack,) = node["packs"]
    assert (pack["jobs"], pack["trial"]) == ([one, two], False)
    assert pack["gain"] > 1.05
    told = fleet.ask("why", str(one))
    assert any("alone" in line and "packed" in line for line in told["evidence"]), told
    for user in ("user1", "user2"):
        fleet.home(user, "stop").touch()
    for job in (one, two):
        fleet.wait_ended(job, "COMPLETED")
    wait_for(lambda: not fleet.holders("n1"), "the node to have noted their last holds")
    shared = (hold for hold in holds_of(fleet.events()) if hold.shared_with == one)
    packed_s = sum(hold.t1_ns - hold.t0_ns for hold in shared) / 1e9
    assert packed_s > 3
    rows = wait_for(
        lambda: (found := accounts(fleet, one, two))
        and all(row["gpu_packed_s"] == pytest.approx(packed_s, abs=1.0) for row in found.values())
        and found,
        lambda: f"both to be accounted for {packed_s:.1f} s: {accounts(fleet, one, two)}",
    )
    assert rows[one]["packed_with"] == [two]
    assert rows[one]["gpu_held_s"] >= rows[one]["gpu_packed_s"] / 2
    line = said(fleet.mini, "acct", "-a", "-n", "-P", "-j", str(one), "-o", "GpuPacked,PackedWith").strip()
    assert line.split("|")[1] == str(two)
    assert line.split("|")[0] != "00:00:00"
    check_packs(fleet)


@slow("40 s; unit/test_led_packs has the verdicts")
def test_two_that_are_in_each_others_way_are_undone_and_not_tried_again(fleet: Fleet) -> None:
    one, two = (fleet.submit("user1", "exec python heavy.py heavy.stop core") for _ in range(2))
    wait_for(lambda: "PackUndone" in codes(fleet, one), "the pair to be undone", 2 * VERDICT_S)
    parks = fleet.count("parked", one)
    wait_for(lambda: fleet.count("parked", one) > parks + 3, "turns again", 60)
    story = codes(fleet, one)
    assert "PackTrial" not in story[story.index("PackUndone") :], story
    assert queue_row(fleet, two)["reason"] in ("Running", "Parked", "Parking", "Resuming")
    (node,) = [row for row in fleet.ask("nodes")["nodes"] if row["node"] == "n1"]
    assert node["packs"] == []
    check_packs(fleet)


@slow("40 s; unit/test_led_packs has what a policy's pairs are told and asked")
def test_a_policy_packs_two_of_a_user_and_says_so(slurm_here: None) -> None:
    """The second waits for the first one's GPU; both gain by having it together."""
    packing, moves = {"enabled": True}, {"cost_s": 0.5}
    with own_cluster(
        "packs", "v100:1x1", QUANTUM_S, policy="gandiva_fair", packing=packing, moves=moves
    ) as cluster:
        cluster.path("/home/user1/light.py").write_text(LIGHT)
        fleet = Fleet(cluster)
        one, two = (fleet.submit("user1", "exec python light.py count stop") for _ in range(2))
        wait_for(lambda: queue_row(fleet, one)["reason"] == "Packed", "the pair to be kept", VERDICT_S)
        (node,) = fleet.ask("nodes")["nodes"]
        (pack,) = node["packs"]
        assert (pack["jobs"], pack["trial"]) == ([one, two], False) and pack["gain"] > 1.05
        assert any("packed" in line for line in fleet.ask("why", str(one))["evidence"])
        fleet.home("user1", "stop").touch()
        for job in (one, two):
            fleet.wait_ended(job, "COMPLETED")
        check_packs(fleet)
        fleet.finish()


@slow("25 s; that it is not packed is in unit/test_led_packs")
def test_who_said_never_is_left_alone(fleet: Fleet) -> None:
    one = fleet.submit("user1", "exec python light.py count never.stop", "--gandiva-pack=never")
    two = fleet.submit("user2", "exec python light.py count never.stop")
    fleet.wait_suspends(two, 12)
    assert "PackTrial" not in codes(fleet, one) + codes(fleet, two)
