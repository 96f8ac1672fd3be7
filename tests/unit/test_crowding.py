"""engine.crowding: a job without GPUs in the plan is told if it waits for a slot, for memory, or its turn."""

from __future__ import annotations

import pytest

from gandiva_slurm.engine.lifecycle import moves_told
from gandiva_slurm.engine.state.records import EngineSettings
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld

QUANTUM_NS = SECOND_NS


def waits_for(world: FakeWorld, job_id: int) -> tuple[str, tuple[str, ...]]:
    record = world.engine.jobs[job_id]
    return record.code, record.evidence


@pytest.mark.parametrize(("user", "code"), [("user1", "NoFreeSlots"), ("user2", "WaitingTurn")])
def test_the_last_slot_beside_a_job_that_stays_is_none_for_its_user(user: str, code: str) -> None:
    """Others wait for their turn only; it comes with the next slice."""
    world = FakeWorld({"n1": 1, "n2": 1}, EngineSettings(100 * QUANTUM_NS, 2))
    world.rigid.update(world.submit() for _ in range(2))
    world.run(5)
    last = world.submit(user)
    world.run(3)
    evidence = tuple(f"n{n}: a slot that it may have on 0 of 1 GPU(s)" for n in (1, 2))
    assert waits_for(world, last) == (code, evidence if code == "NoFreeSlots" else ())
    world.run(220)
    assert world.engine.jobs[last].is_placed == (user == "user2")


def test_of_nodes_without_memory_the_full_ones_are_named() -> None:
    """One that has room is of a type that the job does not take; parked jobs that can be saved count not."""
    world = FakeWorld({"n1": 1, "n2": 1, "n3": 1}, EngineSettings(QUANTUM_NS), move_ns=SECOND_NS)
    world.types = {"n3": "k80"}
    firm, soft = (world.submit(memory_mib=200_000, types=("v100",)) for _ in range(2))
    world.rigid.add(firm)
    world.run(5)
    gang = world.submit(gpus=2, span=2, memory_mib=100_000, types=("v100",))
    world.run(3)
    assert waits_for(world, gang) == ("NoFreeMemory", ("n1: 200000 of 256000 MiB taken",))
    assert world.engine.jobs[soft].nodes == ("n2",)
    world.finish(firm)
    world.run(120)
    assert world.engine.jobs[gang].starts, "both take turns"


def test_one_that_cannot_be_moved_is_told_with_how_many_it_shares_and_what_would_help() -> None:
    world = FakeWorld({"n1": 1, "n2": 2}, EngineSettings(QUANTUM_NS, 4))
    firm = [world.submit(user) for user in ("user1", "user2", "user3", "user1", "user2")]
    world.rigid.update(firm)
    world.run(20)
    jobs = world.engine.jobs
    told = [*moves_told.told_shared(jobs.values(), jobs[firm[4]], "its framework is not known")]
    here = [job for job in firm if jobs[job].places == jobs[firm[4]].places]
    ((name, gpus),) = jobs[firm[4]].places.items()
    others = {2: "one other", 3: "two others"}[len(here)]
    assert told == [
        f"shares {name} GPU {gpus[0]} with {others}: it cannot be moved: its framework is not known; "
        "add one of: gandiva.attach() in its script, a framework that is known, "
        "--gandiva-checkpoint=signal|self"
    ]
    alone = next(job for job in firm if sum(jobs[job].places == jobs[each].places for each in firm) == 1)
    assert not [*moves_told.told_shared(jobs.values(), jobs[alone], "never")]
