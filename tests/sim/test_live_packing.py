"""Packing as the live engine decides it, in virtual time, with the paper's table as the truth."""

from __future__ import annotations

import json

import pytest

from gandiva_slurm.engine.engine import Engine, EngineSettings
from tests.builders import SECOND_NS
from tests.sim.packing_world import TABLE, PackingWorld

SETTINGS = EngineSettings(quantum_ns=10 * SECOND_NS)


def test_the_papers_pairs_are_kept_and_undone_as_they_gain() -> None:
    """Two of each model on a GPU of their own: five gain and are kept, three lose and are undone."""
    world = PackingWorld(len(TABLE), SETTINGS, noise=0.05)
    for gpu, model in enumerate(TABLE):
        world.add(gpu, model)
        world.add(gpu, model)
    world.run(600)
    assert world.packs() == {(model, model): False for model, gain in TABLE.items() if gain > 1}
    assert world.told.count("PackUndone") == 2 * sum(gain < 1 for gain in TABLE.values())
    world.told.clear()
    world.run(600)
    assert world.told == [], "settled: nothing is tried again"


def test_four_on_one_gpu_end_in_pairs_that_gain_and_keep_their_shares() -> None:
    world = PackingWorld(1, SETTINGS, noise=0.05)
    for model in ("vae", "resnet50", "superres", "lstm"):
        world.add(0, model)
    world.run(3000)
    assert world.packs()
    assert not any(world.packs().values())
    assert all(world.truth(*pair) > 1.05 for pair in world.packs())
    world.charged.clear()
    world.run(2000)
    total = sum(world.charged.values())
    assert total == pytest.approx(2000, abs=1)
    assert {job: held / total for job, held in world.charged.items()} == pytest.approx(
        dict.fromkeys(range(1, 5), 0.25), abs=0.02
    )


def test_one_trial_at_a_time_on_a_gpu() -> None:
    world = PackingWorld(1, SETTINGS)
    for _ in range(6):
        world.add(0, "lstm")
    for _ in range(200):
        world.run(5)
        assert sum(world.packs().values()) <= 1
    assert world.told.count("PackUndone") >= 4


def test_what_one_task_of_an_array_shows_serves_the_others() -> None:
    world = PackingWorld(3, SETTINGS, noise=0.05)
    for gpu in range(3):
        world.add(gpu, "resnext50", array=77)
        world.add(gpu, "resnext50", array=77)
    world.run(900)
    assert world.told.count("PackTrial") == 2, "two jobs were told: one pair on one GPU"
    assert world.packs() == {}


def test_who_said_never_is_not_packed() -> None:
    world = PackingWorld(1, SETTINGS)
    world.add(0, "vae", pack="never")
    world.add(0, "vae")
    world.run(400)
    assert world.told == []


def test_nobody_is_packed_where_the_site_says_so_and_packs_end() -> None:
    world = PackingWorld(1, SETTINGS)
    world.add(0, "vae")
    world.add(0, "vae")
    world.run(300)
    assert world.packs()
    world.engine.settings = EngineSettings(quantum_ns=10 * SECOND_NS, packing=False)
    world.run(3)
    assert world.packs() == {}


def test_a_pair_within_its_noise_is_not_kept() -> None:
    """1.17 with figures that far off: undone rather than believed."""
    world = PackingWorld(1, SETTINGS, noise=1.5)
    world.add(0, "mi-lstm")
    world.add(0, "mi-lstm")
    world.run(250)
    assert world.packs().get(("mi-lstm", "mi-lstm"), True) is True


def test_a_kept_pair_that_gains_no_more_is_undone() -> None:
    world = PackingWorld(1, SETTINGS, noise=0.02)
    world.add(0, "rhn")
    world.add(0, "rhn")
    world.run(200)
    assert world.packs() == {("rhn", "rhn"): False}
    for train in world.trains.values():
        train.model = "lstm"
    world.run(200)
    assert world.packs() == {}
    assert "PackUndone" in world.told


def test_found_is_tried_again_after_its_time_and_not_before() -> None:
    world = PackingWorld(1, EngineSettings(quantum_ns=5 * SECOND_NS, pack_retry_ns=600 * SECOND_NS))
    world.add(0, "lstm")
    world.add(0, "lstm")
    world.run(550)
    assert world.told.count("PackTrial") == 2
    world.run(400)
    assert world.told.count("PackTrial") == 4


def test_packs_survive_a_restart_of_the_controller() -> None:
    world = PackingWorld(2, SETTINGS)
    for gpu, model in enumerate(("vae", "lstm")):
        world.add(gpu, model)
        world.add(gpu, model)
    world.run(400)
    before = world.engine
    world.engine = Engine.from_json(SETTINGS, json.loads(json.dumps(before.to_json())))
    assert world.engine.state.pairs == before.state.pairs
    assert world.engine.plan_jobs("n1") == before.plan_jobs("n1")
    world.told.clear()
    world.run(300)
    assert world.told == []


def test_queue_and_why_say_with_whom_and_what_it_brings() -> None:
    world = PackingWorld(1, SETTINGS)
    world.add(0, "vae")
    world.add(0, "vae")
    world.run(300)
    record = world.engine.jobs[1]
    assert record.code == "Packed"
    assert "job 2" in record.text
    assert "2.0" in record.text
    assert any("alone" in line for line in record.evidence)
    assert any("memory" in line for line in record.evidence)
    assert "Slicing" not in record.told()
    assert len(record.story) < 30
