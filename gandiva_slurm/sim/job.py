"""A job as it was submitted, and as it lives in the simulator: work in whole units, rates in units a ns.

A unit is 10⁻¹⁸ of a mini-batch (of a second of work, where only run times are known), so rates are whole
numbers, nothing is rounded on the way, and the moment a job ends does not depend on when it is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gandiva_slurm.policy.port import GUARANTEED, JobView

if TYPE_CHECKING:
    from gandiva_slurm.sim.world import World

#: Units of work in one step; a rate of 1 step/s is RATE units/ns.
UNIT, RATE = 10**18, 10**9
#: The early milestone of the JSON: avg_first_100_minibatches_s.
MILESTONE = 100


@dataclass(frozen=True, slots=True)
class Spec:
    """A row of a workload. Either its run time is known (`length_ns`), or its mini-batches and its model."""

    job_id: int
    #: the name its file gives it
    name: str
    user: str
    size: int
    submit_ns: int
    #: run time alone on what it asks for; 0: told by `steps` and a table of rates
    length_ns: int = 0
    #: mini-batches; 0: not known
    steps: int = 0
    model: str = ""
    tickets: int = 100
    priority: int = 50
    job_class: str = GUARANTEED
    vc: str = ""
    gpu_types: tuple[str, ...] = ()
    min_size: int = 0
    max_size: int = 0
    can_pack: bool = True
    can_migrate: bool = True
    account: str = ""
    cell: str = ""
    #: indexes of the nodes it may use; None: all
    hosts: frozenset[int] | None = None
    #: memory it takes on each of its nodes
    memory_mib: int = 0
    #: nodes on which it must be, with as many GPUs on each; 0: any number
    nodes: int = 0
    #: what its owner changes while it lives: (ns after submission, priority), in that order
    priorities: tuple[tuple[int, int], ...] = ()


class Job(JobView):
    """A live job: what policies see, and what is left of its work."""

    __slots__ = (
        "_halves", "_ran_ns", "_world", "alone_rate", "begins_ns", "cap", "done", "first_100_ns", "is_lost",
        "is_packed", "mate", "mates", "milestone", "owed_ns", "rate", "runs", "settled_ns", "spec",
        "useful_gpu_s", "version", "work",
    )  # fmt: skip

    def __init__(self, spec: Spec, work: int, length_ns: int | None, world: World) -> None:
        """Make it as it arrives. `work` in units; `length_ns` alone on its best GPUs."""
        self._world = world
        self._ran_ns = self._halves = self.done = 0
        super().__init__(
            spec.job_id, spec.user, spec.size, spec.submit_ns, spec.model, spec.tickets, spec.priority,
            spec.job_class, spec.vc, spec.gpu_types, spec.min_size or spec.size, spec.max_size or spec.size,
            spec.can_pack, spec.can_migrate, length_ns, spec.account, spec.cell, spec.hosts, spec.memory_mib,
            spec.nodes,
        )  # fmt: skip
        self.spec, self.work = spec, work
        #: no more than this is done for now
        self.cap = work
        self.milestone = work * min(MILESTONE, spec.steps) // spec.steps if spec.steps else 0
        self.first_100_ns = -1
        self.rate = self.alone_rate = 0
        self.settled_ns = self.begins_ns = world.now_ns
        #: how long it was still to hold its GPUs without progress when it was taken off last
        self.owed_ns = 0
        self.is_packed = self.is_lost = False
        self.useful_gpu_s = 0.0
        #: rises when its end moves: ends that were foretold before do not count any more
        self.version = 0
        #: runs so far, counted
        self.runs = 0
        #: whom it is packed with; -1: nobody
        self.mate = -1
        #: whom it was packed with: True while that was taken apart by a plan
        self.mates: dict[int, bool] = {}

    # What goes on while it runs is worked out when somebody asks.
    @property
    def ran_ns(self) -> int:
        """Wall time it ran."""
        return self._ran_ns + (self._world.now_ns - self.settled_ns if self.is_running else 0)

    @ran_ns.setter
    def ran_ns(self, value: int) -> None:
        self._ran_ns = value

    @property
    def held_ns(self) -> int:
        """GPU time it held; two that share a GPU held half of it each."""
        return self.held_halves // 2

    @held_ns.setter
    def held_ns(self, value: int) -> None:
        self._halves = 2 * value

    @property
    def held_halves(self) -> int:
        """GPU time it held, in halves of a ns: what two share divides without rest."""
        if not self.is_running:
            return self._halves
        parts = len(self.gpus) if self.is_packed else 2 * len(self.gpus)
        return self._halves + parts * (self._world.now_ns - self.settled_ns)

    @property
    def progress(self) -> float:
        """Part of its work that is done."""
        return self.done_now / self.work if self.work else 1.0

    @progress.setter
    def progress(self, value: float) -> None:
        """Nothing to set: it follows from the work."""

    @property
    def left_ns(self) -> int | None:
        """Run time that is left, alone on its best GPUs."""
        if self.length_ns is None or not self.work:
            return self.length_ns
        return -(-(self.work - self.done_now) * self.length_ns // self.work)

    @left_ns.setter
    def left_ns(self, value: int | None) -> None:
        """Nothing to set: it follows from the work."""

    @property
    def done_now(self) -> int:
        """Units done by now."""
        since = self._world.now_ns - max(self.settled_ns, self.begins_ns)
        return min(self.cap, self.done + self.rate * since) if self.is_running and since > 0 else self.done

    def settle(self) -> None:
        """Write down what was done and held until now."""
        now_ns = self._world.now_ns
        if self.is_running and now_ns > self.settled_ns:
            from_ns = max(self.settled_ns, self.begins_ns)
            done, self._halves = self.done_now, self.held_halves
            if self.first_100_ns < 0 and done >= self.milestone > 0:
                self.first_100_ns = from_ns - (self.done - self.milestone) // self.rate
            if self.alone_rate:
                self.useful_gpu_s += (done - self.done) / self.alone_rate * len(self.gpus) / 1e9
            self._ran_ns += now_ns - self.settled_ns
            self.done = done
        self.settled_ns = now_ns

    def end_ns(self) -> int | None:
        """When it will have done all its work, at this rate; None: never."""
        if not self.is_running or not self.rate:
            return None
        return max(self.settled_ns, self.begins_ns) - (self.done - self.work) // self.rate
