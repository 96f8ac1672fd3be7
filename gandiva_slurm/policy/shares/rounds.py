"""One round of a pool of GPUs: who runs, by the passes, until all GPUs are used or nobody else fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from gandiva_slurm.policy.port import JobView
from gandiva_slurm.slicing.stride import Entrant, Pool, run_round
from gandiva_slurm.slicing.turns import Turns

Runs = dict[int, tuple[int, ...]]


class Wanted(NamedTuple):
    """A job that is to run, and its size. The lower rank goes first where two can have the same GPUs only."""

    job: JobView
    size: int
    rank: int = 0


#: Gives GPUs to those picked, as far as there are any, beside those who were seated before; returns all.
Seat = Callable[[Sequence[Wanted], Runs], Runs]


@dataclass(frozen=True, slots=True)
class Round:
    """A pool's jobs and passes, and how many GPUs it has now."""

    turns: Turns
    jobs: Mapping[int, JobView]
    room: int
    quantum_ns: int
    #: whose each job is
    owners: Mapping[int, str]
    #: False: first come first served inside a user
    in_turn: bool = True

    def hand_over(self, kept: Runs, homes: Runs) -> Runs:
        """Pick by the passes, each on the GPUs of its home, beside those that have theirs; return all."""
        pool, charged = Pool(self.room), dict[str, int]()
        for job_id, gpus in kept.items():
            pool.force(len(gpus), _mask(gpus))
            user = self.owners[job_id]
            charged[user] = charged.get(user, 0) + len(gpus) * self.quantum_ns
        entrants = [
            self._entrant(self.jobs[job_id], _mask(gpus))
            for job_id, gpus in homes.items()
            if job_id not in kept
        ]
        picked = set(run_round(entrants, self.turns.standing(), pool, self.quantum_ns, charged))
        return kept | {job_id: homes[job_id] for job_id in homes if job_id in picked}

    def fill(
        self, staying: Sequence[Wanted], seat: Seat, seated: Runs, rooted: Set[int] = frozenset()
    ) -> Runs:
        """Pick and seat; where a picked job found no seat, others are picked for the GPUs that are left.

        `seated`: those of the staying whose GPUs are known. `rooted`: jobs that can go to few GPUs; when one
        of them that can be moved finds none, the others are not asked.
        """
        refused: set[int] = set()
        runs = dict(seated)
        entrants = [self._entrant(job) for job in self.jobs.values()]
        while True:
            picked = self._pick(staying, entrants, refused)
            runs = seat(picked, runs)
            unseated = [wanted.job for wanted in picked if wanted.job.job_id not in runs]
            if not unseated or sum(map(len, runs.values())) == self.room:
                return self._at_home(seat, runs) if refused else runs
            # Who takes certain places only may have been in others' way for nothing: they are asked again.
            # One that cannot leave its GPUs says nothing of where others may go.
            if not rooted.isdisjoint(job.job_id for job in unseated if job.can_migrate):
                refused |= rooted
            choosy = [job for job in unseated if self._is_choosy(job)]
            refused.update(job.job_id for job in choosy or unseated)
            staying = [Wanted(self.jobs[job_id], len(gpus)) for job_id, gpus in runs.items()]

    def _at_home(self, seat: Seat, runs: Runs) -> Runs:
        """Let those run, too, that live on GPUs which were left idle and cannot leave them, by the passes."""
        taken = {gpu for gpus in runs.values() for gpu in gpus}
        bound = [job for job_id, job in self.jobs.items() if job_id not in runs and not job.can_migrate]
        free = [job for job in bound if job.gpus and taken.isdisjoint(job.gpus)]
        if not free or len(taken) == self.room:
            return runs
        staying = [Wanted(self.jobs[job_id], len(gpus)) for job_id, gpus in runs.items()]
        return seat(self._pick(staying, [self._entrant(job, _mask(job.gpus)) for job in free], set()), runs)

    def make_way(self, seat: Seat, runs: Runs) -> Runs:
        """Have jobs that can be moved go to idle GPUs, off those of a job that waits and cannot leave."""
        waiting = [job for job_id, job in self.jobs.items() if job_id not in runs and not job.can_migrate]
        bound = {job.job_id: job for job in waiting if job.gpus}
        for job_id in self._pick_order(bound.values()):
            if sum(map(len, runs.values())) == self.room:
                break
            holders = [other for other, gpus in runs.items() if not set(gpus).isdisjoint(bound[job_id].gpus)]
            if not all(self.jobs[other].can_migrate for other in holders):
                continue
            left = {other: gpus for other, gpus in runs.items() if other not in holders}
            picked = [Wanted(bound[job_id], len(bound[job_id].gpus))]
            picked += [Wanted(self.jobs[other], len(runs[other]), 1) for other in holders]
            found = seat(picked, left)
            if len(found) > len(runs):
                runs = found
        return runs

    def _pick_order(self, jobs: Iterable[JobView]) -> list[int]:
        """Return jobs by the passes."""
        turns, owners = self.turns, self.owners
        found = [(turns.user_pass(owner), turns.job_pass(owner, job.job_id), job.order, job.job_id)
                 for job, owner in ((job, owners[job.job_id]) for job in jobs)]  # fmt: skip
        return [job_id for *_, job_id in sorted(found)]

    def _is_choosy(self, job: JobView) -> bool:
        return bool(job.cell or job.nodes) or job.hosts is not None or not job.can_migrate

    def _pick(
        self, staying: Sequence[Wanted], entrants: Sequence[Entrant], refused: Set[int]
    ) -> list[Wanted]:
        """Return who runs, by the passes, beside those who stay."""
        pool = Pool(self.room)
        charged: dict[str, int] = {}
        sizes: dict[int, int] = {}
        for job, size, _ in staying:
            pool.force(size, 0)
            user = self.owners[job.job_id]
            charged[user] = charged.get(user, 0) + size * self.quantum_ns
            sizes[job.job_id] = size
        others = [each for each in entrants if each.key not in sizes and each.key not in refused]
        for key in run_round(others, self.turns.standing(), pool, self.quantum_ns, charged):
            assert isinstance(key, int)
            sizes[key] = self.jobs[key].size
        ranks = {job_id: rank for rank, job_id in enumerate(sizes)}
        return [
            Wanted(job, sizes[job_id], ranks[job_id]) for job_id, job in self.jobs.items() if job_id in sizes
        ]

    def _entrant(self, job: JobView, mask: int = 0) -> Entrant:
        user = self.owners[job.job_id]
        value = self.turns.job_pass(user, job.job_id) if self.in_turn else 0
        return Entrant(job.job_id, user, job.size, job.tickets, job.order, value, mask)


def _mask(gpus: Sequence[int]) -> int:
    return sum(1 << gpu for gpu in gpus)
