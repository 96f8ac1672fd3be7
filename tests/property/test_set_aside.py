"""Any one job among others that causes an error: the others start and hold what they would without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gandiva_slurm.model import event as ev
from gandiva_slurm.model.action import Action
from tests.fake_world import FakeWorld
from tests.guarded import Guard, news_of, the_policys_look, the_view, what_slurm_shows
from tests.slow import DRAWN, drawn

Poison = Callable[[pytest.MonkeyPatch, FakeWorld, int], None]
#: What may be wrong with a job that waits, so that it is as if it were not there.
KINDS = (news_of(ev.JobSeen), what_slurm_shows, the_policys_look, the_view)
CYCLES = 120


@dataclass(frozen=True)
class Other:
    """A job: whose, of what size, and in which cycles it comes and ends (after it has come)."""

    user: str
    gpus: int
    comes: int
    lasts: int


others = st.builds(
    Other, st.sampled_from(("user1", "user2", "user3")), st.sampled_from((1, 1, 2)), st.integers(0, 40),
    st.integers(5, 90),
)  # fmt: skip
scripts = st.lists(others, min_size=2, max_size=7).flatmap(
    lambda jobs: st.tuples(st.just(jobs), st.integers(0, len(jobs) - 1))
)


def submit(world: FakeWorld, number: int, job: Other) -> None:
    world.next_id = number
    world.submit(job.user, job.gpus)


def told(actions: list[Action], bad: int) -> list[tuple[object, ...]]:
    """Starts and moves of the others, and what else was asked for."""
    kept = [each for each in actions if each.key.job_id != bad]
    return [(type(each).__name__, each.key, getattr(each, "places", ())) for each in kept]


def lived(jobs: list[Other], bad: int, spoil: Callable[[FakeWorld, int], None]) -> list[object]:
    """What the others were given in each cycle; `spoil` is called when job `bad` has come, and later."""
    world, seen = FakeWorld({"n1": 2, "n2": 2}), list[object]()
    guard = Guard(world)
    for cycle in range(CYCLES):
        for number, job in enumerate(jobs, 1):
            if job.comes == cycle:
                submit(world, number, job)
            if number in world.jobs and number != bad and job.comes + job.lasts == cycle:
                world.finish(number)
        spoil(world, cycle)
        actions = world.cycle()
        held = {key: proc.held_ns for (_, key), proc in world.procs.items() if key.job_id != bad}
        seen.append((told(actions, bad), held))
    assert guard.replay().first is None
    return seen


@given(scripts, st.sampled_from(KINDS))
@DRAWN
@settings(max_examples=drawn(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_one_that_waits_changes_nothing_for_others(script: tuple[list[Other], int], kind: Poison) -> None:
    jobs, index = script
    bad, came = index + 1, jobs[index].comes
    with pytest.MonkeyPatch.context() as patch:

        def spoil(world: FakeWorld, cycle: int) -> None:
            if cycle == came:
                kind(patch, world, bad)

        spoilt = lived(jobs, bad, spoil)
    assert spoilt == lived(jobs, bad, lambda world, cycle: world.jobs.pop(bad, None))


@given(scripts, st.integers(1, 60))
@DRAWN
@settings(max_examples=drawn(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_one_that_runs_keeps_its_turns_and_others_theirs(script: tuple[list[Other], int], after: int) -> None:
    """Beside a job that may not move anyhow nothing changes for anybody when it is set aside."""
    jobs, index = script
    bad = index + 1

    def rigid(world: FakeWorld, cycle: int) -> None:
        job = world.jobs.get(bad)
        if job is not None:
            world.jobs[bad] = replace(job, options=replace(job.options, migrate="never", pack="never"))

    def spoil(world: FakeWorld, cycle: int) -> None:
        rigid(world, cycle)
        job = world.jobs.get(bad)
        if job is not None and job.state == "RUNNING" and cycle >= jobs[index].comes + after:
            world.jobs[bad] = replace(job, time_limit_s=None)

    assert lived(jobs, bad, spoil) == lived(jobs, bad, rigid)
