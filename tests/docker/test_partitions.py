"""Nodes cut off from the network under running jobs: for a moment, and for longer than Slurm waits.

Nothing on such a node ends by itself: its daemons and jobs live on, and hear nobody. Times of all machines
are of one clock here, so that what the nodes noted can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster import fleet as fleets
from tests.cluster.fleet import Fleet, mended, wait_for
from tests.cluster.sharing import LIGHT, counted
from tests.records import Held, holds_of, open_grants

LIGHT_GANG = Path(fleets.__file__).with_name("light_gang.py")
GANG = """\
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID)) WORLD_SIZE=$SLURM_NTASKS
srun sh -c 'RANK=$SLURM_PROCID exec python light_gang.py gang-${SLURM_RESTART_COUNT:-0} gang.stop'
"""
#: Longer than gandivactld waits for an answer, shorter than Slurm (SlurmdTimeout, 15 s).
SHORT_CUT_S = 8.0
#: A node freezes its jobs after 15 s (`isolation`). Slurm sees a silent node some 12 s after SlurmdTimeout;
#: then jobs are placed anew.
LOST_S, PLACED_S = 60.0, 60.0
#: Until a gang's connection that was cut sends again, and its node is asked again.
MENDED_S = 60.0


@pytest.fixture
def fleet(mini: MiniCluster) -> Iterator[Fleet]:
    """The suite's cluster for one test's own jobs."""
    made = Fleet(mini)
    # A slurmctld that another test killed may have forgotten that a job had ended: it would start it again.
    mini.exec(["scancel", "--partition=gandiva"])
    wait_for(lambda: not mini.exec(["squeue", "-h"]).stdout, "jobs of other tests to be gone")
    for user in ("user1", "user2", "user3"):
        made.home(user, "light.py").write_text(LIGHT)
        made.home(user, "light_gang.py").write_text(LIGHT_GANG.read_text())
        for pattern in ("*.count", "*.stop", "*.steps"):
            for old in made.home(user).glob(pattern):
                old.unlink()
    wait_for(lambda: {row["state"] for row in made.ask("nodes")["nodes"]} == {"up"}, "all nodes to answer")
    with mended(made):
        yield made


@contextmanager
def cut_off(fleet: Fleet, node: str) -> Iterator[float]:
    """The node has no network; yields when that began."""
    fleet.mini.cut(node)
    try:
        yield time.monotonic()
    finally:
        fleet.mini.mend(node)


def light(fleet: Fleet, user: str, gpu_type: str, gpus: int = 1) -> int:
    """Submit a job that counts its steps in a file."""
    flags = (f"--gandiva-gpu-types={gpu_type}", "--job-name=light")
    return fleet.submit(user, "exec python light.py light.count light.stop", *flags, gpus=gpus)


def gang(fleet: Fleet) -> int:
    """Submit user1's gang of one GPU on each of two nodes."""
    flags = ("--nodes=2", "--ntasks-per-node=1", "--gandiva-gpu-types=v100", "--output=gang.out")
    return fleet.submit("user1", GANG, *flags)


def gang_steps(fleet: Fleet, restart: int = 0) -> int:
    """How many steps its first rank has logged."""
    return fleet.steps("user1", f"gang-{restart}")


def node_row(fleet: Fleet, node: str) -> dict[str, Any]:
    """The node in `gandiva nodes`."""
    return next(row for row in fleet.ask("nodes")["nodes"] if row["node"] == node)


def queue_row(fleet: Fleet, job: int) -> dict[str, Any]:
    """The job in `gandiva queue`."""
    return next((row for row in fleet.ask("queue")["jobs"] if row["job_id"] == job), {})


def holds(fleet: Fleet, node: str, job: int) -> list[Held]:
    """What a job held on a node and has given back, by the node's own log."""
    return [hold for hold in holds_of(fleet.events(node)) if hold.job_id == job]


def wait_until(moment_s: float) -> None:
    """Let the time go by."""
    wait_for(lambda: time.monotonic() >= moment_s, "the time to go by", moment_s - time.monotonic() + 5)


def wait_frozen(fleet: Fleet, job: int, node: str) -> None:
    """Wait until a node that is cut off has frozen a job; if it does not, tell what its gandivad says."""
    try:
        wait_for(lambda: fleet.count("halt", job, node), f"job {job} to be frozen", LOST_S)
    except AssertionError as err:
        said = fleet.mini.log(f"gandivad:{node}").read_text()[-2000:]
        raise AssertionError(f"{err}; gandivad says:\n{said}") from err


