"""Two jobs on one GPU by a policy's plan: only where there is memory for both, and what is said of it."""

from __future__ import annotations

import pytest

from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import PolicySettings
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld
from tests.led_world import Led, led

GIB = 1 << 30


def two_residents(pack: str = "auto") -> tuple[Led, int, int]:
    """Two jobs that live on one GPU, of which the second runs; the first with this --gandiva-pack."""
    world = led({"a": 1})
    world.rates, world.packed_rate = {"v100": 10.0}, 8.0
    one, two = world.submit(pack=pack), world.submit()
    world.plan({one: (0,)})
    world.plan({two: (0,)})
    return world, one, two


def fault(world: FakeWorld) -> str:
    assert world.engine.decider is not None
    return world.engine.decider.fault


def test_two_that_are_planned_on_one_gpu_are_mates_and_are_told_so() -> None:
    world, one, two = two_residents()
    world.plan({one: (0,), two: (0,)}, cycles=1)
    assert world.place(one).mate == two and world.place(two).mate == one
    (pack,) = world.engine.state.packs
    assert pack.jobs == (one, two) and pack.is_trial
    world.run(3)
    (pack,) = world.engine.state.packs
    assert not pack.is_trial and pack.gain == pytest.approx(1.6)
    assert any("10 mini-batches a second alone, 8 packed" in line for line in pack.evidence)
    world.plan({one: (0,)})
    assert world.place(one).mate == world.place(two).mate == 0 and not world.engine.state.packs


def test_what_is_not_known_to_fit_is_refused_by_its_name() -> None:
    world = led({"a": 1})
    one, two = world.submit(), world.submit()
    world.plan({one: (0,), two: (0,)})
    assert f"it or job {two} may not be packed" in fault(world), "nobody knows yet what they take"
    world, one, two = two_residents()
    world.card_bytes, world.peaks = 16 * GIB, {one: 8 * GIB, two: 8 * GIB}
    world.run(3)
    world.plan({one: (0,), two: (0,)})
    assert fault(world).endswith(f"[0]: it and job {two} are not known to fit into its memory together")
    assert world.on(two), "the cluster goes on"


def test_a_job_that_said_never_is_not_packed() -> None:
    world, one, two = two_residents("never")
    world.plan({one: (0,), two: (0,)})
    assert "may not be packed" in fault(world) and not world.engine.state.packs


def test_a_policy_that_does_not_heed_memory_packs_nobody() -> None:
    world, one, two = two_residents()
    world.says.fits_memory = False
    world.plan({one: (0,), two: (0,)})
    assert "may not be packed" in fault(world)


def test_two_that_ran_out_of_memory_together_are_known_for_it() -> None:
    world, one, two = two_residents()
    world.plan({one: (0,), two: (0,)})
    world.ooms = {two: 1}
    world.run(3)
    rates, (a, b) = world.says.views[-1].rates, (world.engine.jobs[job].model for job in (one, two))
    assert rates.packed(a, b, "v100") == rates.packed(b, a, "v100") == (0.0, 0.0)
    world.run(20)
    assert world.says.views[-1].rates.packed(a, b, "v100") == pytest.approx((0.0, 0.0))


def test_a_job_that_ended_for_want_of_memory_is_known_for_it() -> None:
    world, one, two = two_residents()
    world.plan({one: (0,), two: (0,)})
    world.says.runs = {two: (0,)}
    world.finish(one, "OUT_OF_MEMORY")
    world.run(3)
    a, b = (world.engine.jobs[job].model for job in (one, two))
    assert world.says.views[-1].rates.packed(a, b, "v100") == (0.0, 0.0)


@pytest.mark.parametrize(
    ("packed_rate", "alone", "why"),
    [
        (8.0, 10.0, ""),
        (4.0, 10.0, "together 0.80 of the speed they have by turns; 1.05 is asked"),
        (8.0, 25.0, "one keeps 0.32 of its speed; 0.40 is asked of each"),
    ],
)
def test_a_pair_that_was_measured_slower_is_undone_and_told_so(
    packed_rate: float, alone: float, why: str
) -> None:
    told = EngineSettings(10 * SECOND_NS, slots_per_gpu=2)
    policy = PolicySettings(told.quantum_ns, restart_ns=60 * SECOND_NS)
    world = FakeWorld({"a": 1}, told, make_policy=lambda: gandiva_fair.make(policy))
    world.rates, world.packed_rate, world.card_bytes = {"v100": 10.0}, packed_rate, 16 * GIB
    jobs = [world.submit("user1") for _ in range(2)]
    world.peaks, world.own_rates[jobs[1]] = dict.fromkeys(jobs, GIB), {"v100": alone}
    world.run(300)
    assert bool(world.engine.state.packs) == (not why)
    for job, mate in (jobs, jobs[::-1]):
        undone = [line.text for line in world.engine.jobs[job].story if line.code == "PackUndone"]
        assert undone == ([f"takes turns with job {mate} again: {why}"] if why else [])


@pytest.mark.parametrize(("gib", "is_packed"), [(4, True), (8, False)])
def test_gandiva_fair_packs_two_of_a_user_where_both_fit(gib: int, is_packed: bool) -> None:
    told = EngineSettings(60 * SECOND_NS, slots_per_gpu=2)
    policy = PolicySettings(told.quantum_ns, restart_ns=60 * SECOND_NS)
    world = FakeWorld({"a": 1}, told, make_policy=lambda: gandiva_fair.make(policy))
    world.rates, world.packed_rate, world.card_bytes = {"v100": 10.0}, 8.0, 16 * GIB
    jobs = [world.submit("user1") for _ in range(2)]
    world.peaks = dict.fromkeys(jobs, gib * GIB)
    world.run(300)
    assert fault(world) == ""
    packs = world.engine.state.packs
    assert [pack.jobs for pack in packs] == ([tuple(jobs)] if is_packed else [])
