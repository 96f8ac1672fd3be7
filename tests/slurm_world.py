"""A policy, its plans carried out by the engine, among jobs whose ends a test decides."""

from __future__ import annotations

from collections.abc import Mapping

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, JobView, Plan, PolicySettings, View
from gandiva_slurm.sim.checks import gangs_are_whole, no_gpu_given_twice
from gandiva_slurm.sim.slurm_world import SlurmWorld
from tests.tape import Tape

QUANTUM_NS = 60 * 10**9


class Speeds:
    """Jobs of a model go at 1; two of different models keep 0.8 each beside each other, two alike 0.4."""

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return 1.0 if model else None

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        return (0.4, 0.4) if model == other else (0.8, 0.8)


class SmallWorld:
    """A cluster of (GPU type, GPUs) nodes; two engines hear the same and must say the same."""

    def __init__(
        self, *shape: tuple[str, int], tickets: Mapping[str, int] | None = None, restart_ns: int = 0
    ) -> None:
        self.cluster = Cluster(shape)
        settings = PolicySettings(QUANTUM_NS, restart_ns=restart_ns, tickets=tickets or {})
        self.policy, self.twin = (SlurmWorld(settings, gandiva_fair.make(settings)) for _ in range(2))
        self.tape = Tape(lambda told: Leader(lambda: gandiva_fair.make(settings)))
        self.policy.handle = self.tape.handle
        self.now_ns = 0
        self.jobs: dict[int, JobView] = {}
        self.held_ns: dict[int, int] = {}
        self.users: dict[int, str] = {}
        self.down: set[int] = set()
        self.plan = Plan({})

    def submit(self, user: str = "ann", size: int = 1, **fields: object) -> int:
        """A job arrives."""
        job_id = len(self.users)
        sizes = {"min_size": size, "max_size": size}
        self.jobs[job_id] = JobView(job_id, user, size, self.now_ns, **sizes, **fields)  # type: ignore[arg-type]
        self.users[job_id], self.held_ns[job_id] = user, 0
        self.ask()
        return job_id

    def finish(self, job_id: int) -> None:
        """A job ends."""
        del self.jobs[job_id]
        self.ask()

    def set_down(self, host: int, is_down: bool) -> None:
        """A node fails, or is back."""
        (self.down.add if is_down else self.down.discard)(host)
        self.ask()

    def pass_time(self, quanta: float) -> SmallWorld:
        """Let time pass; the policy is asked whenever it wishes."""
        until_ns = self.now_ns + round(quanta * QUANTUM_NS)
        while self.plan.wake_ns is not None and self.plan.wake_ns <= until_ns:
            self._to(self.plan.wake_ns)
            self.ask()
        self._to(until_ns)
        self.ask()
        return self

    def ask(self) -> None:
        """Ask for a plan, and check it."""
        gpus = frozenset(gpu for host in self.down for gpu in self.cluster.hosts[host].gpus)
        view = View(self.now_ns, self.cluster, self.jobs, Speeds(), gpus)
        self.plan = self.policy.decide(view)
        assert self.twin.decide(view) == self.plan
        assert no_gpu_given_twice(self.plan.runs) == []
        assert gangs_are_whole(self.plan.runs, self.jobs, self.cluster, gpus) == []  # type: ignore[arg-type]
        assert self.policy.violations() == []
        assert self.plan.wake_ns is None or self.plan.wake_ns > self.now_ns

    def got(self) -> dict[str, float]:
        """GPU-quanta of each user so far."""
        total = dict.fromkeys(self.users.values(), 0.0)
        for job_id, held_ns in self.held_ns.items():
            total[self.users[job_id]] += held_ns / QUANTUM_NS
        return total

    def _to(self, now_ns: int) -> None:
        runs = self.plan.runs
        for job_id, gpus in runs.items():
            sharers = sum(gpus == others for others in runs.values())
            self.held_ns[job_id] += (now_ns - self.now_ns) * len(gpus) // sharers
        self.now_ns = now_ns
