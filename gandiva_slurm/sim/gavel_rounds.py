"""`--compat gavel`: time in rounds, as in Gavel's public simulator, to be held against its figures.

A job does a whole number of mini-batches in a round, int(rate x 360), or what it has left; the next round
begins when the last of this one is done, so rounds are a little shorter than they are called. Whoever ends in
the middle leaves its GPUs idle until then, and who arrives is seen then. Gangs go at one speed wherever they
are. Allocations are renewed at most every 1920 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.baselines.fifo_perf import FifoPerf
from gandiva_slurm.policy.port import Plan, Policy, PolicySettings
from gandiva_slurm.sim.job import RATE, UNIT, Job, Spec
from gandiva_slurm.sim.loop import Watch, best_rate
from gandiva_slurm.sim.truth import Oracle
from gandiva_slurm.sim.world import PolicyError, World

ROUND_NS = 360 * 10**9
RENEW_NS = 1920 * 10**9
#: So many rounds in a row nothing may run.
_MOST_IDLE_ROUNDS = 1000


class Together(Oracle):
    """The oracle of a cluster in which it makes no difference whether a gang is on one node."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle.tables)

    def alone(self, spec: Spec, size: int, gpu_type: str, is_local: bool) -> float:
        """Return mini-batches a second."""
        return super().alone(spec, size, gpu_type, True)


def gavel_policy(name: str, settings: PolicySettings) -> Policy:
    """Make the policy that has Gavel's renewals; UsageError: there is none of that name."""
    if name == "fifo":
        return FifoPerf(settings, RENEW_NS)
    if name in ("gavel_max_min", "gavel_max_min_alone"):
        # scipy is needed for it alone
        from gandiva_slurm.sim.gavel_lp import RoundMaxMin

        return RoundMaxMin(replace(settings, quantum_ns=ROUND_NS), name == "gavel_max_min", RENEW_NS)
    raise UsageError(f"--compat gavel knows fifo and gavel_max_min, not {name}: leave one of them out")


class Rounds:
    """Runs a workload to its end, in rounds."""

    def __init__(self, world: World, policy: Policy, specs: Iterable[Spec], watch: Watch) -> None:
        self._world, self._policy, self._watch = world, policy, watch
        self._specs = iter(specs)
        self._next = next(self._specs, None)
        self._idle = 0
        self.events = 0

    def run(self) -> None:
        """Go on until every job has ended."""
        while self._next is not None or self._world.jobs:
            self._admit_jobs()
            self._round()

    def _admit_jobs(self) -> None:
        world = self._world
        while self._next is not None and self._next.submit_ns <= world.now_ns:
            spec = self._next
            rate = round(best_rate(world, spec) * RATE)
            world.admit(Job(spec, world.truth.work(spec), world.truth.work(spec) // rate, world))
            self.events += 1
            self._next = next(self._specs, None)

    def _round(self) -> None:
        world = self._world
        plan = self._policy.decide(world.view())
        world.apply(plan, self._policy.name)
        self._watch(plan, ())
        if not world.running:
            self._pass_time()
            return
        self._idle = 0
        ends = sorted((self._foretell(job), job.job_id) for job in world.running.values())
        for end_ns, job_id in ends:
            job = world.jobs[job_id]
            if job.cap == job.work:
                self._end(job, end_ns, plan)
        world.now_ns = ends[-1][0]
        for job in world.running.values():
            job.settle()

    def _foretell(self, job: Job) -> int:
        """Set what it does in this round, and return when it has done that."""
        job.settle()
        steps = job.rate * ROUND_NS // UNIT
        job.cap = min(job.work, job.done + steps * UNIT)
        return self._world.now_ns - (job.done - job.cap) // job.rate if job.rate else self._world.now_ns + 1

    def _end(self, job: Job, end_ns: int, plan: Plan) -> None:
        self._world.now_ns = end_ns
        self._admit_jobs()  # the policy sees them at the next round
        self._world.finish(job)
        self.events += 1
        del plan.runs[job.job_id]
        self._watch(plan, (job,))

    def _pass_time(self) -> None:
        """Nobody runs: the next round begins when somebody comes, or a round later."""
        world = self._world
        self._idle += 1
        if self._idle > _MOST_IDLE_ROUNDS and self._next is None:
            raise PolicyError(f"{self._policy.name} leaves {len(world.jobs)} jobs waiting for ever")
        later_ns = world.now_ns + ROUND_NS
        is_empty = not world.jobs and self._next is not None
        world.now_ns = self._next.submit_ns if is_empty and self._next else later_ns
