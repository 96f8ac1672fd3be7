"""What must hold after every moment of a simulation, checked from the plans alone, beside the world's books.

The auditor keeps its own account of who held what; where the world's differs, one of the two is wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from gandiva_slurm.engine.invariants import passes_never_fall
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.policy.port import Cluster, Plan, Policy
from gandiva_slurm.sim.books import Books
from gandiva_slurm.sim.job import Job
from gandiva_slurm.sim.world import World


class InvariantError(GandivaError):
    """The simulator, or the engine in it, broke a rule that must always hold."""


def no_gpu_given_twice(runs: Mapping[int, tuple[int, ...]]) -> list[str]:
    """A GPU has one job, or two that share all of theirs."""
    found = []
    on: dict[int, int] = {}
    packed: set[int] = set()
    for job_id, gpus in sorted(runs.items()):
        others = {on[gpu] for gpu in gpus if gpu in on}
        if len(others) > 1 or any(runs[other] != gpus or other in packed for other in others):
            found.append(f"job {job_id} on GPUs {gpus} meets jobs {sorted(others)}")
        packed |= {job_id, *others} if others else set()
        on.update(dict.fromkeys(gpus, job_id))
    return found


def gangs_are_whole(
    runs: Mapping[int, tuple[int, ...]], jobs: Mapping[int, Job], cluster: Cluster, down: frozenset[int]
) -> list[str]:
    """A job that runs has as many GPUs as it takes, each once, each there, up, and of a type it accepts."""
    found = []
    for job_id, gpus in runs.items():
        job = jobs.get(job_id)
        if job is None:
            found.append(f"job {job_id} runs and is not live")
            continue
        is_size = job.min_size <= len({*gpus}) == len(gpus) <= job.max_size
        is_there = all(0 <= gpu < cluster.size and gpu not in down for gpu in gpus)
        if not is_size or not is_there or not all(job.accepts(cluster.type_of[gpu]) for gpu in gpus):
            found.append(f"job {job_id} of {job.size} GPUs runs on {gpus}")
    return found


def charges_agree(held: Mapping[int, int], charged: Mapping[int, int]) -> list[str]:
    """Every GPU-second that a job held is charged to it, once; in halves of a ns."""
    return [
        f"job {job_id} held {held.get(job_id, 0)} halves of a GPU-ns and was charged {charged.get(job_id, 0)}"
        for job_id in sorted(held.keys() | charged.keys())
        if held.get(job_id, 0) != charged.get(job_id, 0)
    ]


class Auditor:
    """Called after each moment; raises InvariantError at the first that is wrong."""

    def __init__(self, world: World, books: Books, policy: Policy) -> None:
        self._world, self._books, self._policy = world, books, policy
        self._runs: dict[int, tuple[int, ...]] = {}
        self._since_ns = 0
        self._held: dict[int, int] = {}
        self._total = 0
        self._done: dict[int, int] = {}
        self._passes: Mapping[str, int] = {}

    def check(self, plan: Plan, ended: Sequence[Job]) -> None:
        """Check the moment that was just simulated."""
        world = self._world
        self._accrue(ended)
        self._runs = dict(plan.runs)
        found = [
            *no_gpu_given_twice(plan.runs),
            *gangs_are_whole(plan.runs, world.jobs, world.cluster, world.down),
            *self._world_follows(plan.runs),
            *self._nobody_is_lost(),
            *self._work_never_shrinks(ended),
            *self._passes_rise(),
            *getattr(self._policy, "violations", list)(),
        ]
        if found:
            raise InvariantError(self._sentence(found))

    def close(self) -> None:
        """Check the whole: what was held in all is what all were charged."""
        charged = sum(self._books.held_halves)
        if self._total != charged or len(self._books.specs) != self._books.finished:
            finished = f"{self._books.finished} of {len(self._books.specs)} jobs ended"
            wrong = f"GPUs were held {self._total / 2e9} s, charged {charged / 2e9} s, {finished}"
            raise InvariantError(self._sentence([wrong]))

    def _accrue(self, ended: Sequence[Job]) -> None:
        """Add what the last plan held until now, and compare that with the world's charges."""
        elapsed_ns, self._since_ns = self._world.now_ns - self._since_ns, self._world.now_ns
        sharers: dict[tuple[int, ...], int] = {}
        for gpus in self._runs.values():
            sharers[gpus] = sharers.get(gpus, 0) + 1
        for job_id, gpus in self._runs.items():
            halves = elapsed_ns * len(gpus) * (2 if sharers[gpus] == 1 else 1)
            self._held[job_id] = self._held.get(job_id, 0) + halves
            self._total += halves
        charged = {job.job_id: job.held_halves for job in (*self._world.jobs.values(), *ended)}
        self._held = {job_id: halves for job_id, halves in self._held.items() if halves}
        found = charges_agree(self._held, {job_id: halves for job_id, halves in charged.items() if halves})
        for job in ended:
            self._held.pop(job.job_id, None)
        if found:
            raise InvariantError(self._sentence(found))

    def _world_follows(self, runs: Mapping[int, tuple[int, ...]]) -> list[str]:
        """Who runs in the world is who was planned, and each GPU knows it."""
        world = self._world
        actual = {job.job_id: job.gpus for job in world.jobs.values() if job.is_running}
        found = [] if actual == dict(runs) else [f"planned {dict(runs)}, running {actual}"]
        holders: dict[int, list[int]] = {}
        for job_id, gpus in sorted(runs.items()):
            for gpu in gpus:
                holders.setdefault(gpu, []).append(job_id)
        if {gpu: [*ids] for gpu, ids in world.holders().items()} != holders:
            found.append(f"GPUs are held as {dict(world.holders())}, planned {holders}")
        return found

    def _nobody_is_lost(self) -> list[str]:
        """Whoever has arrived is live, or has ended."""
        arrived = bisect_right(self._books.specs, self._world.now_ns, key=lambda spec: spec.submit_ns)
        known = len(self._world.jobs) + self._books.finished
        return [] if arrived == known else [f"{arrived} jobs have arrived, {known} are live or have ended"]

    def _work_never_shrinks(self, ended: Sequence[Job]) -> list[str]:
        found = [f"job {job.job_id} ended with work left" for job in ended if job.done != job.work]
        for job in self._world.jobs.values():
            done = job.done_now
            if not self._done.get(job.job_id, 0) <= done <= job.work:
                found.append(f"job {job.job_id} had done {self._done[job.job_id]}, now {done} of {job.work}")
            self._done[job.job_id] = done
        for job in ended:
            self._done.pop(job.job_id, None)
        return found

    def _passes_rise(self) -> list[str]:
        """Policies with passes show them by a method `passes`, name → pass."""
        show = getattr(self._policy, "passes", None)
        if show is None:
            return []
        before, self._passes = self._passes, dict(show())
        return passes_never_fall(before, self._passes)

    def _sentence(self, found: Sequence[str]) -> str:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return (
            f"invariant broken at {self._world.now_ns / 1e9:.3f} s by {self._policy.name}: {found[0]}{more}"
        )
