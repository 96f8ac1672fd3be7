"""Small simulated worlds for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gandiva_slurm.policy.port import Cluster, Plan, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous, Oracle
from gandiva_slurm.sim.world import Costs

S = 10**9


def spec(job_id: int, size: int = 1, at_s: float = 0, length_s: float = 10, **other: Any) -> Spec:
    """Make a job of known run time."""
    values = {"name": str(job_id), "user": "u", "length_ns": round(length_s * S), **other}
    return Spec(job_id=job_id, size=size, submit_ns=round(at_s * S), **values)


def model_spec(job_id: int, model: str, steps: int, size: int = 1, at_s: float = 0) -> Spec:
    """Make a job of known mini-batches."""
    return spec(job_id, size, at_s, 0, model=model, steps=steps)


#: m is twice as fast on fast GPUs; two of m keep 0.8 of it each there, 0.2 on slow ones; big fits by none.
ORACLE = Oracle(
    {
        "fast": {
            ("m", 1): {None: 10.0, ("m", 1): [8.0, 8.0], ("big", 1): [0.0, 0.0]},
            ("m", 2): {None: 18.0},
            ("big", 1): {None: 4.0, ("m", 1): [0.0, 0.0]},
        },
        "slow": {("m", 1): {None: 5.0, ("m", 1): [1.0, 1.0]}, ("m", 2): {None: 9.0}},
        "fast_unconsolidated": {("m", 2): {None: 6.0}},
        "slow_unconsolidated": {("m", 2): {None: 4.0}},
    }
)


class Script:
    """A policy that says at each time what a table says, from that time on."""

    name = "script"

    def __init__(self, plans: Mapping[float, Mapping[int, Sequence[int]]]) -> None:
        self._plans = {round(at_s * S): runs for at_s, runs in plans.items()}
        self.seen: list[tuple[float, dict[int, tuple[float, float, float]]]] = []
        self.views: list[View] = []
        #: what was known at each question of m's rate on a fast and on a slow GPU
        self.known: list[tuple[float | None, float | None]] = []

    def decide(self, view: View) -> Plan:
        """Say what is written for now."""
        self.views.append(view)
        self.known.append((view.rates.alone("m", 1, "fast"), view.rates.alone("m", 1, "slow")))
        self.seen.append(
            (
                view.now_ns / S,
                {job.job_id: (job.progress, job.ran_ns / S, job.held_ns / S) for job in view.jobs.values()},
            )
        )
        runs = next(runs for at_ns, runs in sorted(self._plans.items(), reverse=True) if at_ns <= view.now_ns)
        wake_ns = min((at_ns for at_ns in self._plans if at_ns > view.now_ns), default=None)
        return Plan({job_id: tuple(gpus) for job_id, gpus in runs.items() if job_id in view.jobs}, wake_ns)


def play(
    plans: Mapping[float, Mapping[int, Sequence[int]]],
    specs: Sequence[Spec],
    cluster: Cluster,
    costs: Costs | None = None,
    **scene: Any,
) -> tuple[Outcome, Script]:
    """Run a script, with all checks on."""
    script = Script(plans)
    told = scene.pop("takes_oracle", False)
    truth = ORACLE if any(not one.length_ns for one in specs) else Homogeneous()
    whole = Scene(specs, cluster, truth, costs or Costs(), is_checked=True, **scene)
    return simulate(whole, script, told), script


def ends_s(outcome: Outcome) -> list[float]:
    """Return when each job ended, by place in the workload."""
    return [end_ns / S for end_ns in outcome.books.end_ns]
