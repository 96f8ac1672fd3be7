"""Gavel, max-min fairness with packing: a linear programme, realised by rounds (OSDI 2020).

The allocation says how many groups (a job, or two packed ones) of each kind run at once on each GPU type.
Each round goes to the groups of the highest priority: allocation / (time received / worker time); of the jobs
that are alike, to the one that received least. Rates are given, as in the paper.

More than the paper: what is idle after that, or between two rounds, goes to whoever waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import combinations_with_replacement
from typing import NamedTuple

from gandiva_slurm.policy.baselines.max_min import Allocation, Kind, allocate
from gandiva_slurm.policy.baselines.placing import Pick, Runs, held, kept, settle
from gandiva_slurm.policy.placement.free import FreeGpus
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, Rates, View, takes_oracle


class Likeness(NamedTuple):
    """What makes two jobs of one kind."""

    model: str
    size: int
    tickets: int
    gpu_types: tuple[str, ...]
    can_pack: bool


def likeness(job: JobView) -> Likeness:
    """Return a job's kind. One that cannot move is not packed: two such could be on different GPUs."""
    can_pack = job.size == 1 and job.can_pack and job.can_migrate
    return Likeness(job.model, job.size, job.tickets, job.gpu_types, can_pack)


#: What runs together, by likeness, on a type: a group whatever the programme's indexes are.
Team = tuple[tuple[Likeness, ...], str]


class GavelMaxMin:
    """The policy; made by `make`."""

    def __init__(self, settings: PolicySettings, packs: bool = True, renew_ns: int = 0) -> None:
        """`renew_ns`: an allocation stands at least so long, and who comes meanwhile gets nothing."""
        self.name = "gavel_max_min" if packs else "gavel_max_min_alone"
        self._oracle = settings.oracle
        self._round_ns = settings.quantum_ns
        self._packs, self._renew_ns = packs, renew_ns
        self._round_end_ns = 0
        self._now_ns = 0
        self._solved_for: object = None
        self._solved_ns: int | None = None
        #: jobs that were there when it was made; others get nothing, however long it lasts
        self._known: frozenset[int] = frozenset()
        self._shares: dict[Team, float] = {}
        #: group time since the allocation was made
        self._received: dict[Team, int] = {}
        self._received_by: dict[tuple[int, Team], int] = {}
        self._runs: Runs = {}
        self._teams: list[tuple[Team, tuple[int, ...]]] = []

    def decide(self, view: View) -> Plan:
        """Charge what ran; at a round's end choose anew, in between let run and fill."""
        self._charge(view.now_ns)
        if not view.jobs:
            self._teams, self._runs, self._round_end_ns = [], {}, view.now_ns
            return Plan({})
        runs = kept(view, self._runs) if view.now_ns < self._round_end_ns else {}
        if not runs:
            runs = self._new_round(view)
        self._teams = [(team, ids) for team, ids in self._teams if all(one in runs for one in ids)]
        self._fill(view, runs)
        self._runs = runs
        return Plan(dict(runs), self._round_end_ns)

    def _charge(self, now_ns: int) -> None:
        passed, self._now_ns = now_ns - self._now_ns, now_ns
        for team, ids in self._teams:
            self._received[team] = self._received.get(team, 0) + passed
            for job_id in ids:
                key = (job_id, team)
                self._received_by[key] = self._received_by.get(key, 0) + passed

    def _new_round(self, view: View) -> Runs:
        self._round_end_ns = view.now_ns + self._round_ns
        kinds: dict[Likeness, list[JobView]] = {}
        for job in view.jobs.values():
            kinds.setdefault(likeness(job), []).append(job)
        self._renew(view, kinds)
        if self._renew_ns:
            kinds = {like: [job for job in jobs if job.job_id in self._known] for like, jobs in kinds.items()}
        self._teams = list(self._choose(view, kinds))
        picks = [Pick(_host(view, ids, team[1]), team[0][0].size, team[1]) for team, ids in self._teams]
        runs = settle(view, picks)
        for (_, ids), pick in zip(self._teams, picks, strict=True):
            if pick.job.job_id in runs:  # it may not be everywhere, and there was no room where it may be
                runs.update((job_id, runs[pick.job.job_id]) for job_id in ids)
        return runs

    def _renew(self, view: View, kinds: Mapping[Likeness, list[JobView]]) -> None:
        """Solve again when other jobs are there, or GPUs; what was received counts from then on."""
        counts = _counts(view)
        state = ({like: len(jobs) for like, jobs in kinds.items()}, counts)
        if self._solved_ns is not None and view.now_ns < self._solved_ns + self._renew_ns:
            self._shares = {team: part for team, part in self._shares.items() if set(team[0]) <= kinds.keys()}
            return
        self._known = frozenset(view.jobs)
        if state == self._solved_for:
            return
        self._solved_for, self._solved_ns = state, view.now_ns
        self._received, self._received_by = {}, {}
        names = list(kinds)
        answer = self._solve(view, [(like, len(kinds[like])) for like in names], counts)
        self._shares = {
            (tuple(names[index] for index in group.kinds), group.gpu_type): part
            for group, part in answer.groups.items()
        }

    def _solve(self, view: View, kinds: list[tuple[Likeness, int]], counts: Mapping[str, int]) -> Allocation:
        rates = self._oracle or view.rates
        rows = [
            Kind(number, like.size, _rates_of(like, rates, counts), like.tickets / 100)
            for like, number in kinds
        ]
        packed: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}
        packable = [index for index, (like, _) in enumerate(kinds) if like.can_pack and self._packs]
        for pair in combinations_with_replacement(packable, 2):
            one, other = (kinds[index][0].model for index in pair)
            both = {name: rates.packed(one, other, name) for name in counts}
            packed[pair] = {name: value for name, value in both.items() if value}
        return allocate(rows, counts, packed)

    def _choose(
        self, view: View, kinds: Mapping[Likeness, list[JobView]]
    ) -> Iterator[tuple[Team, tuple[int, ...]]]:
        """Groups for a round: always the one of the highest priority that still fits."""
        left, waiting = _counts(view), {like: list(jobs) for like, jobs in kinds.items()}
        granted, pinned = dict.fromkeys(self._shares, 0), set(view.down)
        open_teams = set(self._shares)
        while open_teams:
            team = min(open_teams, key=lambda team: self._rank(team, granted[team]))
            fits = left.get(team[1], 0) >= team[0][0].size
            members = self._members(view, team, waiting, pinned) if fits else ()
            if not members:
                open_teams.remove(team)
                continue
            granted[team] += 1
            left[team[1]] -= team[0][0].size
            yield team, tuple(job.job_id for job in members)

    def _rank(self, team: Team, granted: int) -> tuple[float, float, Team]:
        """Low is first: time received by its allocation; a group that received none, by its allocation."""
        share = self._shares[team]
        return ((self._received.get(team, 0) + granted * self._round_ns) / share, -share, team)

    def _members(
        self, view: View, team: Team, waiting: Mapping[Likeness, list[JobView]], pinned: set[int]
    ) -> tuple[JobView, ...]:
        """Take a job of each kind of the group, who received least in it first; () when there is none."""
        likes, gpu_type = team
        found: list[JobView] = []
        for like in likes:
            free = [
                job for job in waiting[like] if job not in found and _may_be_on(view, job, gpu_type, pinned)
            ]
            if not free:
                return ()
            found.append(min(free, key=lambda job: self._least_first(view, job, team)))
        for job in found:
            waiting[likeness(job)].remove(job)
            if not job.can_migrate:
                pinned.update(job.gpus)
        return tuple(found)

    def _least_first(self, view: View, job: JobView, team: Team) -> tuple[int, bool, tuple[int, int]]:
        is_there = bool(job.gpus) and view.cluster.type_of[job.gpus[0]] == team[1]
        return (self._received_by.get((job.job_id, team), 0), not is_there, job.order)

    def _fill(self, view: View, runs: Runs) -> None:
        """Let who waits run on idle GPUs: on the types of his allocation first, then on the fastest."""
        free = FreeGpus(view.cluster, view.down.union(held(runs)))
        rates = self._oracle or view.rates
        for job in view.jobs.values():
            is_outside = self._renew_ns > 0 and job.job_id not in self._known
            if job.job_id in runs or is_outside or not free.left:
                continue
            like = likeness(job)
            speeds = _rates_of(like, rates, view.cluster.counts)
            usable = [name for name, rate in speeds.items() if rate > 0 and free.left_of(name) >= job.size]
            types = sorted(usable, key=lambda name: (-self._shares.get(((like,), name), 0.0), -speeds[name]))
            gpus = next((found for name in types if (found := free.place(job, (name,)))), None)
            if gpus:
                runs[job.job_id] = gpus
                self._teams.append((((like,), _type_of(view, gpus)), (job.job_id,)))


