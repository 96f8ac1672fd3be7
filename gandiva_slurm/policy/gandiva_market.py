"""Gandiva_fair as its paper has it: a pool for every GPU type, and users who trade one for another.

Who comes, goes, or is first measured on a type makes a new division (`trading`): each user's own share of
every type, used best type first; what he leaves handed on; sales at a second price. What a user then holds of
a type, in millionths of a GPU, is his tickets in that type's pool, and each pool is shared by gang-aware
stride, users first, then their jobs (`turns`). GPUs that no ticket holder can fill go to any job that waits.

Rates are measured, never told; jobs are not packed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from gandiva_slurm.policy.moves.forecast import Forecast
from gandiva_slurm.policy.moves.pace import Pace
from gandiva_slurm.policy.placement.eligibility import Eligibility
from gandiva_slurm.policy.placement.seats import Guest, seat_all
from gandiva_slurm.policy.port import JobView, OfUser, Plan, PolicySettings, View
from gandiva_slurm.policy.shares.associations import SCALE
from gandiva_slurm.policy.shares.tickets import TicketBook
from gandiva_slurm.policy.trading.trades import Desk, Division, claimants_of
from gandiva_slurm.slicing.stride import Entrant, Pool, run_round
from gandiva_slurm.slicing.turns import Turns

Runs = dict[int, tuple[int, ...]]

#: Trades of a user that are told one by one, the largest first.
MOST_TOLD = 3


class GandivaMarket:
    """The policy; made by `make`. `is_trading` False: own shares and what others leave, nothing more."""

    name = "gandiva_market"

    def __init__(self, settings: PolicySettings, is_trading: bool = True) -> None:
        self._tickets = TicketBook(settings)
        self._desk = Desk(is_trading)
        self._division: Division | None = None
        self._division_key: object = None
        #: by type: the pool's passes, and who has tickets there
        self._pools: dict[str, Turns] = {}
        self._members: dict[str, Set[str]] = {}
        self._forecast = Forecast(())
        self._now_ns = 0
        self._turn_ns = Pace(settings.quantum_ns, settings.switch_ns, settings.restart_ns).turn_ns
        self._turn_end_ns = 0
        #: the last plan, and whose jobs they are
        self._runs: Runs = {}
        self._owners: dict[int, str] = {}
        self._users: dict[int, str] = {}
        self._somebody_waited = False
        #: sales struck, counted at each new division
        self.counts = {"trades": 0}
        #: by user and type: GPU seconds that trades brought, and took
        self.traded_in: dict[str, dict[str, float]] = {}
        self.traded_out: dict[str, dict[str, float]] = {}

    def passes(self) -> dict[str, int]:
        """Return where every user stands in every pool (for checks)."""
        return {
            f"{user} on {gpu_type}": value
            for gpu_type, turns in self._pools.items()
            for user, value in turns.passes()[0].items()
        }

    def of_users(self) -> dict[str, OfUser]:
        """Return what trades brought each user and took from it so far, and what past use does."""
        past, came, went = self._tickets.of_users(), self.traded_in, self.traded_out
        return {
            name: OfUser(past.get(name, OfUser()).fair_share, {**came.get(name, {})}, {**went.get(name, {})})
            for name in sorted({*past, *came, *went})
        }

    def explain(self, job_id: int, now_ns: int) -> Iterator[str]:
        """Say what the job's user trades now, for `gandiva why`."""
        user = self._users.get(job_id)
        if user is None or self._division is None:
            return
        yield from self._tickets.told(user)
        sales = [sale for sale in self._division.trades if user in (sale.buyer, sale.seller)]
        for sale in sorted(sales, key=lambda sale: -sale.amount)[:MOST_TOLD]:
            yield f"trade: {sale.evidence}"
        if len(sales) > MOST_TOLD:
            yield f"and {len(sales) - MOST_TOLD} smaller trades"

    def decide(self, view: View) -> Plan:
        """Say what is to run from now on."""
        if not self._pools:
            self._pools = {gpu_type: Turns() for gpu_type in view.cluster.counts}
            self._forecast = Forecast(tuple(view.cluster.counts))
        self._charge(view)
        ran = [job_id for job_id in self._runs if job_id in view.jobs]
        self._forecast.learn([(view.jobs[n], self._type_at(view, n)) for n in ran], view.rates)
        if not view.jobs:
            self._remember(view, {})
            return Plan({})
        self._divide(view)
        is_turn = view.now_ns >= self._turn_end_ns
        if is_turn:
            self._turn_end_ns = view.now_ns + self._turn_ns
            for gpu_type, count in self._counts(view).items():
                self._pools[gpu_type].settle(count * self._turn_ns if self._somebody_waited else 0)
        room = Eligibility(view)
        able = {job_id: self._able(view, job, room) for job_id, job in view.jobs.items()}
        runs = self._place(view, {} if is_turn else self._staying(view), room, able)
        self._remember(view, runs)
        return Plan(dict(sorted(runs.items())), self._turn_end_ns)

    def _type_at(self, view: View, job_id: int) -> str:
        return view.cluster.type_of[self._runs[job_id][0]]

    def _counts(self, view: View) -> dict[str, int]:
        """GPUs of each type that can be used now."""
        counts = dict(view.cluster.counts)
        for gpu in view.down:
            counts[view.cluster.type_of[gpu]] -= 1
        return counts

    def _charge(self, view: View) -> None:
        """Charge the pools by the plan that has held since the last question, and the ledger of trades."""
        elapsed_ns, self._now_ns = view.now_ns - self._now_ns, view.now_ns
        held: dict[str, float] = {}
        for job_id, gpus in self._runs.items():
            pool = self._pools[view.cluster.type_of[gpus[0]]]
            pool.charge(self._owners[job_id], job_id, elapsed_ns * len(gpus))
            held[self._owners[job_id]] = held.get(self._owners[job_id], 0) + len(gpus)
        self._tickets.note(elapsed_ns, held, view.cluster.size)
        if self._division is None or not self._runs:
            return
        for user, parts in self._division.flows().items():
            for gpu_type, part in parts.items():
                book = (self.traded_in if part > 0 else self.traded_out).setdefault(user, {})
                book[gpu_type] = book.get(gpu_type, 0.0) + float(abs(part)) * elapsed_ns / 1e9

    def _divide(self, view: View) -> None:
        """Make what users hold of each type their tickets there."""
        counts = self._counts(view)
        tickets = self._tickets.of(view.jobs.values(), view.associations)
        key = (tuple(view.jobs), tickets, counts, self._forecast.learnt)
        if key == self._division_key:
            return
        self._division_key = key
        told = replace(view, rates=self._forecast.believe(view.rates))
        claimants = claimants_of(told, tickets, self._forecast.rates)
        division = self._desk.division(claimants, counts)
        if division is not self._division:
            self._division = division
            self.counts["trades"] += len(division.trades)
        jobs: dict[str, dict[int, int]] = {}
        for job in view.jobs.values():
            jobs.setdefault(job.user, {})[job.job_id] = job.tickets * (job.priority + 1)
        for gpu_type, turns in self._pools.items():
            parts = {user: int(held[gpu_type] * SCALE) for user, held in division.holdings.held.items()}
            users = {user: part for user, part in parts.items() if part}
            self._members[gpu_type] = {*users}
            turns.set_members(users, {user: jobs[user] for user in users})

    def _staying(self, view: View) -> Runs:
        """Those who run and have not ended: nobody is taken off in the middle of a turn."""
        return {
            job_id: gpus
            for job_id, gpus in self._runs.items()
            if job_id in view.jobs and view.down.isdisjoint(gpus)
        }

    def _place(self, view: View, runs: Runs, room: Eligibility, able: Mapping[int, Set[str]]) -> Runs:
        """Pick and seat; where a picked job found no seat, others are picked for the GPUs that are left."""
        refused: set[int] = set()
        while True:
            picked = self._pick(view, runs, refused, able)
            guests = [
                Guest(
                    job.job_id, job.size, gpu_type, job.gpus, job.is_running, job.can_migrate, job.cell,
                    room.barred(job), nodes=job.nodes,
                )
                for gpu_type, jobs in picked.items()
                for job in jobs
            ]  # fmt: skip
            seated = seat_all(view.cluster, view.down.union(*runs.values()), guests)
            runs = {**runs, **seated}
            unseated = {guest.job_id for guest in guests} - seated.keys()
            if not unseated:
                return runs
            refused |= unseated

    def _pick(
        self, view: View, runs: Runs, refused: Set[int], able: Mapping[int, Set[str]]
    ) -> dict[str, list[JobView]]:
        """Return who else is to run on which type: by the passes of each pool, then whoever waits."""
        left = self._counts(view)
        charged: dict[str, dict[str, int]] = {gpu_type: {} for gpu_type in left}
        for job_id, gpus in runs.items():
            gpu_type, user = view.cluster.type_of[gpus[0]], view.jobs[job_id].user
            left[gpu_type] -= len(gpus)
            charged[gpu_type][user] = charged[gpu_type].get(user, 0) + len(gpus) * self._turn_ns
        waiting = {n: job for n, job in view.jobs.items() if n not in runs and n not in refused}
        picked: dict[str, list[JobView]] = {gpu_type: [] for gpu_type in left}
        for gpu_type, room in left.items():
            there = [job for job in waiting.values() if gpu_type in able[job.job_id]]
            for job in self._round(gpu_type, there, room, charged[gpu_type]):
                picked[gpu_type].append(waiting.pop(job.job_id))
                left[gpu_type] -= job.size
        for gpu_type in left:
            for job in [*waiting.values()] if left[gpu_type] else ():
                if job.size <= left[gpu_type] and gpu_type in able[job.job_id]:
                    picked[gpu_type].append(waiting.pop(job.job_id))
                    left[gpu_type] -= job.size
        return picked

    def _able(self, view: View, job: JobView, room: Eligibility) -> Set[str]:
        """Return the types that a job accepts, was not seen to fail on, and has GPUs enough that it may use.

        One that cannot move stays where it is.
        """
        cluster, rates = view.cluster, self._forecast.rates(job)
        if job.gpus and not job.can_migrate:
            return {name for name in (cluster.type_of[job.gpus[0]],) if rates.get(name, 0.0) > 0}
        left = Counter(cluster.counts)
        left.subtract(cluster.type_of[gpu] for gpu in room.barred(job))
        return {name for name, rate in rates.items() if rate > 0 and left[name] >= job.size}

    def _round(
        self, gpu_type: str, jobs: Sequence[JobView], gpus: int, charged: Mapping[str, int]
    ) -> list[JobView]:
        """One round of a pool's stride, among those who have tickets in it."""
        turns, members = self._pools[gpu_type], self._members[gpu_type]
        entrants = [
            Entrant(
                job.job_id, job.user, job.size, job.tickets, job.order,
                turns.job_pass(job.user, job.job_id),
            )
            for job in jobs
            if job.user in members
        ]  # fmt: skip
        mine = {user: work for user, work in charged.items() if user in members}
        keys = {*run_round(entrants, turns.standing(), Pool(gpus), self._turn_ns, mine)}
        return [job for job in jobs if job.job_id in keys]

    def _remember(self, view: View, runs: Runs) -> None:
        self._runs = dict(runs)
        self._users = {job_id: job.user for job_id, job in view.jobs.items()}
        self._owners = {job_id: self._users[job_id] for job_id in runs}
        self._somebody_waited = len(runs) < len(view.jobs)


def make(settings: PolicySettings) -> GandivaMarket:
    """Make the policy."""
    return GandivaMarket(settings)
