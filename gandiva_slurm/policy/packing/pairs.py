"""Who shares a GPU with whom: tried, measured, kept or undone (Gandiva, introspection).

Jobs of one GPU are packed while others wait. What a pair does to both is learnt by running it, kept for all
jobs of the two models on that GPU type, and asked again before each round: a pair below the noise floor is
not run again, one that has not been tried is tried, on one GPU, when what is known of its models promises
a gain.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gandiva_slurm.policy.port import PACK_FLOOR, JobView, Rates

#: Whether a guest may come to where a host runs.
Admits = Callable[[JobView, JobView], bool]


def admits_all(host: JobView, guest: JobView) -> bool:
    """Let all guests come to all hosts."""
    return True


#: What a model is expected to bring where nothing is known of it, counted as one measurement.
_PRIOR = 1.3


class Pair(NamedTuple):
    """A guest on a host's GPU. `is_trial`: nothing is known of such a pair on that GPU type yet."""

    host: int
    guest: int
    is_trial: bool


@dataclass(frozen=True, slots=True)
class Bench:
    """What a round has: those who run alone on one GPU, with its type, and those who wait.

    `worth`: what a job at full speed on a type is worth to the whole, by job and type.
    """

    hosts: Sequence[tuple[JobView, str]]
    waiting: Sequence[JobView]
    worth: Callable[[JobView, str], float]
    #: guest by host: pairs of the last round, to be kept where they are known to pay
    old: Mapping[int, int] = field(default_factory=dict)
    #: the hosts of those of them that are on trial, to be kept until they are measured
    on_trial: Set[int] = frozenset()
    admits: Admits = admits_all


#: What each of two keeps at the least of its speed alone: both are charged half of the time that they share,
#: and by what one says of itself the other is not to be worn down (ADR 0051).
LEAST_KEPT = 0.4


