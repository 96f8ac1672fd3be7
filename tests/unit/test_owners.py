"""Virtual clusters of gandiva.yaml: what they are promised, turns within them, and what a job is told."""

from __future__ import annotations

import json
from dataclasses import replace

from gandiva_slurm.engine.lifecycle import owners
from gandiva_slurm.engine.state.settings import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.virtual_clusters.shortages import shortages
from gandiva_slurm.slicing.local import Gang, LocalStride
from tests.builders import SECOND_NS, Slicer, a_gang
from tests.fake_world import FakeWorld


def test_what_no_node_has_is_said() -> None:
    wanted = {"a": {"v100": 4}, "b": {"v100": 4, "h100": 1}}
    assert shortages(wanted, [("v100", 6)]) == [
        "a 4 + b 4 GPUs of type v100 are promised, the nodes have 6",
        "no node has GPUs of type h100 (b 1); known types: v100",
    ]
    assert shortages(wanted, [("v100", 8), ("h100", 1)]) == []
    assert shortages({"a": {"gpu": 2}}, [("", 4)]) == [], "the type of GPUs without one"


# turns


def of(vc: str, gang: Gang, is_opportunistic: bool = False) -> Gang:
    return replace(gang, vc=vc, is_opportunistic=is_opportunistic)


def test_tickets_buy_turns_within_a_virtual_cluster() -> None:
    """Ann has GPU 1 of `b` to herself, and still half of GPU 0 of `a`."""
    node = Slicer(2)
    node.local.set_gangs(
        [
            of("a", a_gang(1, "ann", (0,))),
            of("a", a_gang(2, "ben", (0,))),
            of("b", a_gang(3, "ann", (1,))),
        ]
    )
    node.run(40)
    assert [node.by_job[n] // SECOND_NS for n in (1, 2, 3)] == [20, 20, 40]


def test_a_borrower_makes_way_for_the_owners_at_once_and_takes_turns_among_the_opportunistic() -> None:
    local = LocalStride(2, SECOND_NS)
    borrower, owner = of("b", a_gang(1, "ann", (0, 1)), True), of("a", a_gang(2, "ben", (0,)))
    local.set_gangs([borrower, owner])
    both = {borrower.key, owner.key}
    assert local.giving_way(both, (), (), {borrower.key}) == {borrower.key}
    assert local.choose(both, (), ()) == (owner.key,)
    assert local.groups == ("", "a", "\0spare")


def test_the_books_of_all_groups_are_read_again() -> None:
    node = Slicer(2)
    node.local.set_gangs([of("a", a_gang(1, "ann", (0,))), of("b", a_gang(2, "ann", (1,)), True)])
    data = json.loads(json.dumps(node.run(7).local.to_json()))
    again = LocalStride.from_json(data)
    assert again.to_json() == data and again.job_passes() == node.local.job_passes() != {}


# the engine


def told(world: FakeWorld, job_id: int) -> list[str]:
    return [*owners.told(world.engine.jobs[job_id], world.engine.settings)]


ONE_EACH = {"a": {"v100": 1}, "b": {"v100": 1}}


def test_a_virtual_cluster_nobody_configured_is_held_with_a_sentence() -> None:
    world = FakeWorld({"n1": 2}, EngineSettings(virtual_clusters=ONE_EACH))
    job_id = world.submit("user1", vc="speech")
    world.run(3)
    record = world.engine.jobs[job_id]
    assert (record.state, record.code) == (states.HELD, "NoSuchVc")
    assert record.text == "--gandiva-vc=speech: gandiva.yaml has no virtual cluster of that name"
    assert record.reason.next.startswith("cancel it (scancel 1) and name one of: a, b; or an operator")


def test_without_virtual_clusters_a_name_changes_nothing() -> None:
    world = FakeWorld({"n1": 1})
    job_id = world.submit("user1", vc="vision")
    world.run(3)
    assert world.state_of(job_id) == states.RUNNING and not world.engine.jobs[job_id].vc
    assert told(world, job_id) == ["--gandiva-vc=vision: recorded; no virtual clusters are configured"]
