"""Pairs and the memory of their GPU: who is not even tried, and what becomes of one that runs out of it."""

import json

from gandiva_slurm.engine.engine import Engine, EngineSettings
from gandiva_slurm.engine.findings import Pairs
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.policy.room import CONTEXT_BYTES, caps, need, room
from tests.builders import SECOND_NS
from tests.sim.packing_world import CARD_BYTES, PackingWorld

GIB = 1 << 30
SETTINGS = EngineSettings(quantum_ns=5 * SECOND_NS)


def two(first: int, second: int, **more: object) -> PackingWorld:
    """Two jobs that gain by packing, with these peaks."""
    world = PackingWorld(1, SETTINGS)
    for peak in (first, second):
        world.add(0, "vae", **more)
        world.trains[JobKey(world._next_id - 1, 0)].peak_bytes = peak
    return world


def train(world: PackingWorld, job_id: int):
    return world.trains[JobKey(job_id, 0)]


def test_two_that_fit_are_tried_and_their_memory_is_told() -> None:
    world = two(6 * GIB, 5 * GIB)
    world.run(60)
    assert world.packs() == {("vae", "vae"): False}
    (pack,) = world.engine.state.pairs.packs
    assert "GPU memory: 16384 MiB" in pack.evidence
    assert any(line.startswith("job 1: ") and "peak of 6144 MiB" in line for line in pack.evidence)


def test_two_that_do_not_fit_together_are_never_tried_and_told_why_once() -> None:
    world = two(9 * GIB, 6 * GIB)
    world.run(120)
    assert world.told == ["PackNotTried"] * 2
    said = world.engine.state.pairs.not_tried[(1, 2)]
    assert "do not fit" in said.why
    assert any("9216 MiB" in line for line in said.evidence)
    lines = [line for line in world.engine.jobs[1].story if line.code == "PackNotTried"]
    assert len(lines) == 1
    assert "job 2" in lines[0].text


def test_what_is_not_known_does_not_fit_until_it_is() -> None:
    world = two(0, GIB)
    world.run(60)
    assert world.packs() == {}
    assert "peak memory of job 1 is not known" in world.engine.state.pairs.not_tried[(1, 2)].why
    train(world, 1).peak_bytes = GIB
    world.run(60)
    assert world.packs() == {("vae", "vae"): False}
    assert world.engine.state.pairs.not_tried == {}


def test_the_memory_that_others_keep_while_parked_counts() -> None:
    world = two(5 * GIB, 5 * GIB)
    world.add(0, "vae", pack="never")
    train(world, 3).held_bytes = 6 * GIB
    world.run(60)
    assert world.packs() == {}
    world.told.clear()
    world.run(60)
    assert world.told == [], "not tried in the turns of the third either"
    train(world, 3).held_bytes = 0
    world.run(60)
    assert world.packs() == {("vae", "vae"): False}


def test_a_pair_that_outgrows_its_gpu_is_undone_before_it_runs_out() -> None:
    world = two(6 * GIB, 5 * GIB)
    world.run(60)
    train(world, 1).peak_bytes = 9 * GIB
    world.run(60)
    assert world.packs() == {}
    assert "PackUndone" in world.told
    assert world.told[-2:] == ["PackNotTried"] * 2


def test_one_that_ran_out_of_memory_beside_another_is_not_tried_with_it_again() -> None:
    world = two(GIB, GIB, array=70)
    train(world, 1).ooms = 4
    world.run(60)
    assert world.packs() == {("vae", "vae"): False}, "what happened before they were packed does not count"
    train(world, 1).ooms = 5
    world.run(120)
    assert world.packs() == {}
    assert world.told.count("PackTrial") == 2
    assert "more GPU memory than was left" in world.engine.jobs[1].told()


def test_one_that_fails_beside_another_is_remembered_for_its_likes() -> None:
    world = two(GIB, GIB, array=70)
    world.run(60)
    world.end(JobKey(1, 0), "FAILED")
    world.run(2)
    assert "job 1 ended beside it as FAILED" in world.engine.jobs[2].told()
    world.add(0, "vae", array=70)
    world.told.clear()
    world.run(120)
    assert world.told == []


def test_one_that_ends_well_teaches_nothing_against_its_likes() -> None:
    world = two(GIB, GIB, array=70)
    world.run(60)
    world.end(JobKey(1, 0))
    world.run(2)
    world.add(0, "vae", array=70)
    world.run(60)
    assert world.packs() == {("vae", "vae"): False}


def test_what_was_not_tried_survives_a_restart_and_is_not_said_again() -> None:
    world = two(9 * GIB, 9 * GIB)
    world.run(60)
    data = json.loads(json.dumps(world.engine.to_json()))
    again = Engine.from_json(SETTINGS, data)
    assert again.state.pairs == world.engine.state.pairs
    assert again.state.pairs.not_tried
    world.engine = again
    world.told.clear()
    world.run(30)
    assert world.told == []
    older = {key: value for key, value in data["pairs"].items() if key != "not_tried"}
    assert Pairs.from_json(older).not_tried == {}


def test_what_is_free_is_shared_out_above_both_peaks() -> None:
    free = room(CARD_BYTES, [2 * GIB])
    assert free == 13 * GIB
    assert caps(free, [6 * GIB, 3 * GIB]) == [7 * GIB, 4 * GIB]
    assert sum(caps(free, [6 * GIB, 3 * GIB])) + 2 * CONTEXT_BYTES == free
    assert caps(free, [9 * GIB, 3 * GIB]) == []
    assert caps(free, []) == []
    assert need(16 * GIB) == 18 * GIB


def opportunistic_then_guaranteed(model: str) -> PackingWorld:
    """One GPU; the opportunistic job has had it alone, and so was measured, when the other comes."""
    world = PackingWorld(1, SETTINGS)
    world.add(0, model, job_class="opportunistic")
    world.run(20)
    world.add(0, model, job_class="guaranteed")
    return world


def test_a_guaranteed_job_slowed_down_by_an_opportunistic_one_is_given_its_gpu_back() -> None:
    """Together they would gain; but what one loses is not the other's to take."""
    world = opportunistic_then_guaranteed("rhn")
    told = {place.key.job_id: place for place in world.engine.plan_jobs("n1")}
    assert (told[1].mate, told[1].is_opportunistic) == (0, True), "its node knows it before it is packed"
    world.run(8)
    plan = {place.key.job_id: place for place in world.engine.plan_jobs("n1")}
    assert (plan[1].mate, plan[1].is_opportunistic) == (2, True)
    assert (plan[2].mate, plan[2].is_opportunistic) == (1, False)
    world.run(120)
    assert world.packs() == {}
    assert world.told.count("PackTrial") == 2
    assert "job 2 is guaranteed and keeps 0.73 of its speed; 0.95 is asked" in world.engine.jobs[1].told()


def test_a_guaranteed_job_that_is_not_harmed_stays_packed() -> None:
    world = opportunistic_then_guaranteed("vae")
    world.run(120)
    assert world.packs() == {("vae", "vae"): False}


def test_an_opportunistic_job_that_slows_a_guaranteed_one_down_is_taken_off_its_gpu() -> None:
    """Together they gain, and each keeps 0.73 of its speed."""
    world = PackingWorld(1, SETTINGS)
    world.add(0, "rhn", job_class="opportunistic")
    world.run(30)
    world.add(0, "rhn")
    world.run(120)
    assert world.packs() == {}
    assert any("is guaranteed and keeps" in line.text for line in world.engine.jobs[2].story)