class PairBook:
    """What was learnt of pairs; one for a cluster."""

    def __init__(self, floor: float = PACK_FLOOR) -> None:
        #: what a pair's normalised rates must sum to more than
        self.floor = floor
        #: what each model's pairs came to on a type: (their sum, how many)
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        self._open: set[tuple[str, str, str]] = set()
        self.tried = self.kept = self.undone = 0

    def learn(self, rates: Rates) -> None:
        """Close the trials that have been measured."""
        for first, second, gpu_type in sorted(self._open):
            both = normal_rates(rates, first, second, gpu_type)
            if both is None:
                continue
            self._open.remove((first, second, gpu_type))
            self.kept += pays(both, self.floor)
            self.undone += not pays(both, self.floor)
            for model in {first, second}:
                total, count = self._seen.get((model, gpu_type), (0.0, 0))
                self._seen[(model, gpu_type)] = (total + sum(both), count + 1)

    def forget(self, models: Set[str], on_trial: Set[tuple[str, str, str]]) -> None:
        """Keep what was learnt of these models, and those trials that are under way."""
        self._seen = {key: value for key, value in self._seen.items() if key[0] in models}
        self._open &= on_trial

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        seen = [[*key, *value] for key, value in sorted(self._seen.items())]
        counts = [self.tried, self.kept, self.undone]
        return {"floor": self.floor, "seen": seen, "open": sorted(self._open), "counts": counts}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PairBook:
        """Read what `to_json` wrote."""
        book = cls(data["floor"])
        book._seen = {(model, kind): (total, count) for model, kind, total, count in data["seen"]}
        book._open = {(first, second, kind) for first, second, kind in data["open"]}
        book.tried, book.kept, book.undone = data["counts"]
        return book

    def __eq__(self, other: object) -> bool:
        """True when both know the same."""
        return isinstance(other, PairBook) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def match(self, bench: Bench, rates: Rates) -> list[Pair]:
        """Return the pairs of a round, best first; a job is in one at most."""
        pairs = self._stay(bench, rates)
        taken = {pair.host for pair in pairs}
        queues = _by_kind(bench, {pair.guest for pair in pairs})
        hosts = {host.job_id: host for host, _ in bench.hosts}
        types = {host.job_id: (host.model, gpu_type) for host, gpu_type in bench.hosts}
        models = {job.job_id: job.model for job in bench.waiting}
        on_trial = {
            _key(types[pair.host][0], models[pair.guest], types[pair.host][1])
            for pair in pairs
            if pair.is_trial
        }
        for offer in self._offers(bench, taken, queues, rates):
            queue = queues[offer.kind]
            if offer.host in taken or not queue:
                continue
            key = _key(offer.place[0], offer.kind.model, offer.place[1])
            if key in on_trial or not bench.admits(hosts[offer.host], offer.guest):
                continue
            taken.add(offer.host)
            pairs.append(Pair(offer.host, queue.pop().job_id, offer.is_trial))
            if offer.is_trial:
                on_trial.add(key)
                self.tried += key not in self._open
                self._open.add(key)
        return pairs

    def _stay(self, bench: Bench, rates: Rates) -> list[Pair]:
        """Old pairs that were measured and found good, and those that are being measured."""
        waiting = {job.job_id: job for job in bench.waiting}
        pairs = []
        for host, gpu_type in bench.hosts:
            guest = waiting.get(bench.old.get(host.job_id, -1))
            if guest and not bench.admits(host, guest):
                continue
            both = normal_rates(rates, host.model, guest.model, gpu_type) if guest else None
            is_trial = guest is not None and both is None and host.job_id in bench.on_trial
            if guest and (is_trial or (both and pays(both, self.floor))):
                pairs.append(Pair(host.job_id, guest.job_id, is_trial))
        return pairs

    def _offers(
        self, bench: Bench, taken: Set[int], queues: Mapping[_Kind, Sequence[JobView]], rates: Rates
    ) -> Iterator[_Offer]:
        """Return what each host and each model of those who wait would gain together; a loss is no offer.

        The greatest gain is the first; each is made when it is asked for, while one of its kind waits and its
        host is not taken: both may change in between.
        """
        order = {kind: number for number, kind in enumerate(sorted(queues, key=lambda kind: kind[:2]))}
        hosts: dict[_ModelOn, list[_Worth]] = {}
        for host, gpu_type in bench.hosts:
            if host.job_id not in taken:
                worth = _Worth(bench.worth(host, gpu_type), host.job_id)
                hosts.setdefault((host.model, gpu_type), []).append(worth)
        found = []
        for place, here in hosts.items():
            here.sort()  # a guest costs the one least to which its GPU is worth least, whatever the guest
            for kind, number in order.items():
                chance = self._chance(bench, place, kind, queues[kind][-1], rates)
                if chance is not None:
                    found.append(_offers_of(chance, number, place, here, taken, queues[kind]))
        return heapq.merge(*found)

    def _chance(
        self, bench: Bench, place: _ModelOn, kind: _Kind, guest: JobView, rates: Rates
    ) -> _Chance | None:
        """Return what hosts of a model on a type may gain by a guest; None: they are not to be packed."""
        model, gpu_type = place
        promise = self._promise(model, kind.model, gpu_type, rates) if guest.accepts(gpu_type) else None
        if promise is None:
            return None
        theirs = promise.theirs * bench.worth(guest, gpu_type)
        return _Chance(kind, guest, promise.mine, theirs, promise.is_trial)

    def _promise(self, host: str, guest: str, gpu_type: str, rates: Rates) -> _Promise | None:
        """What two models keep of their speed, known or guessed; None: they are not to be packed there."""
        if not rates.alone(host, 1, gpu_type) or not rates.alone(guest, 1, gpu_type):
            return None  # first alone, to be profiled
        both = normal_rates(rates, host, guest, gpu_type)
        each = both or self._guess(host, guest, gpu_type)
        return _Promise(*each, both is None) if pays(each, self.floor) else None

    def _guess(self, first: str, second: str, gpu_type: str) -> tuple[float, float]:
        """What two models may come to: half of what each came to with others."""
        each = [self._seen.get((model, gpu_type), (0.0, 0)) for model in (first, second)]
        means = [(total + _PRIOR) / (count + 1) for total, count in each]
        return sum(means) / 4, sum(means) / 4


