"""Elastic jobs among others, and everything that can happen to them while they are resized."""

from __future__ import annotations

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine.sizes import is_elastic
from gandiva_slurm.engine.state import SECOND_NS, EngineSettings
from gandiva_slurm.model import job as states
from tests.fake_world import FakeWorld, ruled
from tests.property.test_moves import TROUBLES, happen, heal
from tests.slow import drawn

#: GPUs asked for, what of it is elastic.
JOBS = st.tuples(st.sampled_from((1, 1, 2)), st.sampled_from(("", "1-2", "1-4", "2-4")))
KINDS = st.lists(JOBS, min_size=1, max_size=4)
#: What makes them grow and shrink happens as often as trouble.
COMMON = ("an end", "another", "another", "one size", "any size")
WHAT = st.one_of(st.sampled_from(COMMON), st.sampled_from(TROUBLES))
STEPS = st.lists(st.tuples(st.sampled_from((1, 3, 70, 200)), WHAT), min_size=3, max_size=12)


def a_world(slots_per_gpu: int) -> FakeWorld:
    short = {"quantum_ns": 5 * SECOND_NS, "min_run_ns": 30 * SECOND_NS, "move_deadline_ns": 30 * SECOND_NS}
    more = {"slots_per_gpu": slots_per_gpu, "concurrent_moves": 2, "moves_per_hour": 30}
    world = ruled({"n1": 4, "n2": 2}, EngineSettings(restart_cost_ns=SECOND_NS, **short, **more))  # type: ignore[arg-type]
    world.turns_away = 2
    return world


def step(world: FakeWorld, what: str, job: tuple[int, str]) -> None:
    """One thing happens."""
    elastic = [job_id for job_id in world.running() if is_elastic(world.engine.jobs[job_id])]
    if what == "an end" and world.running():
        world.finish(world.running()[0])
    elif what == "another":
        world.submit("user2", job[0], elastic=job[1])
    elif what in ("one size", "any size"):
        world.one_size = set(elastic) if what == "one size" else set()
    else:
        happen(world, what)


@given(slots=st.sampled_from((1, 2)), jobs=KINDS, steps=STEPS)
@settings(max_examples=drawn(20), suppress_health_check=[HealthCheck.too_slow])
def test_jobs_stay_within_their_sizes_and_come_to_rest(
    slots: int, jobs: list[tuple[int, str]], steps: list[tuple[int, str]]
) -> None:
    """The world checks after each cycle: sizes, Slurm's number of GPUs, slots, budgets, no job lost."""
    world = a_world(slots)
    for n, (gpus, elastic) in enumerate(jobs):
        world.submit(f"user{n % 3 + 1}", gpus, elastic=elastic)
    world.run(50, dt_s=5)
    for n, (wait_s, what) in enumerate(steps):
        world.run(wait_s, dt_s=min(wait_s, 5))
        event(f"{what}, moving: {bool(world.moving())}")
        step(world, what, jobs[n % len(jobs)])
    codes = {line.code for record in world.engine.jobs.values() for line in record.story}
    event(f"grown {'Growing' in codes}, shrunk {'Shrinking' in codes}")
    heal(world)
    world.turns_away = 0
    world.run(3600, dt_s=20)
    late = world.run(1200, dt_s=20)
    assert late == [], f"settled, and still something acts: {late}"
    _are_as_large_as_they_can_be(world)


def _are_as_large_as_they_can_be(world: FakeWorld) -> None:
    """At rest nothing is idle beside a job of at most its size that could grow, while nobody waits."""
    live = [record for record in world.engine.jobs.values() if record.state != states.ENDED]
    waits = [record for record in live if record.state not in states.SLICED]
    taken = {(node, gpu) for record in live for node, gpus in record.places.items() for gpu in gpus}
    for record in live:
        if not is_elastic(record) or record.job.job_id in world.one_size or waits or not record.places:
            continue
        ((node, gpus),) = record.places.items()
        free = world.nodes[node] - sum(name == node for name, _ in taken)
        is_alone = all(
            set(gpus).isdisjoint(other.places.get(node, ())) for other in live if other is not record
        )
        assert not (free and is_alone and len(gpus) < record.options.sizes[1]), record.told()