def _rates_of(like: Likeness, rates: Rates, counts: Iterable[str]) -> dict[str, float]:
    """Rates by type; where nothing at all is known, all types are alike."""
    known = {
        name: rates.alone(like.model, like.size, name)
        for name in counts
        if not like.gpu_types or name in like.gpu_types
    }
    if all(rate is None for rate in known.values()):
        return dict.fromkeys(known, 1.0)
    return {name: rate or 0.0 for name, rate in known.items()}


def _counts(view: View) -> dict[str, int]:
    """GPUs of each type that are up; types of which there are none are left out."""
    counts = dict(view.cluster.counts)
    for gpu in view.down:
        counts[view.cluster.type_of[gpu]] -= 1
    return {name: count for name, count in counts.items() if count}


def _may_be_on(view: View, job: JobView, gpu_type: str, pinned: Set[int]) -> bool:
    """False for a job that cannot leave GPUs of another type, or that are down or another such job's."""
    if job.can_migrate or not job.gpus:
        return True
    return _type_of(view, job.gpus) == gpu_type and pinned.isdisjoint(job.gpus)


def _type_of(view: View, gpus: tuple[int, ...]) -> str:
    return view.cluster.type_of[gpus[0]]


def _host(view: View, ids: tuple[int, ...], gpu_type: str) -> JobView:
    """The job of a group whose place it takes: one that is on this type already, if any."""
    jobs = [view.jobs[job_id] for job_id in ids]
    return min(jobs, key=lambda job: (not (job.gpus and _type_of(view, job.gpus) == gpu_type), job.order))


@takes_oracle
def make(settings: PolicySettings) -> GavelMaxMin:
    """Make the policy."""
    return GavelMaxMin(settings)


@takes_oracle
def make_alone(settings: PolicySettings) -> GavelMaxMin:
    """Make the policy without packing."""
    return GavelMaxMin(settings, packs=False)