def _key(first: str, second: str, gpu_type: str) -> tuple[str, str, str]:
    return (min(first, second), max(first, second), gpu_type)


class _Kind(NamedTuple):
    """Those who wait and are alike for a host: their model, and where they can be."""

    model: str
    gpu_types: tuple[str, ...]
    hosts: frozenset[int] | None
    #: the GPUs that they cannot leave
    bound: tuple[int, ...]
    memory_mib: int
    peak_bytes: int


def _kind(job: JobView) -> _Kind:
    bound = () if job.can_migrate else job.gpus
    return _Kind(job.model, job.gpu_types, job.hosts, bound, job.memory_mib, job.peak_bytes)


#: A model, and the GPU type it is on.
_ModelOn = tuple[str, str]


class _Worth(NamedTuple):
    """What its GPU is worth to a host."""

    worth: float
    job_id: int


class _Promise(NamedTuple):
    mine: float
    theirs: float
    is_trial: bool


class _Chance(NamedTuple):
    """A guest for hosts of one model on one type; what they keep, and what it is worth there beside one."""

    kind: _Kind
    guest: JobView
    mine: float
    theirs: float
    is_trial: bool


class _Offer(NamedTuple):
    """The least is the best: the greatest gain, then the first host, then the order of kinds."""

    loss: float
    host: int
    number: int
    kind: _Kind
    guest: JobView
    #: the host's model, and the type it is on
    place: _ModelOn
    is_trial: bool


def _offers_of(
    chance: _Chance,
    number: int,
    place: _ModelOn,
    hosts: Sequence[_Worth],
    taken: Set[int],
    queue: Sequence[JobView],
) -> Iterator[_Offer]:
    """Yield what the hosts of one model and type gain by guests of a kind, best first, while one waits."""
    kind, guest, mine, theirs, is_trial = chance
    for gain, same in itertools.groupby(hosts, lambda host: (mine - 1.0) * host.worth + theirs):
        if gain <= 0:
            return
        for job_id in sorted(host.job_id for host in same):
            if not queue:
                return
            if job_id not in taken:
                yield _Offer(-gain, job_id, number, kind, guest, place, is_trial)


def pays(each: tuple[float, float], floor: float) -> bool:
    """True when two that keep so much of their speed gain by it together, and neither is worn down."""
    return sum(each) > floor and min(each) >= LEAST_KEPT


def normal_rates(rates: Rates, first: str, second: str, gpu_type: str) -> tuple[float, float] | None:
    """Return what two models keep of their speed on one GPU, each in 0..1; None when it was not measured.

    Whoever is said to be faster beside another than alone is taken for as fast.
    """
    packed = rates.packed(first, second, gpu_type)
    alone = [rates.alone(model, 1, gpu_type) for model in (first, second)]
    if packed is None or not alone[0] or not alone[1]:
        return None
    return min(1.0, packed[0] / alone[0]), min(1.0, packed[1] / alone[1])


def _by_kind(bench: Bench, taken: Set[int]) -> Mapping[_Kind, list[JobView]]:
    """Those who wait, by kind, whoever gains most last."""
    queues: dict[_Kind, list[JobView]] = {}
    for job in bench.waiting:
        if job.job_id not in taken:
            queues.setdefault(_kind(job), []).append(job)
    types = sorted({gpu_type for _, gpu_type in bench.hosts})
    for queue in queues.values():
        queue.sort(key=lambda job: (_most(bench.worth(job, t) for t in types), (-job.submit_ns, -job.job_id)))
    return queues


def _most(values: Iterable[float]) -> float:
    return max(values, default=0.0)
