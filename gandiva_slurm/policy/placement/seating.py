"""From those picked to GPUs: who gets which type (`exchange`, `merit`), then which GPUs of it (`seats`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from gandiva_slurm.policy.elastic import trimmed
from gandiva_slurm.policy.moves.exchange import Exchange, Seeker
from gandiva_slurm.policy.moves.merit import Merit, type_of
from gandiva_slurm.policy.placement.apart import Apart, may_be_together
from gandiva_slurm.policy.placement.eligibility import Eligibility
from gandiva_slurm.policy.placement.homes import Homes
from gandiva_slurm.policy.placement.seats import Guest, seat_all
from gandiva_slurm.policy.port import NODE, JobView, View
from gandiva_slurm.policy.shares.rounds import Runs, Seat, Wanted
from gandiva_slurm.policy.virtual_clusters.virtual import Choice

#: How often a round goes over all pairs of types, at most.
_MOST_SWEEPS = 4


class Seating:
    """One question's types and seats."""

    def __init__(self, view: View, merit: Merit, ran: Set[int], is_turn: bool, is_dear: bool) -> None:
        """`ran`: those that run; in the middle of a turn they stay on their type where moves cost something.

        `is_dear`: it costs too much for a part of a turn (`Pace.is_dear`).
        """
        self._view, self._merit, self._ran, self._is_turn = view, merit, ran, is_turn
        self._eligibility = Eligibility(view)
        #: GPUs that change hands in this turn: for a part of it others do not pay a dear move
        self._lived = frozenset[int]()
        if is_dear and not is_turn:
            self._lived = self._lived.union(*(job.gpus for job in view.jobs.values()))
        self._homes = Homes(view, merit, self._eligibility)
        #: the types of all jobs, where they have been chosen
        self._settled: dict[int, str] | None = None
        #: by model, size and type: not known to stand still on several nodes
        self._goes_apart: dict[tuple[str, int, str], bool] = {}

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
            at = {wanted.job.job_id: self._homes.of(wanted.job, closed) for wanted in others}
            apart = self._apart_of(others, taken, at) if self._is_turn else None
            types = self._types(others, at, room, may_move, apart)
            guests = [self._guest(wanted, at, types) for wanted in others if wanted.job.job_id in types]
            seats = seat_all(cluster, taken, guests, frozenset(avoid))
            gone = apart.together(others, types, self._merit.least_gain) if apart is not None else set()
            if gone:
                anew = [guest._replace(gpus=()) if guest.job_id in gone else guest for guest in guests]
                found = seat_all(cluster, taken, anew, frozenset(avoid))
                are_near = all(cluster.are_near(found.get(job_id, ())) for job_id in gone)
                if are_near and found.keys() >= seats.keys():
                    guests, seats = anew, found
            return {**seated, **self._off_homes(guests, seats, taken.union(avoid))}

        return seat

    def _apart_of(self, others: Sequence[Wanted], taken: Set[int], at: Runs) -> Apart | None:
        """Return what is known of gangs in pieces; None: no gang is, or may be."""
        comes = any(may_be_together(wanted.job) and not at[wanted.job.job_id] for wanted in others)
        if not comes and all(map(self._view.cluster.are_near, at.values())):
            return None
        return Apart(self._view.cluster, self._view.rates, taken, at, self._barred)

    def _off_homes(self, guests: Sequence[Guest], seats: Runs, closed: Set[int]) -> Runs:
        """Have newcomers shift on their nodes, off GPUs where others live that may be picked yet."""
        others = [job.gpus for job in self._view.jobs.values() if job.job_id not in seats]
        homes = frozenset[int]().union(*others).difference(*(guest.gpus for guest in guests))
        used, found = set(closed).union(*seats.values()), dict(seats)
        for guest in guests:
            gpus = seats.get(guest.job_id, ())
            if not homes.isdisjoint(gpus) and guest.cell in ("", NODE):
                found[guest.job_id] = self._shifted(gpus, homes, used, guest.barred)
        return found

    def _shifted(
        self, gpus: tuple[int, ...], homes: frozenset[int], used: set[int], barred: frozenset[int]
    ) -> tuple[int, ...]:
        """Take other GPUs of the same nodes for those that are homes, as far as there are any."""
        cluster, found = self._view.cluster, set(gpus)
        for gpu in sorted(homes.intersection(gpus)):
            host = cluster.hosts[cluster.host_of[gpu]].gpus
            spare = next((each for each in host if each not in used | homes | barred), None)
            if spare is not None:
                found ^= {gpu, spare}
                used.add(spare)
        return tuple(sorted(found))

    def as_they_are(self, jobs: Mapping[int, JobView]) -> Runs | None:
        """Return the GPUs where all of these run, each alone, if all go on so; None: others may be better.

        At a turn's beginning types are chosen anew. The order is the one in which they would be seated.
        """
        if self._view.down or any(len(each.gpus) != each.size for each in jobs.values()):
            return None
        if any(self._is_stuck(job, job.size) for job in jobs.values()):
            return None
        if not self._is_turn:
            return {job_id: job.gpus for job_id, job in jobs.items()}
        if self._apart_of([], frozenset(), {job_id: job.gpus for job_id, job in jobs.items()}) is not None:
            return None
        if not all(job.can_migrate for job in jobs.values()):
            return None
        cluster, types = self._view.cluster, self._types_of_all(jobs)
        if any(types.get(job_id) != cluster.type_of[job.gpus[0]] for job_id, job in jobs.items()):
            return None
        order = [*cluster.counts]
        stay = sorted((order.index(types[job_id]), -job.size, job_id) for job_id, job in jobs.items())
        return {job_id: jobs[job_id].gpus for *_, job_id in stay}

    def _types_of_all(self, jobs: Mapping[int, JobView]) -> Mapping[int, str]:
        places = {job_id: job.gpus for job_id, job in jobs.items()}
        wanted = [Wanted(job, job.size) for job in jobs.values()]
        self._settled = self._settle(wanted, places, self._view.cluster.counts, frozenset())
        return self._settled

    def homes(self, jobs: Iterable[JobView], closed: Set[int]) -> Runs:
        """Return where each lives, one that lives nowhere where there is room for it and nobody leaves.

        Jobs that have no such place, or whose place is closed, are left out.
        """
        homes = Homes(self._view, self._merit, Eligibility(self._view, stay=True), stay=True)
        found = {}
        for job in jobs:
            gpus = () if self._is_stuck(job, job.size) else trimmed(homes.of(job, closed), job.size)
            if len(gpus) == job.size and closed.isdisjoint(gpus):
                found[job.job_id] = gpus
        return found

    def choices(self, wanted: Sequence[Wanted], room: Mapping[str, int]) -> list[Choice]:
        """Return for each job the type it is to have, then the others on which it can run."""
        at = {each.job.job_id: each.job.gpus for each in wanted}
        types = self._types(wanted, at, room, False)
        found = []
        for each in wanted:
            able = sorted(self._merit.worth(each.job), key=lambda name: name != types.get(each.job.job_id))
            found.append(Choice(each, tuple(able), self._eligibility.barred(each.job)))
        return found

    def _types(
        self,
        wanted: Sequence[Wanted],
        places: Runs,
        room: Mapping[str, int],
        may_move: bool,
        apart: Apart | None = None,
    ) -> dict[int, str]:
        """Return the GPU type of each job that finds room on one.

        In the middle of a turn those that run stay on their type, but where there is no room for them.
        """
        if self._settled is not None and len(self._settled) == len(wanted):
            return self._settled
        fixed = frozenset[int]() if may_move or self._is_turn else frozenset(self._ran)
        types = self._settle(wanted, places, room, fixed, apart)
        lost = fixed.intersection(each.job.job_id for each in wanted) - types.keys()
        return self._settle(wanted, places, room, fixed - lost, apart) if lost else types

    def _settle(
        self,
        wanted: Sequence[Wanted],
        places: Runs,
        room: Mapping[str, int],
        fixed: Set[int],
        apart: Apart | None = None,
    ) -> dict[int, str]:
        seekers = [self._seeker(each, places[each.job.job_id], fixed, apart) for each in wanted]
        return Exchange(seekers, room).settle(_MOST_SWEEPS)

    def _seeker(self, wanted: Wanted, place: tuple[int, ...], fixed: Set[int], apart: Apart | None) -> Seeker:
        """A job with a place that it cannot leave seeks that type alone."""
        job, size = wanted.job, wanted.size
        at = type_of(self._view.cluster, place)
        worth = self._merit.rooted(job, job.job_id in fixed)
        if at and not job.can_migrate:
            return Seeker(job.job_id, size, {at: worth.get(at, 1.0)}, at, wanted.rank)
        if apart is not None and may_be_together(job) and (not place or apart.is_apart(job)):
            worth = {name: value * apart.factor(job, name) for name, value in worth.items()}
        if len(job.gpus) < size:
            at = ""  # it cannot go on there as it is
        return Seeker(job.job_id, size, self._open_types(job, size, worth), at, wanted.rank)

    def _open_types(self, job: JobView, size: int, worth: Mapping[str, float]) -> Mapping[str, float]:
        """Leave out the types of which too many GPUs are barred."""
        barred = self._barred(job)
        if not barred:
            return worth
        room, type_of_gpu = dict(self._view.cluster.counts), self._view.cluster.type_of
        for gpu in barred:
            room[type_of_gpu[gpu]] -= 1
        return {name: value for name, value in worth.items() if room[name] >= size}

    def _guest(self, wanted: Wanted, places: Runs, types: Mapping[int, str]) -> Guest:
        job, size = wanted.job, wanted.size
        gpus, barred = trimmed(places[job.job_id], size), self._barred(job)
        can_spread = self._can_spread(job, size, types[job.job_id])
        if self._is_stuck(job, size):
            gpus = ()
        return Guest(
            job.job_id, size, types[job.job_id], gpus, job.is_running, job.can_migrate, job.cell, barred,
            wanted.rank, can_spread, job.nodes,
        )  # fmt: skip

    def _barred(self, job: JobView) -> frozenset[int]:
        """Return the GPUs to which a job may not come now, on those of others' turns among them."""
        barred = self._eligibility.barred(job)
        return barred | self._lived.difference(job.gpus) if job.gpus and self._lived else barred

    def _can_spread(self, job: JobView, size: int, gpu_type: str) -> bool:
        """True unless it has to stay where it begins, or is known to stand still on several nodes."""
        key = (job.model, size, gpu_type)
        if key not in self._goes_apart:
            apart = self._view.rates.alone(*key, is_local=False)
            self._goes_apart[key] = apart is None or apart > 0
        return job.can_migrate and self._goes_apart[key]

    def _is_stuck(self, job: JobView, size: int) -> bool:
        """True for one that could move and stands still where it is, in pieces."""
        gpus = job.gpus
        if len(gpus) < 2 or not job.can_migrate or self._view.cluster.are_near(gpus):
            return False
        return not self._can_spread(job, size, type_of(self._view.cluster, gpus))
