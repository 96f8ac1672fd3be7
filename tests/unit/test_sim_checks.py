"""The auditor: it finds a world that lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.checks import InvariantError, charges_agree, gangs_are_whole, no_gpu_given_twice
from gandiva_slurm.sim.job import Job
from gandiva_slurm.sim.world import World
from tests.sim_scenes import play, spec

TWO = Cluster([("gpu", 2)])


@pytest.mark.parametrize(
    ("runs", "is_good"),
    [
        ({1: (0,), 2: (1,)}, True),
        ({1: (0, 1), 2: (0, 1)}, True),
        ({1: (0, 1), 2: (0,)}, False),
        ({1: (0,), 2: (0,), 3: (0,)}, False),
        ({1: (0, 1), 2: (1, 2)}, False),
        ({1: (0,), 2: (1,), 3: (0, 1)}, False),
    ],
)
def test_gpus_have_one_job_or_a_pair(runs: dict[int, tuple[int, ...]], is_good: bool) -> None:
    assert (no_gpu_given_twice(runs) == []) is is_good


def test_a_gang_runs_whole_or_not() -> None:
    _, script = play({0: {0: [0, 1]}, 1: {0: [0, 1]}}, [spec(0, size=2)], TWO)
    assert script.views[0].cluster is TWO
    found = gangs_are_whole({0: (0,)}, {}, TWO, frozenset())
    assert found == ["job 0 runs and is not live"]


def test_charges_are_compared_job_by_job() -> None:
    assert charges_agree({1: 4, 2: 6}, {1: 4, 2: 6}) == []
    assert charges_agree({1: 4, 2: 6}, {1: 4, 3: 1}) == [
        "job 2 held 6 halves of a GPU-ns and was charged 0",
        "job 3 held 0 halves of a GPU-ns and was charged 1",
    ]


def overcharge(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = Job.held_halves.fget
    assert halves is not None
    monkeypatch.setattr(Job, "held_halves", property(lambda job: halves(job) + (halves(job) > 0)))


def forget_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = World.admit
    monkeypatch.setattr(World, "admit", lambda world, job: None if job.job_id == 1 else admit(world, job))


def leave_one_running(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = World.apply
    monkeypatch.setattr(
        World, "apply", lambda world, plan, name: apply(world, plan, name) if plan.runs else []
    )


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (overcharge, "invariant broken at .* by script: job 0 held"),
        (forget_a_job, "invariant broken at .* 2 jobs have arrived, 1 are live or have ended"),
        (leave_one_running, r"invariant broken at 3.000 s by script: planned \{\}, running"),
    ],
)
def test_a_world_that_lies_is_found(
    lie: Callable[[pytest.MonkeyPatch], None], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = {0: {0: [0], 1: [1]}, 3: {}, 4: {0: [0], 1: [1]}}
    if lie is forget_a_job:
        plans = {0: {0: [0]}}
    lie(monkeypatch)
    with pytest.raises(InvariantError, match=sentence):
        play(plans, [spec(0), spec(1)], TWO)
