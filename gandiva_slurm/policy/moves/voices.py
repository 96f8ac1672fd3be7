"""What a GPU type gains over another, by everybody's jobs: one voice a user, and nobody's by itself.

A rate is steps that a job tells of, over time that its node measures: nobody but the job can count its steps.
So what others are told of its gain from type to type is the gain of the user in the middle, and its own
counts as far as it is within `FAR` of that. No lie within it is caught: what it can bring has other bounds
(ADR 0051).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

#: So many times what others gain, or a part of it, is believed: published gains differ from their middle by
#: less than a quarter of that (Gavel's table, ADR 0051).
FAR = 16.0
#: Among three others one liar is not the middle; where fewer were measured a gain is compared with none.
LEAST_OTHERS = 3


class Voices:
    """Logarithms of gains between types, by user: the mean over the user's models."""

    def __init__(self) -> None:
        #: by pair of types and user: sum of the logarithms of gains, and how many
        self._heard: dict[tuple[str, str], dict[str, tuple[float, int]]] = {}
        #: of these, each user's mean and name in order
        self._sorted: dict[tuple[str, str], list[tuple[float, str]]] = {}

    def hear(self, user: str, source: str, target: str, gain: float) -> None:
        """Note how much faster a model of a user's runs on the second type: the gain's logarithm."""
        for pair, value in (((source, target), gain), ((target, source), -gain)):
            heard = self._heard.setdefault(pair, {})
            total, count = heard.get(user, (0.0, 0))
            heard[user] = (total + value, count + 1)
            self._sorted.pop(pair, None)

    def guess(self, source: str, target: str) -> float | None:
        """Return the gain that may be expected of any model, within `FAR`; None: nobody was measured."""
        means = self._means(source, target)
        if not means:
            return None
        # Of two middle ones the higher: a type tried in vain costs a turn, one never tried all of them.
        return math.exp(_within(means[len(means) // 2][0], 0.0))

    def believed(self, user: str, rates: Mapping[str, float], types: Sequence[str]) -> dict[str, float]:
        """Return a user's rates by type, those too far from what others gain brought near.

        The first of `types` with a rate is what the others are compared with: a rate alone says nothing.
        """
        base = next((name for name in types if rates.get(name, 0.0) > 0), None)
        if base is None:
            return dict(rates)
        return {name: self._near(user, (base, name), rate, rates[base]) for name, rate in rates.items()}

    def _near(self, user: str, pair: tuple[str, str], rate: float, base: float) -> float:
        """Return a rate as it is where it is near, else the nearest that is; 0 is that it cannot run."""
        if rate <= 0 or pair[0] == pair[1]:
            return rate
        gain = math.log(rate) - math.log(base)
        near = _within(gain, self._middle_of_others(user, pair))
        return rate if near == gain else base * math.exp(near)

    def _middle_of_others(self, user: str, pair: tuple[str, str]) -> float:
        """Return the middle one of the others' gains; where they are too few, as if all types were alike."""
        means = self._means(*pair)
        heard = self._heard.get(pair, {}).get(user)
        mine = len(means) if heard is None else bisect_left(means, (heard[0] / heard[1], user))
        count = len(means) - (heard is not None)
        if count < LEAST_OTHERS:
            return 0.0
        middle = (count // 2, (count - 1) // 2)
        return sum(means[place + (place >= mine)][0] for place in middle) / 2

    def _means(self, source: str, target: str) -> list[tuple[float, str]]:
        pair = (source, target)
        if pair not in self._sorted:
            heard = self._heard.get(pair, {})
            self._sorted[pair] = sorted((total / count, user) for user, (total, count) in heard.items())
        return self._sorted[pair]


def _within(gain: float, middle: float) -> float:
    return min(max(gain, middle - math.log(FAR)), middle + math.log(FAR))
