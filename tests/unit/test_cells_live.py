"""`--gandiva-cell` on a cluster: switches and sockets of gandiva.yaml reach policies, and `why` tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gandiva_slurm.engine.engine import EngineSettings
from gandiva_slurm.engine.state.cells import parts_of, told
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import PolicySettings
from gandiva_slurm.policy.registry import make_policy
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SlurmWorld
from gandiva_slurm.sim.truth import Homogeneous
from tests.fake_world import FakeWorld

S = 10**9
CELLS = {"v100": {"switch": 2, "socket": 4}}


def test_parts_are_those_of_the_type_and_no_more_than_the_node_has() -> None:
    assert parts_of(CELLS, "v100", 8) == (2, 4) and parts_of(CELLS, "v100", 1) == (1, 1)
    assert parts_of(CELLS, "k80", 8) == (8, 8) and parts_of({}, "v100", 0) == (1, 1)
    assert parts_of({"v100": {"switch": 2}}, "v100", 8) == (2, 8)
    assert parts_of({"v100": {"socket": 4}}, "v100", 8) == (4, 4)


@pytest.mark.parametrize("name", ["gandiva_fair", "gandiva_market", "tiresias", "fifo"])
def test_gangs_are_as_near_as_they_ask_through_the_engine(name: str) -> None:
    """The simulator refuses a gang that is apart; single jobs that end one by one leave odd GPUs free."""
    specs = [
        Spec(
            n, str(n), f"user{n % 3}", (1, 2, 1, 4)[n % 4], n * 20 * S, length_ns=(90 + 37 * (n % 7)) * S,
            cell=("", "switch", "", "socket")[n % 4],
        )
        for n in range(48)
    ]  # fmt: skip
    settings = PolicySettings(60 * S)
    world = SlurmWorld(settings, make_policy(name, settings)[0])
    cluster = read_cluster("v100:2x8/2/4")
    summary = simulate(Scene(specs, cluster, Homogeneous(), is_checked=True), world).summary()
    assert summary["finished"] == 48
    assert world.engine.settings.cells == CELLS and world.engine.decider.fault == ""


def a_world(cells: dict[str, dict[str, int]]) -> FakeWorld:
    return FakeWorld({"a": 4}, EngineSettings(10 * S, cells=cells))


def test_a_gang_takes_a_whole_switch_and_not_the_first_gpus_that_are_free() -> None:
    for cells, want in ((CELLS, (2, 3)), ({}, (1, 2))):
        world = a_world(cells)
        world.submit("user1", 1)
        world.run(3)
        job = world.submit("user2", 2, cell="switch")
        world.run(3)
        assert world.engine.jobs[job].places == {"a": want}


def test_one_that_no_switch_can_take_is_told_so() -> None:
    world = a_world(CELLS)
    job = world.submit("user1", 3, cell="switch")
    world.run(3)
    record = world.engine.jobs[job]
    assert record.code == "TooWide"
    assert record.text == "asks for 3 GPUs of one switch, the largest that may take it has 2"
    assert world.engine.decider.fault == ""


def test_a_job_that_was_there_before_cells_were_told_stays_and_stops_nobody() -> None:
    world = a_world({})
    world.submit("user1", 1)
    world.run(3)
    job = world.submit("user2", 2, cell="switch")
    world.run(3)
    world.rigid.add(job)
    world.engine.settings = replace(world.engine.settings, cells=CELLS)
    other = world.submit("user3", 1)
    world.run(30)
    assert world.engine.decider.fault == ""
    assert world.engine.jobs[job].places == {"a": (1, 2)} and world.engine.jobs[other].is_placed


def test_why_tells_the_cell_and_where_none_is_known() -> None:
    world = a_world(CELLS)
    jobs = [world.submit("user1", 1, cell=cell) for cell in ("any", "socket", "node")]
    world.run(2)
    lines = [[*told(world.engine.jobs[job], world.engine.nodes, CELLS)] for job in jobs]
    near = "--gandiva-cell={0}: its GPUs are to share a {0}"
    assert lines == [[], [near.format("socket")], [near.format("node")]]
    (line,) = told(world.engine.jobs[jobs[1]], world.engine.nodes, {})
    assert line.endswith("; of v100 gandiva.yaml tells none (cells): there any of a node do")


def test_what_a_policy_knew_of_other_cells_is_not_gone_on_with() -> None:
    told = PolicySettings(10 * S)
    world = FakeWorld(
        {"a": 4}, EngineSettings(10 * S, cells=CELLS), make_policy=lambda: gandiva_fair.make(told)
    )
    world.submit("user1", 1)
    world.run(5)
    before = world.engine.decider.policy
    world.engine.settings = replace(world.engine.settings, cells={})
    world.cycle()
    assert world.engine.decider.policy is not before