def wait_turns(fleet: Fleet, jobs: dict[int, str], more: int = 2) -> None:
    """Wait until each job has been parked so often on its node from now on."""
    begin = {job: fleet.count("parked", job, node) for job, node in jobs.items()}
    for job, node in jobs.items():
        fleet_has = f"{more} parks of job {job} on {node}"
        wait_for(lambda j=job, n=node: fleet.count("parked", j, n) >= begin[j] + more, fleet_has, 60)


def check_accounts(fleet: Fleet, job: int, *nodes: str) -> None:
    """An ended job's GPU time in `gandiva acct` is what its nodes noted, cut off or not."""
    def noted_s() -> float:
        mine = [hold for node in nodes for hold in holds(fleet, node, job)]
        return sum((hold.t1_ns - hold.t0_ns) * len(hold.gpus) for hold in mine) / 1e9

    def told_s() -> float:
        (row,) = fleet.ask("acct", "-a", "-j", str(job))["jobs"]
        return float(row["gpu_held_s"])

    wait_for(lambda: abs(told_s() - noted_s()) < 0.1, f"{noted_s()} s of job {job} in acct, not {told_s()}")


def end(fleet: Fleet, *jobs: int) -> None:
    """Cancel, and wait until nothing is left."""
    fleet.mini.exec(["scancel", *map(str, jobs)])
    for job in jobs:
        fleet.wait_ended(job, "CANCELLED")
    wait_for(lambda: not fleet.strays(), lambda: f"their processes to end: {fleet.strays()}")
    for node in fleet.mini.spec.nodes:
        wait_for(lambda node=node: not open_grants(fleet.events(node.name)), f"{node.name} to be free")


def test_jobs_go_on_on_a_node_that_is_cut_off_for_a_moment(fleet: Fleet) -> None:
    """Its jobs train on by its own stride. Slurm notices nothing; it is said to be silent."""
    jobs = [light(fleet, user, "k80") for user in ("user1", "user2")]
    wait_turns(fleet, dict.fromkeys(jobs, "n3"))

    def steps() -> int:
        return sum(counted(fleet, user, "light") for user in ("user1", "user2"))

    with cut_off(fleet, "n3") as began_s:
        before = steps()
        row = wait_for(lambda: (row := node_row(fleet, "n3"))["state"] == "silent" and row, "it to be silent")
        assert row["reason"] and {item["job_id"] for item in row["residents"]} == set(jobs), row
        for job in jobs:
            evidence = fleet.ask("why", str(job))["evidence"]
            assert any(line.startswith("gandivad on n3 does not answer: ") for line in evidence), evidence
        wait_until(began_s + SHORT_CUT_S)
        assert steps() > before + 100
    wait_for(lambda: node_row(fleet, "n3")["state"] == "up", "it to answer again")
    wait_turns(fleet, dict.fromkeys(jobs, "n3"))
    assert [fleet.slurm_state(job) for job in jobs] == ["RUNNING"] * 2
    assert {queue_row(fleet, job)["restart"] for job in jobs} == {0}
    end(fleet, *jobs)
    for job in jobs:
        check_accounts(fleet, job, "n3")


def test_a_gang_goes_on_after_one_of_its_nodes_was_cut_off_for_a_moment(fleet: Fleet) -> None:
    """Its ranks cannot reach each other meanwhile: it stays where it is, and takes turns again afterwards."""
    job, other = gang(fleet), light(fleet, "user2", "v100", 2)
    home = wait_for(lambda: queue_row(fleet, other).get("node"), "the other job's node")
    wait_turns(fleet, {job: home, other: home})
    wait_for(lambda: (job, 0) in open_grants(fleet.events("n2")), "the gang to be on")
    with cut_off(fleet, "n2") as began_s:
        wait_for(lambda: node_row(fleet, "n2")["state"] == "silent", "n2 to be silent")
        evidence = fleet.ask("why", str(job))["evidence"]
        assert any(line.startswith("gandivad on n2 does not answer: ") for line in evidence), evidence
        wait_until(began_s + SHORT_CUT_S)
    steps, more = gang_steps(fleet), counted(fleet, "user2", "light")
    wait_for(lambda: gang_steps(fleet) > steps + 20, "the gang to go on", MENDED_S)
    wait_for(lambda: counted(fleet, "user2", "light") > more + 20, "the other job to go on", MENDED_S)
    wait_turns(fleet, {job: home, other: home})
    assert queue_row(fleet, job)["restart"] == 0
    end(fleet, job, other)
    check_accounts(fleet, job, "n1", "n2")


