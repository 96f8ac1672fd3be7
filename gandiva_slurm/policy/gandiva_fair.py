"""Gandiva_fair: tickets buy GPU time, fast GPUs go to whom they help most, jobs are packed where it pays.

Every quantum: charge what was held; level the passes; pick by gang-aware stride, users first, then their jobs
(`turns`); give each of them a GPU type by what it gains there and how far it is behind (`exchange`, `lag`);
seat them (`seats`); pack others beside them (`packing`). Between two quanta nobody is taken off, and what
became idle is filled.

What was held is charged, whatever was done with it; rates decide only who is where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from gandiva_slurm.policy.exchange import Exchange, Seeker
from gandiva_slurm.policy.forecast import Forecast
from gandiva_slurm.policy.lag import LagBook
from gandiva_slurm.policy.packing import Bench, PairBook
from gandiva_slurm.policy.port import JobView, Plan, PolicySettings, View
from gandiva_slurm.policy.seats import Guest, seat_all
from gandiva_slurm.policy.stride import Entrant, Pool, run_round
from gandiva_slurm.policy.tickets import TicketBook
from gandiva_slurm.policy.turns import Turns

#: How much more a fast GPU is worth to a job that is behind: its lag to this power.
_LAG_POWER = 2.0
#: A turn is so many times what a move costs, or a quantum if that is more.
_MIN_RUN = 18
#: A type must be worth its move so many times over: the gain may not last as long as the turn.
_MOVE_TIMES = 3
#: How often a round goes over all pairs of types, at most.
_MOST_SWEEPS = 4


@dataclass(frozen=True)
class Traits:
    """What of it is on: `gandiva` knows no users; tests show what each of the others is worth."""

    name: str = "gandiva_fair"
    by_user: bool = True
    by_type: bool = True
    packs: bool = True
    #: jobs of a user take turns; else the first to come goes first
    in_turn: bool = True


class GandivaFair:
    """The policy; made by `make`."""

    def __init__(self, settings: PolicySettings, traits: Traits | None = None) -> None:
        self._settings = settings
        self._traits = traits or Traits()
        self.name = self._traits.name
        self._turns = Turns()
        self._tickets = TicketBook(settings)
        self._lags: LagBook | None = None
        self._forecast: Forecast | None = None
        self._pairs = PairBook()
        self._now_ns = 0
        self._end_ns = 0
        #: whoever is picked runs at least so long
        self._turn_ns = max(settings.quantum_ns, _MIN_RUN * settings.restart_ns)
        self._turn_end_ns = 0
        #: the last plan: GPU time by job is charged by it; who shared a GPU is charged half of it
        self._runs: dict[int, tuple[int, ...]] = {}
        self._owners: dict[int, str] = {}
        self._shared: set[int] = set()
        self._speeds: dict[int, float] = {}
        self._somebody_waited = False

    @property
    def counts(self) -> dict[str, int]:
        """What the simulator's JSON tells of it: pairs tried by model and GPU type, kept, undone."""
        pairs = self._pairs
        return {"packs_tried": pairs.tried, "packs_kept": pairs.kept, "packs_undone": pairs.undone}

    def decide(self, view: View) -> Plan:
        """Say what is to run from now on."""
        self._charge(view)
        if not self._somebody_waited:
            # What nobody else wanted is owed to nobody: all begin anew, whoever comes now too.
            self._turns.settle(0)
        self._learn(view)
        if not view.jobs:
            self._remember(view, {}, set())
            return Plan({})
        rates = {job.job_id: self._forecast_of(view).rates(job) for job in view.jobs.values()}
        self._admit(view, rates)
        if view.now_ns >= self._end_ns:
            self._turns.settle(self._usable(view) * self._settings.quantum_ns)
            self._end_ns = view.now_ns + self._settings.quantum_ns
        is_turn = view.now_ns >= self._turn_end_ns
        if is_turn:
            self._turn_end_ns = view.now_ns + self._turn_ns
        runs = self._place(view, rates, is_turn)
        waiting = [job for job in view.jobs.values() if job.job_id not in runs]
        old = self._hosts() if self._settings.restart_ns else {}
        shared = self._pack(view, runs, waiting, rates, old)
        self._remember(view, runs, shared)
        return Plan(dict(sorted(runs.items())), self._end_ns)

    def _user(self, job: JobView) -> str:
        return job.user if self._traits.by_user else ""

    def _usable(self, view: View) -> int:
        return view.cluster.size - len(view.down)

    def _charge(self, view: View) -> None:
        """Charge all by the plan that has held since the last question."""
        elapsed_ns = view.now_ns - self._now_ns
        held: dict[str, float] = {}
        for job_id, gpus in self._runs.items():
            work, user = elapsed_ns * len(gpus), self._owners[job_id]
            self._turns.charge(user, job_id, work // 2 if job_id in self._shared else work)
            held[user] = held.get(user, 0.0) + len(gpus) / (2 if job_id in self._shared else 1)
        self._tickets.note(elapsed_ns, held, view.cluster.size)
        if self._lags is not None:
            self._lags.note(elapsed_ns / 1e9, self._speeds)
        self._now_ns = view.now_ns

    def _learn(self, view: View) -> None:
        """Take over what was measured since the last question."""
        alone = [job_id for job_id in self._runs if job_id in view.jobs and job_id not in self._shared]
        ran = [(view.jobs[job_id], view.cluster.type_of[self._runs[job_id][0]]) for job_id in alone]
        self._forecast_of(view).learn(ran, view.rates)
        self._pairs.learn(view.rates)

    def _forecast_of(self, view: View) -> Forecast:
        if self._forecast is None:
            self._forecast = Forecast(tuple(view.cluster.counts))
        return self._forecast

    def _admit(self, view: View, rates: Mapping[int, Mapping[str, float]]) -> None:
        jobs: dict[str, dict[int, int]] = {}
        for job in view.jobs.values():
            jobs.setdefault(self._user(job), {})[job.job_id] = job.tickets * (job.priority + 1)
        tickets = self._tickets.of(view.jobs.values())
        users = {user: tickets.get(user, 1) for user in jobs}
        self._turns.set_members(users, jobs)
        if self._lags is None:
            self._lags = LagBook(view.cluster, self._settings.quantum_ns / 1e9)
        whole = sum(users.values())
        parts = {
            job_id: users[user] / whole / len(own) for user, own in jobs.items() for job_id in own
        }
        self._lags.set_members(view.jobs.values(), parts, rates)

    def _place(
        self, view: View, rates: Mapping[int, Mapping[str, float]], is_turn: bool
    ) -> dict[int, tuple[int, ...]]:
        """Pick and seat; where a picked job found no seat, others are picked for the GPUs that are left."""
        refused: set[int] = set()
        runs: dict[int, tuple[int, ...]] = {}
        staying = [] if is_turn else self._staying(view)
        while True:
            picked = self._pick(view, staying, refused)
            worth = self._worth(picked, rates)
            runs = self._seat(view, picked, self._rooted(view, picked, worth, is_turn), runs)
            unseated = {job.job_id for job in picked} - runs.keys()
            if not unseated or sum(map(len, runs.values())) == self._usable(view):
                return runs
            refused |= unseated
            staying = [view.jobs[job_id] for job_id in runs]

    def _staying(self, view: View) -> list[JobView]:
        """Those who run and have not ended: nobody is taken off in the middle of a quantum."""
        return [view.jobs[job_id] for job_id in self._runs if job_id in view.jobs]

    def _pick(self, view: View, staying: Sequence[JobView], refused: Set[int]) -> list[JobView]:
        """Return who runs, by the passes, beside those who stay."""
        guests = set(self._hosts().values())
        hosts = [job for job in staying if job.job_id not in guests]
        pool = Pool(self._usable(view))
        charged: dict[str, int] = {}
        for job in hosts:
            pool.force(job.size, 0)
            user = self._user(job)
            charged[user] = charged.get(user, 0) + job.size * self._settings.quantum_ns
        chosen = {job.job_id for job in hosts}
        entrants = [
            Entrant(
                job.job_id, self._user(job), job.size, job.tickets, job.order,
                self._turns.job_pass(self._user(job), job.job_id) if self._traits.in_turn else 0,
            )
            for job in view.jobs.values()
            if job.job_id not in chosen and job.job_id not in refused
        ]  # fmt: skip
        picked = run_round(entrants, self._turns.standing(), pool, self._settings.quantum_ns, charged)
        chosen |= {key for key in picked if isinstance(key, int)}
        return [job for job_id, job in view.jobs.items() if job_id in chosen]

    def _hosts(self) -> dict[int, int]:
        """The guests of the last plan, by their hosts: the job that was put beside the other is the guest."""
        first: dict[tuple[int, ...], int] = {}
        pairs = [(first.setdefault(gpus, job_id), job_id) for job_id, gpus in self._runs.items()]
        return {host: guest for host, guest in pairs if host != guest}

    def _worth(
        self, jobs: Sequence[JobView], rates: Mapping[int, Mapping[str, float]]
    ) -> dict[int, dict[str, float]]:
        """What each type is worth to each job: its speed there, of its best, and more if it is behind."""
        return {job.job_id: self._worth_of(job, rates[job.job_id]) for job in jobs}

    def _worth_of(self, job: JobView, rates: Mapping[str, float]) -> dict[str, float]:
        assert self._lags is not None
        best = max(rates.values(), default=0.0) or 1.0
        if not self._traits.by_type:
            return {gpu_type: 1.0 for gpu_type, rate in rates.items() if rate > 0}
        weight = self._lags.lag(job.job_id) ** _LAG_POWER
        return {gpu_type: rate / best * weight for gpu_type, rate in rates.items() if rate > 0}

    def _rooted(
        self, view: View, picked: Sequence[JobView], worth: Mapping[int, dict[str, float]], is_turn: bool
    ) -> dict[int, dict[str, float]]:
        """What a move costs is taken off; in the middle of a turn who runs stays on his GPU type."""
        if not self._settings.restart_ns:
            return dict(worth)
        rooted = {job.job_id: self._less_move(view, job, worth[job.job_id]) for job in picked}
        for job in [] if is_turn else picked:
            at = _type_of(view, job)
            if job.job_id in self._runs and at in worth[job.job_id]:
                rooted[job.job_id] = {at: worth[job.job_id][at]}
        return rooted

    def _less_move(self, view: View, job: JobView, worth: Mapping[str, float]) -> dict[str, float]:
        """The part of a turn that a move takes, and some more, is worth nothing."""
        at = _type_of(view, job)
        left = 1 - _MOVE_TIMES * self._settings.restart_ns / self._turn_ns
        return {name: value if at in ("", name) else value * left for name, value in worth.items()}

    def _seat(
        self,
        view: View,
        picked: Sequence[JobView],
        worth: Mapping[int, Mapping[str, float]],
        seated: Mapping[int, tuple[int, ...]],
    ) -> dict[int, tuple[int, ...]]:
        """Give GPUs to those who have none yet in this round; return those of all."""
        cluster = view.cluster
        closed = view.down.union(*seated.values())
        room = dict(cluster.counts)
        for gpu in closed:
            room[cluster.type_of[gpu]] -= 1
        others = [job for job in picked if job.job_id not in seated]
        types = Exchange([_seeker(view, job, worth[job.job_id]) for job in others], room).settle(_MOST_SWEEPS)
        guests = [
            Guest(job.job_id, job.size, types[job.job_id], job.gpus, job.is_running, job.can_migrate)
            for job in others
            if job.job_id in types
        ]
        return {**seated, **seat_all(cluster, closed, guests)}

    def _pack(
        self,
        view: View,
        runs: dict[int, tuple[int, ...]],
        waiting: Sequence[JobView],
        rates: Mapping[int, Mapping[str, float]],
        old: Mapping[int, int],
    ) -> set[int]:
        """Put guests beside hosts into `runs`; return all who share.

        A host loses speed and is charged half: his user gains by it only with another job to run meanwhile.
        """
        gainers = {self._user(job) for job in waiting}
        hosts = [
            (view.jobs[job_id], view.cluster.type_of[gpus[0]])
            for job_id, gpus in runs.items()
            if len(gpus) == 1 and view.jobs[job_id].can_pack and self._user(view.jobs[job_id]) in gainers
        ]
        movable = [job for job in waiting if job.can_migrate or not job.gpus]
        small = [job for job in movable if job.size == 1 and job.can_pack]
        if not self._traits.packs or not hosts or not small:
            return set()
        worth = self._worth([*small, *(job for job, _ in hosts)], rates)
        bench = Bench(hosts, small, lambda job, gpu_type: worth[job.job_id].get(gpu_type, 0.0), old)
        shared = set()
        for pair in self._pairs.match(bench, view.rates):
            runs[pair.guest] = runs[pair.host]
            shared |= {pair.host, pair.guest}
        return shared

    def _remember(self, view: View, runs: dict[int, tuple[int, ...]], shared: set[int]) -> None:
        self._runs, self._shared = dict(runs), shared
        self._somebody_waited = len(runs) < len(view.jobs)
        self._owners = {job_id: self._user(view.jobs[job_id]) for job_id in runs}
        partner = _partners(runs)
        self._speeds = {
            job_id: _speed(view, job_id, gpus, partner.get(job_id)) for job_id, gpus in runs.items()
        }


def make(settings: PolicySettings) -> GandivaFair:
    """Make the policy."""
    return GandivaFair(settings)


def _seeker(view: View, job: JobView, worth: Mapping[str, float]) -> Seeker:
    """A job with a place that it cannot leave seeks that type alone."""
    at = _type_of(view, job)
    is_bound = at and not job.can_migrate
    return Seeker(job.job_id, job.size, {at: worth.get(at, 1.0)} if is_bound else worth, at)


def _type_of(view: View, job: JobView) -> str:
    return view.cluster.type_of[job.gpus[0]] if job.gpus else ""


def _partners(runs: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    by_gpus: dict[tuple[int, ...], list[int]] = {}
    for job_id, gpus in runs.items():
        by_gpus.setdefault(gpus, []).append(job_id)
    return {a: b for pair in by_gpus.values() if len(pair) == 2 for a, b in (pair, pair[::-1])}


def _speed(view: View, job_id: int, gpus: tuple[int, ...], partner: int | None) -> float:
    """The rate a job is believed to run at."""
    job, gpu_type = view.jobs[job_id], view.cluster.type_of[gpus[0]]
    alone = view.rates.alone(job.model, job.size, gpu_type) or 0.0
    if partner is None:
        return alone
    both = view.rates.packed(job.model, view.jobs[partner].model, gpu_type)
    return both[0] if both is not None else alone / 2
