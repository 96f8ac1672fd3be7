"""Who shares a GPU in a plan: equals by what both gain (`packing`), guests of guaranteed jobs (`classes`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gandiva_slurm.policy.moves.merit import Merit
from gandiva_slurm.policy.packing.classes import Guard
from gandiva_slurm.policy.packing.pairs import Admits, Bench, PairBook
from gandiva_slurm.policy.packing.room import fits
from gandiva_slurm.policy.placement.eligibility import Eligibility
from gandiva_slurm.policy.port import JobView, PolicySettings, Rates, View
from gandiva_slurm.policy.shares.groups import Group, Last
from gandiva_slurm.slicing.groups import SPARE
from gandiva_slurm.slicing.stride import STRIDE1

#: Quanta after which a trial that could not be measured may make way for another one.
_LONGEST_TRIAL = 10


class Sharing:
    """What was learnt of pairs."""

    def __init__(self, moves_cost: bool, settings: PolicySettings) -> None:
        """`moves_cost`: pairs that were found good, or are on trial, stay together."""
        self.moves_cost, self._quantum_ns = moves_cost, settings.quantum_ns
        self._pairs, self._guard = PairBook(settings.pack_floor), Guard()
        #: host and guest of each pair on trial, and since when
        self._trials: dict[tuple[int, int], int] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Pairs tried by model and GPU type, kept, undone."""
        books = (self._pairs, self._guard)
        return {
            "packs_tried": sum(book.tried for book in books),
            "packs_kept": sum(book.kept for book in books),
            "packs_undone": sum(book.undone for book in books),
        }

    @property
    def is_trying(self) -> bool:
        """True while it is not known yet whether a guaranteed job keeps its speed."""
        return self._guard.is_trying

    def learn(self, rates: Rates) -> None:
        """Take over what was measured."""
        self._pairs.learn(rates)

    def pack(self, view: View, merit: Merit, last: Last, groups: Mapping[str, Group], before: Last) -> None:
        """Put guests beside hosts in this plan; `before`: the last one, whose pairs may stay."""
        trials, self._trials = self._trials, {}
        if all(group.jobs.keys() <= last.runs.keys() for group in groups.values()):
            self._guard.match((), (), view.rates, {})
            return
        old, admits = before.guests if self.moves_cost else {}, _admits(view, last)
        longest_ns = _LONGEST_TRIAL * self._quantum_ns
        fresh = {host for (host, _), since_ns in trials.items() if view.now_ns < since_ns + longest_ns}
        for name, group in groups.items():
            bench = self._bench(view, merit, last, name, group, admits)
            whole = replace(bench, old=old, on_trial=fresh) if bench else None
            for pair in self._pairs.match(whole, view.rates) if whole else ():
                if pair.is_trial:
                    key = (pair.host, pair.guest)
                    self._trials[key] = trials.get(key, view.now_ns)
                last.share(pair.host, pair.guest, name)
                last.halved |= {pair.host, pair.guest}
        guests = [job for job in groups[SPARE].waiting(last.runs, last.owners) if job.can_migrate]
        alone = _hosts(view, last) if guests else ()
        hosts = [place for place in alone if last.groups[place[0].job_id] != SPARE]
        for pair in self._guard.match(hosts, guests, view.rates, before.guests, admits):
            # The host keeps its speed, so it pays all of its GPU; the guest half of it, from what is left.
            last.share(pair.host, pair.guest, SPARE)
            last.halved.add(pair.guest)

    def _bench(
        self, view: View, merit: Merit, last: Last, name: str, group: Group, admits: Admits
    ) -> Bench | None:
        """Return those of a group that may be hosts, and those that may come; None: there are none.

        A host loses speed and is charged half. Its user gains where another of its jobs runs meanwhile, or
        where its next turn comes sooner by that: not where it is behind by more than a quantum as it is.
        """
        waiting = [job for job_id, job in group.jobs.items() if job_id not in last.runs]
        small = [job for job in waiting if _has_place(job) and job.size == 1 and job.can_pack]
        alone = _hosts(view, last) if small else []
        hosts = [(host, gpu_type) for host, gpu_type in alone if last.groups[host.job_id] == name]
        if not hosts:
            return None
        worth = {job.job_id: merit.worth(job) for job in (*small, *(host for host, _ in hosts))}
        types = {host.job_id: gpu_type for host, gpu_type in hosts}
        waiters, turns = {last.owners[job.job_id] for job in waiting}, group.turns
        loses: dict[tuple[int, str], bool] = {}

        def gains(host: JobView, guest: JobView) -> bool:
            key = (guest.job_id, types[host.job_id])
            if key not in loses:
                loses[key] = merit.would_lose(guest, key[1])
            if loses[key] or not admits(host, guest):
                return False
            user, other = last.owners[host.job_id], last.owners[guest.job_id]
            behind = (turns.user_pass(other) - turns.user_pass(user)) * turns.tickets(user)
            return user in waiters or behind <= self._quantum_ns * STRIDE1

        return Bench(hosts, small, lambda job, gpu_type: worth[job.job_id].get(gpu_type, 0.0), admits=gains)


def _hosts(view: View, last: Last) -> list[tuple[JobView, str]]:
    """Those on a GPU of their own that may share it, with its type."""
    return [
        (view.jobs[job_id], view.cluster.type_of[gpus[0]])
        for job_id, gpus in last.runs.items()
        if len(gpus) == 1 and view.jobs[job_id].can_pack and job_id not in last.shared
    ]


def _admits(view: View, last: Last) -> Admits:
    """Guests come where they may come and fit in; one that cannot be saved only to where it is."""
    eligibility, living = Eligibility(view), dict[int, list[JobView]]()
    for job in view.jobs.values() if view.card_bytes else ():
        for gpu in job.gpus:
            living.setdefault(gpu, []).append(job)

    def fit(host: JobView, guest: JobView, gpu: int) -> bool:
        if not view.card_bytes:
            return True
        peaks, card = (host.peak_bytes, guest.peak_bytes), view.card_bytes[view.cluster.host_of[gpu]]
        others = [job.held_bytes for job in living.get(gpu, ()) if job is not host and job is not guest]
        return card > 0 and all(peaks) and fits(card, peaks, others)

    def admits(host: JobView, guest: JobView) -> bool:
        gpus = last.runs[host.job_id]
        can_come = eligibility.barred(guest).isdisjoint(gpus) and (guest.can_migrate or guest.gpus == gpus)
        return can_come and fit(host, guest, gpus[0])

    return admits


def _has_place(job: JobView) -> bool:
    """False for one that would have to stay for ever where it begins as a guest."""
    return job.can_migrate or bool(job.gpus)