def test_jobs_frozen_on_a_node_that_comes_back_go_on_or_are_started_anew(fleet: Fleet) -> None:
    """Each goes on where it was, or, if Slurm had given the node up by then, as its next incarnation."""
    jobs = [light(fleet, user, "k80") for user in ("user1", "user2")]
    wait_turns(fleet, dict.fromkeys(jobs, "n3"))
    with cut_off(fleet, "n3"):
        for job in jobs:
            wait_frozen(fleet, job, "n3")
    fleet.mini.exec(["scontrol", "update", "NodeName=n3", "State=RESUME"], check=False)

    def is_told(job: int) -> bool:
        return fleet.count("unhalt", job, "n3") + fleet.count("ended", job, "n3") > 0

    for job in jobs:
        wait_for(lambda job=job: is_told(job), f"job {job} to go on, or to end", LOST_S)
    wait_turns(fleet, dict.fromkeys(jobs, "n3"))
    for job in jobs:
        # A word of a moment before may have let it go on, and have been taken back.
        ours = [event for event in fleet.events("n3") if (event.get("job"), event.get("restart")) == (job, 0)]
        went_on = [e["event"] for e in ours if e["event"] in ("unhalt", "ended")][-1] == "unhalt"
        assert queue_row(fleet, job)["restart"] == (0 if went_on else 1)
    end(fleet, *jobs)
    for job in jobs:
        check_accounts(fleet, job, "n3")


class LongCut:
    """A gang over n1 and n2 and a job beside it on each, when n2 is cut off for longer than Slurm waits."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.gang = gang(fleet)
        fleet.wait_running(self.gang)
        two = {}
        for user in ("user2", "user3"):
            two[user] = light(fleet, user, "v100", 2)
            fleet.wait_running(two[user])
        homes = {queue_row(fleet, job)["node"]: (user, job) for user, job in two.items()}
        assert homes.keys() == {"n1", "n2"}, homes
        self.stays_user, self.stays = homes["n1"]
        self.lost_user, self.lost = homes["n2"]

    def wait_all_turns(self) -> None:
        """All three take turns."""
        wait_turns(self.fleet, {self.gang: "n2", self.stays: "n1", self.lost: "n2"})

    def during(self) -> None:
        """Slurm gives n2 up; its job goes on beside the other one, the gang waits for n2."""
        fleet = self.fleet
        wait_for(lambda: node_row(fleet, "n2")["state"] == "down", "n2 to be down", LOST_S)
        was = counted(fleet, self.stays_user, "light")
        wait_for(lambda: counted(fleet, self.stays_user, "light") > was + 20, "n1's own job", PLACED_S)
        wait_turns(fleet, {self.stays: "n1", self.lost: "n1"})
        wait_for(lambda: queue_row(fleet, self.gang).get("reason") == "NodesDown", "its reason", PLACED_S)
        told = fleet.ask("why", str(self.gang))
        assert any(line.startswith("n2: ") for line in told["evidence"]), told
        assert queue_row(fleet, self.lost)["restart"] == 1

    def check_old(self) -> None:
        """What lived on n2 ended, and held nothing once its next incarnation held something."""
        fleet = self.fleet
        for job, next_node in ((self.gang, "n1"), (self.lost, "n1")):
            old = [hold for hold in holds(fleet, "n2", job) if hold.restart == 0]
            new = [line for line in fleet.events(next_node)
                   if line["event"] == "grant" and (line["job"], line["restart"]) == (job, 1)]
            assert old[-1].t1_ns < new[0]["mono_ns"]


def test_jobs_of_a_node_cut_off_for_long_run_elsewhere_and_one_incarnation_at_a_time(fleet: Fleet) -> None:
    """n2 freezes what it has before it may work elsewhere, and tells afterwards what that held until then."""
    at = LongCut(fleet)
    at.wait_all_turns()
    wait_for(lambda: (at.gang, 0) in open_grants(fleet.events("n2")), "the gang to be on")
    with cut_off(fleet, "n2"):
        at.during()
        last_ns = fleet.events("n2")[-1]["mono_ns"]
    # By itself Slurm asks a node that is down only at every twentieth ping.
    fleet.mini.exec(["scontrol", "update", "NodeName=n2", "State=RESUME"], check=False)
    wait_for(lambda: node_row(fleet, "n2")["state"] == "up", "n2 to be back", MENDED_S)
    wait_for(lambda: gang_steps(fleet, 1) > 20, "the gang to go on", MENDED_S)
    wait_turns(fleet, {at.gang: "n2"})
    assert not [e for e in fleet.events("n2") if e["mono_ns"] > last_ns and e["event"] == "grant"
                and e.get("restart") == 0]
    end(fleet, at.gang, at.stays, at.lost)
    at.check_old()
    for job in (at.gang, at.stays, at.lost):
        check_accounts(fleet, job, "n1", "n2")
