"""A small Slurm under a policy that says what a test told it to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gandiva_slurm.engine.state.records import EngineSettings, Placement
from gandiva_slurm.policy.port import Plan, View
from tests.fake_world import FakeWorld

GPUS = tuple[int, ...]


class Says:
    """A policy that says what it was told to say; `views` has what it was shown."""

    name = "says"

    #: it packs what fits
    fits_memory = True

    def __init__(self) -> None:
        self.runs: dict[int, GPUS] = {}
        self.views: list[View] = []
        self.answer: Callable[[View], Plan] = lambda view: Plan(
            {job_id: gpus for job_id, gpus in self.runs.items() if job_id in view.jobs}
        )

    def decide(self, view: View) -> Plan:
        self.views.append(replace(view, jobs={job_id: replace(job) for job_id, job in view.jobs.items()}))
        plan = self.answer(view)
        if isinstance(plan, Plan) and plan.wake_ns is None:
            plan.wake_ns = view.now_ns + 1  # it is asked in each cycle
        return plan


class Slow:
    """A policy whose answers a test makes, or that takes too long; it counts its questions."""

    name = "slow"

    def __init__(self, plan: Callable[[View], Plan]) -> None:
        self.plan, self.asked = plan, 0

    def decide(self, view: View) -> Plan:
        self.asked += 1
        return self.plan(view)


class Led(FakeWorld):
    """A small Slurm under such a policy."""

    says: Says

    def plan(self, runs: dict[int, GPUS], cycles: int = 6) -> None:
        """Let it say this from now on, and some cycles pass."""
        self.says.runs = runs
        self.run(cycles)

    def on(self, job_id: int) -> bool | None:
        """Whether a job is planned to hold its GPUs."""
        places = [place for name in self.nodes for place in self.engine.plan_jobs(name)]
        return next(place for place in places if place.key.job_id == job_id).is_on

    def place(self, job_id: int) -> Placement:
        """Its place on its one node."""
        places = [place for name in self.nodes for place in self.engine.plan_jobs(name)]
        return next(place for place in places if place.key.job_id == job_id)


def led(nodes: dict[str, int], slots: int = 2) -> Led:
    """Nodes by their GPUs; in views these are numbered in the order of the names."""
    says = Says()
    world = Led(nodes, EngineSettings(slots_per_gpu=slots), make_policy=lambda: says)
    world.says = says
    return world
