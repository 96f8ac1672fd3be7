"""From those picked to GPUs: who gets which type (`exchange`, `merit`), then which GPUs of it (`seats`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from gandiva_slurm.policy.elastic import trimmed
from gandiva_slurm.policy.exchange import Exchange, Seeker
from gandiva_slurm.policy.merit import Merit, type_of
from gandiva_slurm.policy.port import View
from gandiva_slurm.policy.rounds import Runs, Seat, Wanted
from gandiva_slurm.policy.seats import Guest, seat_all

#: How often a round goes over all pairs of types, at most.
_MOST_SWEEPS = 4


class Seating:
    """One question's types and seats."""

    def __init__(self, view: View, merit: Merit, ran: Set[int], is_turn: bool) -> None:
        """`ran`: who runs; in the middle of a turn they stay on their type where a move costs something."""
        self._view, self._merit, self._ran, self._is_turn = view, merit, ran, is_turn

    def anywhere(self, closed: Set[int], avoid: Set[int] = frozenset(), may_move: bool = False) -> Seat:
        """Seat on any GPUs but the closed ones; on those to avoid only where it must be.

        `may_move`: in the middle of a turn too, to another type.
        """
        cluster = self._view.cluster

        def seat(picked: Sequence[Wanted], seated: Runs) -> Runs:
            taken = frozenset(closed).union(*seated.values())
            room = dict(cluster.counts)
            for gpu in taken:
                room[cluster.type_of[gpu]] -= 1
            others = [wanted for wanted in picked if wanted.job.job_id not in seated]
            types = self._types(others, room, may_move)
            guests = [
                _guest(wanted, types[wanted.job.job_id]) for wanted in others if wanted.job.job_id in types
            ]
            return {**seated, **seat_all(cluster, taken, guests, frozenset(avoid))}

        return seat

    def choices(
        self, wanted: Sequence[Wanted], room: Mapping[str, int]
    ) -> list[tuple[Wanted, tuple[str, ...]]]:
        """Return for each job the type it is to have, then the others on which it can run."""
        types = self._types(wanted, room, False)
        found = []
        for each in wanted:
            able = sorted(self._merit.worth(each.job), key=lambda name: name != types.get(each.job.job_id))
            found.append((each, tuple(able)))
        return found

    def _types(self, wanted: Sequence[Wanted], room: Mapping[str, int], may_move: bool) -> dict[int, str]:
        """Return the GPU type of each job that finds room on one."""
        seekers = [self._seeker(each, may_move) for each in wanted]
        return Exchange(seekers, room).settle(_MOST_SWEEPS)

    def _seeker(self, wanted: Wanted, may_move: bool) -> Seeker:
        """A job with a place that it cannot leave seeks that type alone."""
        job, size = wanted
        at = type_of(self._view.cluster, job)
        is_fixed = not may_move and not self._is_turn and job.job_id in self._ran
        worth = self._merit.rooted(job, is_fixed)
        if len(job.gpus) < size:
            at = ""  # it cannot go on there as it is
        is_bound = at and not job.can_migrate
        return Seeker(job.job_id, size, {at: worth.get(at, 1.0)} if is_bound else worth, at)


def _guest(wanted: Wanted, gpu_type: str) -> Guest:
    job, size = wanted
    gpus = trimmed(job.gpus, size)
    return Guest(job.job_id, size, gpu_type, gpus, job.is_running, job.can_migrate, job.cell)
