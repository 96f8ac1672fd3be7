"""Which resident gangs hold a node's GPUs in the next quantum: the fast clock, run by every gandivad alone.

Pure: time comes in as GPU time held, integers throughout, the same calls give the same answers, and the state
goes through JSON unchanged. In a quantum call `charge` for each gang that held GPUs, then `settle`, then
`choose`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.slicing.groups import SPARE, group_of
from gandiva_slurm.slicing.starvation import Waiter
from gandiva_slurm.slicing.stride import STRIDE1, Entrant, Pool, UserPass, run_round
from gandiva_slurm.slicing.turns import Turns

#: Whoever holds GPUs when a quantum ends is asked as if it had held them this part of a quantum longer. Equal
#: claims then change hands each quantum; without it the milliseconds that the last switch cost decide, and a
#: gang mostly keeps its GPUs for two. The order alone is touched, never a charge.
YIELD_PART = 8


@dataclass(frozen=True)
class Gang:
    """A job that lives on this node. `gpus`: the node's own indexes; `tickets` > 0, in the plan's scale."""

    key: JobKey
    user: str
    tickets: int
    gpus: tuple[int, ...]
    submitted_ns: int
    #: the job it may hold them with at the same time: they are packed when each names the other; 0: none
    mate: int = 0
    #: it has what guaranteed gangs leave
    is_opportunistic: bool = False
    #: its virtual cluster: guaranteed gangs take turns among those of their own
    vc: str = ""

    @property
    def group(self) -> str:
        """With whom it takes turns."""
        return group_of(self.vc, self.is_opportunistic)

    @property
    def mask(self) -> int:
        """Its GPUs as bits."""
        return sum(1 << gpu for gpu in self.gpus)

    @property
    def order(self) -> tuple[int, ...]:
        """The one total order: submission, job id, restart."""
        return (self.submitted_ns, self.key.job_id, self.key.restart)


class LocalStride:
    """Gang-aware stride over the residents of one node, users first, their gangs inside.

    Guaranteed gangs go first, those of each virtual cluster with turns of their own; opportunistic ones take
    turns on what those leave. Each group is charged apart.
    A job keeps its pass over a requeue: it is known by its job id, whatever its restart count.
    """

    def __init__(self, gpus: int, quantum_ns: int) -> None:
        self.gpus = gpus
        self.quantum_ns = quantum_ns
        self._gangs: dict[JobKey, Gang] = {}
        self._by_job: dict[int, Gang] = {}
        #: by group: SPARE is that of the opportunistic
        self._books: dict[str, Turns] = {"": Turns(), SPARE: Turns()}

    @property
    def gangs(self) -> tuple[Gang, ...]:
        """The residents, in order of submission."""
        return tuple(sorted(self._gangs.values(), key=lambda gang: gang.order))

    @property
    def groups(self) -> tuple[str, ...]:
        """All that have taken turns here, the opportunistic last."""
        return tuple(sorted(self._books, key=lambda group: (group == SPARE, group)))

    def set_gangs(self, gangs: Sequence[Gang]) -> None:
        """Replace the residents (repeating it changes nothing).

        Newcomers join at the lowest pass present, whoever returns not below his old one. A gang that still
        holds GPUs must stay in until it has released them: `choose` knows the GPUs of no other.
        """
        self._gangs = {gang.key: self._checked(gang) for gang in gangs}
        self._by_job = {gang.key.job_id: gang for gang in self.gangs}
        for gang in gangs:
            self._books.setdefault(gang.group, Turns())
        for group, book in self._books.items():
            weights: dict[str, int] = {}
            jobs: dict[str, dict[int, int]] = {}
            for gang in self._of_group(group):
                weights[gang.user] = weights.get(gang.user, 0) + gang.tickets
                jobs.setdefault(gang.user, {})[gang.key.job_id] = gang.tickets
            book.set_members(weights, jobs)

    def mate_of(self, key: JobKey) -> JobKey | None:
        """Return the gang this one is packed with: each names the other, and their GPUs are the same."""
        gang = self._gangs.get(key)
        mate = self._by_job.get(gang.mate) if gang is not None else None
        if gang is None or mate is None or not are_mates(gang, mate):
            return None
        return mate.key

    def charge(self, key: JobKey, held_ns: int, overrun_ns: int, is_shared: bool = False) -> None:
        """Charge time this gang held its GPUs, each of them; its user's pass and its own rise.

        `is_shared`: its mate held them too all that time; each is charged half of it (ADR 0023), but a
        guaranteed one the whole beside an opportunistic one, which does not slow it down.
        `overrun_ns` is the part of `held_ns` past the end of its quantum (a slow park, a start-up before the
        first boundary): a debt that levelling does not forgive. An unknown gang (already gone) is not
        charged.
        """
        gang = self._gangs.get(key)
        if gang is None or held_ns <= 0:
            return
        size = len(gang.gpus)
        work, overrun = held_ns * size, min(max(overrun_ns, 0), held_ns) * size
        holders = self._payers(gang) if is_shared else 1
        self._books[gang.group].charge(gang.user, key.job_id, work, overrun, holders)

    def charge_work(self, key: JobKey, user: str, work: int, overrun: int, group: str = "") -> None:
        """Charge GPU time that was held, all GPUs together; a gang that is gone is charged to its user.

        `group` is that of one that is not known here.
        """
        gang = self._gangs.get(key)
        book = self._books.get(gang.group if gang is not None else group)
        if book is not None:
            book.charge(user, key.job_id, work, overrun)

    def choose(
        self,
        runnable: Collection[JobKey],
        pinned: Collection[JobKey],
        overdue: Collection[JobKey],
        yielding: Collection[JobKey] = (),
    ) -> tuple[JobKey, ...]:
        """Return the gangs that hold the GPUs in the next quantum.

        Pinned gangs hold GPUs that cannot be taken from them now: always in. Then the overdue (their park's
        bound is reached), lowest pass first, as far as they fit; then the round of the runnable, in which the
        yielding (their quantum is over) come a little later than their passes say; last, beside those chosen,
        their mates. Of the overdue and of the runnable the guaranteed go first. Keys that are not set are
        ignored.
        """
        pool = Pool(self.gpus)
        chosen = [gang.key for gang in self.gangs if gang.key in pinned]
        for key in chosen:
            pool.force(len(self._gangs[key].gpus), self._gangs[key].mask)
        for gang in self._by_pass(set(overdue) - set(chosen)):
            if pool.take(len(gang.gpus), gang.mask):
                chosen.append(gang.key)
        waiting = set(runnable) - set(chosen)
        for group in self.groups:
            gangs = [gang for gang in self._of_group(group) if gang.key in waiting]
            entrants = [self._entrant(gang, gang.key in yielding) for gang in gangs]
            standing = self._standing(group, [gang for gang in gangs if gang.key in yielding])
            work = self._work_of(group, chosen)
            picked = run_round(entrants, standing, pool, self.quantum_ns, work)
            chosen += [_as_key(key) for key in picked]
        return tuple(chosen) + self._riders(chosen, runnable)

    def waiters(self, keys: Collection[JobKey]) -> list[Waiter[JobKey]]:
        """Return those of these gangs that may be passed over for others of their user's (`Starving`).

        Opportunistic gangs go before nobody, and are promoted when they have waited long.
        """
        passes = self.job_passes()
        firm = [gang for gang in self.gangs if gang.key in keys and not gang.is_opportunistic]
        places = [(passes.get(gang.key.job_id, 0), gang.order) for gang in firm]
        return [Waiter(g.key, (g.vc, g.user), place) for g, place in zip(firm, places, strict=True)]

    def giving_way(
        self,
        runnable: Collection[JobKey],
        pinned: Collection[JobKey],
        overdue: Collection[JobKey],
        holders: Collection[JobKey],
    ) -> set[JobKey]:
        """Return which opportunistic holders a guaranteed gang would follow at once, in mid-quantum.

        All others of the `holders` keep their GPUs; what is `pinned` cannot give way.
        """
        gangs, firm = self._gangs, set(pinned)
        spare = {key for key in holders if key in gangs and gangs[key].is_opportunistic} - firm
        if not spare:
            return spare
        chosen = self.choose(runnable, {*firm, *holders} - spare, overdue)
        comers = [gangs[key] for key in chosen if not gangs[key].is_opportunistic and key not in holders]
        return {key for key in spare if any(gangs[key].mask & comer.mask for comer in comers)}

    def adopt(self, ahead: Mapping[int, tuple[int, int]]) -> None:
        """Go on from where another stride stands: by job, how far its user and it are ahead, in passes.

        Each is that over the one furthest behind, wherever that is; jobs that are not named, and users of
        none that is, are taken to be behind.
        """
        for group, book in self._books.items():
            users: dict[str, int] = {}
            jobs: dict[str, dict[int, int]] = {}
            for gang in self._of_group(group):
                lead = ahead.get(gang.key.job_id)
                if lead is not None:
                    users[gang.user] = lead[0]
                    jobs.setdefault(gang.user, {})[gang.key.job_id] = lead[1]
            book.adopt(users, jobs)

    def settle(self) -> None:
        """Level the passes; once a quantum, after its charges.

        Whoever lags by a round and by what he yields has two turns running. Were less left to him, tickets
        that differ by less than an eighth would buy the same time, for ever.
        """
        work = self.gpus * self.quantum_ns
        for turns in self._books.values():
            turns.settle(work + work // YIELD_PART)

    def passes(self, group: str = "") -> tuple[Mapping[str, int], Mapping[int, int]]:
        """Return the passes of a group's users and of their jobs (for `why`, tests and invariants)."""
        return self._books[group].passes()

    def job_passes(self) -> dict[int, int]:
        """Return the passes of all jobs, each in its own group."""
        return {job: value for book in self._books.values() for job, value in book.passes()[1].items()}

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; `from_json` makes an equal one of it."""
        gangs = [
            [str(g.key), g.user, g.tickets, list(g.gpus), g.submitted_ns, g.mate, g.is_opportunistic, g.vc]
            for g in self.gangs
        ]
        data = {"version": 1, "gpus": self.gpus, "quantum_ns": self.quantum_ns, "gangs": gangs}
        books = {group: book.to_json() for group, book in self._books.items()}
        return data | books.pop("") | {"spare": books.pop(SPARE), "vcs": books}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LocalStride:
        """Read what `to_json` wrote; KeyError, TypeError or ValueError when it is something else."""
        if data["version"] != 1:
            raise ValueError(f"stride state of version {data['version']}, 1 expected")
        local = cls(int(data["gpus"]), int(data["quantum_ns"]))
        for key, user, tickets, gpus, submitted_ns, *more in data["gangs"]:
            gang = Gang(JobKey.parse(key), user, tickets, tuple(gpus), submitted_ns, *more)
            local._gangs[gang.key] = local._by_job[gang.key.job_id] = gang
        local._books[""] = Turns.from_json(data)
        if "spare" in data:
            local._books[SPARE] = Turns.from_json(data["spare"])
        local._books |= {group: Turns.from_json(raw) for group, raw in data.get("vcs", {}).items()}
        return local

    def _of_group(self, group: str) -> list[Gang]:
        return [gang for gang in self.gangs if gang.group == group]

    def _payers(self, gang: Gang) -> int:
        """Among how many the time that two held together is divided, as far as this one pays for it."""
        mate = self._by_job.get(gang.mate)
        is_host = not gang.is_opportunistic and mate is not None and mate.is_opportunistic
        return 1 if is_host else 2

    def _checked(self, gang: Gang) -> Gang:
        if gang.tickets <= 0:
            raise ValueError(f"gang {gang.key}: {gang.tickets} tickets, at least 1 needed")
        gpus = set(gang.gpus)
        if not gpus or len(gpus) != len(gang.gpus) or not gpus <= set(range(self.gpus)):
            raise ValueError(f"gang {gang.key}: GPUs {gang.gpus} are not distinct ones of 0..{self.gpus - 1}")
        return gang

    def _riders(self, chosen: Sequence[JobKey], runnable: Collection[JobKey]) -> tuple[JobKey, ...]:
        """Return the mates that hold the same GPUs beside the chosen: those whose turn it is as well."""
        waiting = [gang for gang in self.gangs if gang.key in runnable and gang.key not in chosen]
        hosts = {self.mate_of(key): self._gangs[key] for key in chosen}
        mates = [gang for gang in waiting if gang.key in hosts and self._holders(gang, chosen) == 1]
        return tuple(gang.key for gang in mates if self._is_due(gang, [hosts[gang.key], *waiting]))

    def _holders(self, gang: Gang, chosen: Sequence[JobKey]) -> int:
        """How many of the chosen have GPUs of this one: in mid-quantum maybe both of a pack taken apart."""
        return sum(bool(self._gangs[key].mask & gang.mask) for key in chosen)

    def _is_due(self, mate: Gang, others: Sequence[Gang]) -> bool:
        """False when it is nearly a round of the node ahead of another that wants one of its GPUs.

        Where tickets differ, packing would else carry one far beyond its share. Half a quantum shared makes
        it lead by a round at most, which levelling does not forgive. Users lead by nearly as much for what
        they hold elsewhere on the node, which must not keep mates apart. One of another group takes turns
        apart.
        """
        work = (2 * self.gpus - len(mate.gpus)) * self.quantum_ns * STRIDE1 // 2
        turns = self._books[mate.group]
        for other in others:
            is_rival = other is not mate and other.group == mate.group
            if not is_rival or not other.mask & mate.mask:
                continue
            if other.user == mate.user:
                lead = self._job_pass(mate) - self._job_pass(other)
                tickets = mate.tickets
            else:
                lead = turns.user_pass(mate.user) - turns.user_pass(other.user)
                tickets = turns.tickets(mate.user)
            if lead * tickets >= work:
                return False
        return True

    def _job_pass(self, gang: Gang) -> int:
        return self._books[gang.group].job_pass(gang.user, gang.key.job_id)

    def _entrant(self, gang: Gang, is_yielding: bool = False) -> Entrant:
        job_pass = self._job_pass(gang)
        if is_yielding:
            job_pass += self._yield_of(gang) // gang.tickets
        return Entrant(gang.key, gang.user, len(gang.gpus), gang.tickets, gang.order, job_pass, gang.mask)

    def _standing(self, group: str, yielding: Sequence[Gang]) -> dict[str, UserPass]:
        later: dict[str, int] = {}
        for gang in yielding:
            later[gang.user] = later.get(gang.user, 0) + self._yield_of(gang)
        return self._books[group].standing(later)

    def _yield_of(self, gang: Gang) -> int:
        return len(gang.gpus) * self.quantum_ns // YIELD_PART * STRIDE1

    def _by_pass(self, keys: Collection[JobKey]) -> list[Gang]:
        gangs = [gang for gang in self.gangs if gang.key in keys]

        def turn(gang: Gang) -> tuple[bool, int, int, tuple[int, ...]]:
            user_pass = self._books[gang.group].user_pass(gang.user)
            return (gang.is_opportunistic, user_pass, self._job_pass(gang), gang.order)

        return sorted(gangs, key=turn)

    def _work_of(self, group: str, keys: Sequence[JobKey]) -> dict[str, int]:
        work: dict[str, int] = {}
        for key in keys:
            gang = self._gangs[key]
            if gang.group == group:
                holders = self._payers(gang) if self.mate_of(key) in keys else 1
                work[gang.user] = work.get(gang.user, 0) + len(gang.gpus) * self.quantum_ns // holders
        return work


def are_mates(one: Gang, other: Gang) -> bool:
    """True when both accept that the other holds the same GPUs at the same time."""
    is_mutual = one.mate == other.key.job_id and other.mate == one.key.job_id
    return is_mutual and one.key != other.key and one.mask == other.mask


def _as_key(key: Hashable) -> JobKey:
    assert isinstance(key, JobKey)
    return key
