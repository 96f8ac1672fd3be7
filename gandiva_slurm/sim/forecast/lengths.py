"""How long jobs will run, drawn: by how long their like have run, their own time limits, and chance.

A length is the time a job holds its GPUs, which is what its time limit counts (ADR 0013).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from random import Random
from typing import NamedTuple

#: How many of a user's past jobs count, the latest.
MOST_PAST = 1000
#: From this many on, jobs that have something in common are a history of their own; that they are less apart
#: than others counts for less the fewer they are: half as much where they are FEW.
LEAST_ALIKE, FEW = 3, 30
#: What so few leave open that it is not told: more than any others do.
_MOST_OPEN = 1e300
#: One that outlasts all of its like does so by this factor at most.
LONGER = 1.5
#: Where nothing else is known a job runs this part of its limit at least, and all of it at most; and for so
#: long where it has none.
LEAST_PART, NO_LIMIT_NS = 0.02, 24 * 3600 * 10**9


class Past(NamedTuple):
    """A job that has ended."""

    user: str
    name: str
    gpus: int
    #: how long it held its GPUs, and how long it might have; 0: not known, or for ever
    length_ns: int
    limit_ns: int = 0


class Ask(NamedTuple):
    """A job whose length is to be drawn. It has run for `ran_ns`, and may for `limit_ns` in all, 0: any."""

    user: str
    name: str
    gpus: int
    ran_ns: int
    limit_ns: int


class _Way(NamedTuple):
    """Lengths, or parts of limits, ascending."""

    is_part: bool
    values: Sequence[float]

    def first(self, ask: Ask) -> int:
        """The place of the first that is longer, in a job's place, than it has run."""
        return bisect_right(self.values, ask.ran_ns, key=self.of(ask))

    def open(self, ask: Ask) -> float:
        """How far the longer ones are apart but for a tenth on each side; few may be nearer by chance.

        inf where none is longer.
        """
        of, first = self.of(ask), self.first(ask)
        count = len(self.values) - first
        if not count:
            return inf
        low, high = (of(self.values[first + round(part * (count - 1))]) for part in (0.1, 0.9))
        return max(1, high - low) * (1 + FEW / count) if count >= LEAST_ALIKE else _MOST_OPEN

    def of(self, ask: Ask) -> Callable[[float], int]:
        """How a value is made a length of this job."""
        most_ns = ask.limit_ns or self.values[-1]
        return lambda value: round(value * most_ns if self.is_part else min(value, most_ns))


@dataclass
class Lengths:
    """What past jobs tell of the lengths of others; `past`: how many there were."""

    past: int = 0
    _alike: dict[tuple[object, ...], list[tuple[int, int]]] = field(default_factory=dict)
    _known: dict[tuple[tuple[object, ...], bool], list[_Way]] = field(default_factory=dict)
    _found: dict[Ask, _Way | None] = field(default_factory=dict)

    @classmethod
    def of(cls, past: Iterable[Past]) -> Lengths:
        """Sort past jobs, the latest last, by what others may have in common with them."""
        lengths = cls()
        for job in past:
            lengths.past += 1
            for key in _keys(job.user, job.name, job.gpus):
                known = lengths._alike.setdefault(key, [])
                known.append((max(1, job.length_ns), job.limit_ns))
                del known[:-MOST_PAST]
        return lengths

    def _best(self, ask: Ask) -> _Way | None:
        """Return in which way its like tell of its length; None where none has run longer than it has.

        Its like are those of the same user, name and size, of some of these, or all; they would run as long
        as they did, or for as large a part of its limit as of their own. What leaves least open is taken.
        """
        keys, has_limit = _keys(ask.user, ask.name, ask.gpus), bool(ask.limit_ns)
        ways = [(way.open(ask), way) for key in keys for way in self._ways(key, has_limit)]
        leaves, best = min(ways, key=itemgetter(0), default=(inf, None))
        return best if leaves < inf else None

    def _ways(self, key: tuple[object, ...], has_limit: bool) -> list[_Way]:
        """The ways in which those that have this in common tell of others; they are worked out once."""
        if (key, has_limit) not in self._known:
            known = self._alike.get(key, [])
            lengths = [length for length, _ in known]
            parts = [min(1.0, length / limit) for length, limit in known if limit and has_limit]
            self._known[key, has_limit] = [
                _Way(is_part, sorted(values))
                for values, is_part in ((lengths, False), (parts, True))
                if len(values) >= LEAST_ALIKE
            ]
        return self._known[key, has_limit]

    def draw(self, ask: Ask, chance: Random) -> int:
        """Return how long such a job will go on.

        It ends with equal chances between any two of its like that are neighbours, before the first of those
        that ran for longer than it has, and after the last.
        """
        if ask not in self._found:
            self._found[ask] = self._best(ask)
        best = self._found[ask]
        if best is None:
            return _by_limit(ask, chance)
        of, first, count = best.of(ask), best.first(ask), len(best.values)
        longest = of(best.values[-1])
        last = round(LONGER * longest)
        last = min(last, ask.limit_ns) if ask.limit_ns else last

        def point(number: int) -> int:
            if number == 0:
                return ask.ran_ns
            return last if first + number > count else of(best.values[first + number - 1])

        place = chance.random() * (count - first + 1)
        low, high = point(int(place)), point(int(place) + 1)
        return max(1, round(low + (high - low) * (place - int(place))) - ask.ran_ns)


def _keys(user: str, name: str, gpus: int) -> tuple[tuple[object, ...], ...]:
    return ((user, name, gpus), (user, name), (user, gpus), (user,), ())


def _by_limit(ask: Ask, chance: Random) -> int:
    """Any length up to the limit is as likely on a scale of its logarithm, from what it ran on."""
    most_ns = ask.limit_ns or max(NO_LIMIT_NS, 2 * ask.ran_ns)
    least_ns = max(ask.ran_ns, LEAST_PART * most_ns)
    if least_ns >= most_ns:
        return max(1, most_ns - ask.ran_ns)
    length_ns: float = least_ns * (most_ns / least_ns) ** chance.random()
    return max(1, round(length_ns) - ask.ran_ns)


def work_of(asks: Mapping[int, Ask], lengths: Lengths, chance: Random) -> dict[int, int]:
    """Draw for all jobs how long each is still to hold its GPUs."""
    return {job_id: lengths.draw(ask, chance) for job_id, ask in sorted(asks.items())}
