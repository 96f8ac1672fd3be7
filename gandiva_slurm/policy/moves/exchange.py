"""Which GPU type each job of a round gets: start from where they are, exchange while all in all gain.

Gandiva_fair gives every job the fastest GPUs that contention allows; who gains most from them has them. What
a job is worth on a type is told by the caller. A gang is exchanged for as many small jobs as it has GPUs, so
that neither stands in the other's way. Each exchange gains, so it ends; nothing moves without a gain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

#: An exchange must gain more than this: equal jobs do not change places for nothing.
_LEAST_GAIN = 1e-9


class Seeker(NamedTuple):
    """A job that is to have `size` GPUs of one type. `worth`: by type; a type that is not there is refused.

    `at`: the type it is on now, "" when it is nowhere. Of those that do not take every type, the lowest rank
    goes first: they would else keep others out that can go nowhere else.
    """

    job_id: int
    size: int
    worth: Mapping[str, float]
    at: str = ""
    rank: int = 0


#: What each of a job's GPUs would lose by going, how many they are, and the job.
_Loss = tuple[float, int, int]


class _Block(NamedTuple):
    """Jobs that would go from one type to another together; `gain` may be negative."""

    gain: float
    size: int
    jobs: tuple[int, ...]


_NOBODY = _Block(0.0, 0, ())


class Exchange:
    """One round's types. After `settle`, `at` has the type of each job that found room."""

    def __init__(self, seekers: Sequence[Seeker], room: Mapping[str, int]) -> None:
        self._seekers = {seeker.job_id: seeker for seeker in seekers}
        self._types = [gpu_type for gpu_type, count in room.items() if count > 0]
        self._room = dict(room)
        self.at: dict[int, str] = {}
        #: the same by type
        self._on: dict[str, dict[int, Seeker]] = {gpu_type: {} for gpu_type in room}
        #: by source and target: jobs of the source by what they would lose, and those that came or left since
        self._losses: dict[tuple[str, str], list[_Loss]] = {}
        self._changed: dict[tuple[str, str], set[int]] = {}

    def settle(self, most: int) -> dict[int, str]:
        """Seat all, then exchange between all pairs of types at most so many times; return job → type."""
        if self._is_best():
            return {job_id: seeker.at for job_id, seeker in self._seekers.items()}
        self._keep()
        self._seat()
        units = sorted({seeker.size for seeker in self._seekers.values()}, reverse=True)
        pairs = list(itertools.combinations(self._types, 2))
        for _ in range(most):
            swept = sum(self._sweep(first, second, unit) for unit in units for first, second in pairs)
            if not swept + self._seat():
                break
        return self.at

    def _is_best(self) -> bool:
        """True when each is on the type where it is worth most, and there is room for all."""
        left = dict(self._room)
        for _, size, worth, at, _ in self._seekers.values():
            if at not in worth or worth[at] < max(worth.values()):
                return False
            left[at] = left.get(at, 0) - size
        return all(count >= 0 for count in left.values())

    def _keep(self) -> None:
        """Keep jobs where they are, if there is room; first those that do not take every type, in turn."""
        types = {*self._types}
        choosy = [s for s in self._seekers.values() if not s.worth.keys() >= types]
        for seeker in sorted(choosy, key=lambda s: (s.rank, -s.size, s.job_id)):
            wanted = sorted(seeker.worth, key=lambda t: (t != seeker.at, -seeker.worth[t], t))
            found = next((t for t in wanted if self._room.get(t, 0) >= seeker.size), "")
            if found:
                self._put(seeker, found)
        for seeker in sorted(self._seekers.values(), key=lambda s: (-s.size, s.job_id)):
            is_there = seeker.at in seeker.worth and self._room.get(seeker.at, 0) >= seeker.size
            if is_there and seeker.job_id not in self.at:
                self._put(seeker, seeker.at)

    def _seat(self) -> int:
        """Seat those who are nowhere, gangs first, as they gain most; return how many found room."""
        count = 0
        waiting = [seeker for seeker in self._seekers.values() if seeker.job_id not in self.at]
        for seeker in sorted(waiting, key=lambda s: (-s.size, -_regret(s), s.job_id)):
            wanted = [t for t in self._types if t in seeker.worth]
            wanted.sort(key=lambda t: (-seeker.worth[t], -self._room[t]))
            found = next((t for t in wanted if self._room[t] >= seeker.size), "")
            found = found or next((t for t in wanted if self._make_room(seeker.size, t)), "")
            if found:
                self._put(seeker, found)
                count += 1
        return count

    def _make_room(self, size: int, gpu_type: str) -> bool:
        """Move jobs that lose least to where there is room, until a gang fits; False when it cannot be."""
        for other in self._types:
            if other == gpu_type:
                continue
            blocks = _blocks(self._by_loss(gpu_type, other), size, math.inf)
            block = blocks[-1] if blocks else _NOBODY
            if self._room[other] >= block.size and self._room[gpu_type] + block.size >= size:
                self._move(block, gpu_type, other)
                return True
        return False

    def _put(self, seeker: Seeker, gpu_type: str) -> None:
        self.at[seeker.job_id] = gpu_type
        self._on[gpu_type][seeker.job_id] = seeker
        self._note(gpu_type, seeker.job_id)
        self._room[gpu_type] -= seeker.size

    def _sweep(self, first: str, second: str, unit: int) -> int:
        """Exchange blocks of so many GPUs between two types, the greatest gains first; return how many."""
        most, most_back = self._most(first, second, unit), self._most(second, first, unit)
        if most + most_back <= _LEAST_GAIN / 2:
            return 0
        there = _blocks(self._by_loss(first, second), unit, most_back)
        back = _blocks(self._by_loss(second, first), unit, most)
        count = 0
        while True:
            ahead, behind = there[-1] if there else _NOBODY, back[-1] if back else _NOBODY
            offers = [(ahead, behind), (ahead, _NOBODY), (_NOBODY, behind)]
            fit = [offer for offer in offers if self._fits(first, second, offer[0].size - offer[1].size)]
            best = max(fit, key=lambda offer: offer[0].gain + offer[1].gain, default=None)
            if best is None or best[0].gain + best[1].gain <= _LEAST_GAIN:
                return count
            if best[0] is not _NOBODY:
                self._move(there.pop(), first, second)
            if best[1] is not _NOBODY:
                self._move(back.pop(), second, first)
            count += 1

    def _fits(self, first: str, second: str, more: int) -> bool:
        """True when there is room for so many more GPUs on the second type (less than 0: on the first)."""
        return self._room[second] >= more if more > 0 else self._room[first] >= -more

    def _most(self, source: str, target: str, unit: int) -> float:
        """The most that a block of at most `unit` GPUs can gain, or little more."""
        losses = self._by_loss(source, target)
        gain = -losses[0][0] if losses else 0.0
        return gain * unit if gain > 0 else 0.0

    def _by_loss(self, source: str, target: str) -> list[_Loss]:
        """The jobs on a type by what each of their GPUs would lose on another."""
        here, key = self._on[source], (source, target)
        known = self._losses.get(key, [])
        changed: Collection[int] = self._changed.get(key, here)
        if not changed:
            return known
        found = [loss for loss in known if loss[2] not in changed]
        for job_id, size, worth, _, _ in (here[job] for job in changed if job in here):
            if target in worth:
                found.append(((worth[source] - worth[target]) / size, size, job_id))
        found.sort()
        self._losses[key], self._changed[key] = found, set()
        return found

    def _note(self, gpu_type: str, job_id: int) -> None:
        """A job came to this type, or left it."""
        for other in self._types:
            if (gpu_type, other) in self._changed:
                self._changed[gpu_type, other].add(job_id)

    def _move(self, block: _Block, source: str, target: str) -> None:
        for job_id in block.jobs:
            self.at[job_id] = target
            self._on[target][job_id] = self._on[source].pop(job_id)
            self._note(source, job_id)
            self._note(target, job_id)
        self._room[source] += block.size
        self._room[target] -= block.size


def _blocks(losses: Sequence[_Loss], unit: int, most: float) -> list[_Block]:
    """Cut jobs, by what they lose, into blocks of at most `unit` GPUs; the greatest gain by going is last.

    `most`: what can be gained by the others for which they go; whole blocks that lose more are left out.
    """
    blocks: list[_Block] = []
    gain, size, jobs = 0.0, 0, []
    for loss, need, job_id in losses:
        if size + need > unit:
            continue
        gain, size = gain - loss * need, size + need
        jobs.append(job_id)
        if size == unit:
            if gain >= -most:
                blocks.append(_Block(gain, size, tuple(jobs)))
            gain, size, jobs = 0.0, 0, []
    if jobs:
        blocks.append(_Block(gain, size, tuple(jobs)))
    blocks.sort(key=lambda block: block.gain)
    return blocks


def _regret(seeker: Seeker) -> float:
    """What a GPU of its best type is worth more to it than one of the next."""
    best = sorted(seeker.worth.values(), reverse=True)
    return (best[0] - (best[1] if len(best) > 1 else 0.0)) / seeker.size if best else 0.0
