"""What is kept of a simulation: one line of numbers a job, and what users got and were entitled to."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy.shares.associations import SCALE, Leaf, entitled_shares
from gandiva_slurm.policy.shares.tickets import users_tickets
from gandiva_slurm.sim.job import Job, Spec

#: Columns of numbers of the jobs that have ended, by place in the workload; -1: not yet, or not known.
_COLUMNS = ("start_ns", "end_ns", "held_halves", "first_100_ns")


class Books:
    """Filled by the loop, read for the outcome. Compact: a month of jobs fits in little memory."""

    def __init__(
        self, specs: Sequence[Spec], gpus: int, tickets: Mapping[str, int], tree: Sequence[Association] = ()
    ) -> None:
        self.specs = specs
        self.start_ns, self.end_ns, self.held_halves, self.first_100_ns = (
            array("q", [-1]) * len(specs) for _ in _COLUMNS
        )
        self.useful_gpu_s = 0.0
        self.finished = 0
        self._row = {spec.job_id: row for row, spec in enumerate(specs)}
        self._gpus = gpus
        self._set_tickets, self._tree = tickets, tree
        #: every user of the workload has tickets, one where nothing is said
        self.tickets = users_tickets(tickets, tree, {Leaf(spec.account, spec.user) for spec in specs})
        if tree:
            self.tickets = {user: max(1, round(parts / SCALE)) for user, parts in self.tickets.items()}
        self.entitled_gpu_s = dict.fromkeys(self.tickets, 0.0)
        #: GPUs wanted now
        self._demand: dict[Leaf, int] = {}
        self._level: dict[str, float] = {}
        self._since_ns = 0

    def arrived(self, job: Job, now_ns: int) -> None:
        """A user wants so many GPUs more."""
        self._demand_more(Leaf(job.account, job.user), job.max_size, now_ns)

    def ended(self, job: Job, now_ns: int) -> None:
        """Write down a job that has ended."""
        row = self._row[job.job_id]
        self.start_ns[row] = job.first_run_ns if job.first_run_ns is not None else now_ns
        self.end_ns[row] = now_ns
        self.held_halves[row] = job.held_halves
        self.first_100_ns[row] = job.first_100_ns
        self.useful_gpu_s += job.useful_gpu_s
        self.finished += 1
        self._demand_more(Leaf(job.account, job.user), -job.max_size, now_ns)

    def _demand_more(self, leaf: Leaf, gpus: int, now_ns: int) -> None:
        self._accrue(now_ns)
        self._demand[leaf] = self._demand.get(leaf, 0) + gpus
        if not self._demand[leaf]:
            del self._demand[leaf]
        self._level = {}

    def _accrue(self, now_ns: int) -> None:
        """Add to all what they were entitled to since the demand changed last."""
        if now_ns > self._since_ns:
            seconds = (now_ns - self._since_ns) / 1e9
            self._level = self._level or self._levels()
            for user, gpus in self._level.items():
                self.entitled_gpu_s[user] += gpus * seconds
            self._since_ns = now_ns

    def _levels(self) -> dict[str, float]:
        """GPUs each user is entitled to now: tickets, never above demand, the rest shared on."""
        demand: dict[str, int] = {}
        for leaf, gpus in self._demand.items():
            demand[leaf.user] = demand.get(leaf.user, 0) + gpus
        if sum(demand.values()) <= self._gpus:
            return {user: float(gpus) for user, gpus in demand.items()}
        if len(demand) == 1:
            return dict.fromkeys(demand, float(self._gpus))
        tickets = users_tickets(self._set_tickets, self._tree, self._demand)
        shares = entitled_shares(tickets, demand, self._gpus)
        return {user: float(share) for user, share in shares.items()}
