"""What policies know of rates: what was run, learnt by running it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

#: Rates beyond which those of models that nobody trains any more are forgotten.
_MOST_KNOWN = 10_000
#: What was watched for so long is changed by nothing that is measured later.
_FOR_EVER_S = 1e15


class Learnt:
    """Mean rates by what was run: alone by (model, GPUs, type, on one node), in a pair by the two models."""

    def __init__(self) -> None:
        #: rate and seconds it was watched; pairs are kept from both sides
        self._alone: dict[tuple[str, int, str, bool], tuple[float, float]] = {}
        self._packed: dict[tuple[str, str, str], tuple[float, float]] = {}

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        """Return the mean of what was seen; None: never seen."""
        seen = self._alone.get((model, size, gpu_type, is_local))
        return seen[0] if seen else None

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        """Return the means of both; None: not yet seen from both sides."""
        mine = self._packed.get((model, other, gpu_type))
        theirs = self._packed.get((other, model, gpu_type))
        return (mine[0], theirs[0]) if mine and theirs else None

    def learn_alone(self, key: tuple[str, int, str, bool], rate: float, seconds: float) -> None:
        """Add what was seen of a job without a neighbour."""
        self._alone[key] = _mean(self._alone.get(key), rate, seconds)

    def learn_packed(self, key: tuple[str, str, str], rate: float, seconds: float) -> None:
        """Add what was seen of a job of the first model beside one of the second."""
        self._packed[key] = _mean(self._packed.get(key), rate, seconds)

    def forbid(self, model: str, other: str, gpu_type: str) -> None:
        """Two models cannot be on one GPU: whatever is measured from now on, together they do nothing."""
        for key in ((model, other, gpu_type), (other, model, gpu_type)):
            self._packed[key] = (0.0, _FOR_EVER_S)

    @property
    def forbidden(self) -> int:
        """How many pairs are forbidden."""
        return sum(seconds >= _FOR_EVER_S for _, seconds in self._packed.values()) // 2

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "alone": [[*key, *seen] for key, seen in self._alone.items()],
            "packed": [[*key, *seen] for key, seen in self._packed.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Learnt:
        """Read what `to_json` wrote; nothing when there is nothing."""
        learnt = cls()
        learnt._alone = {(*key,): (rate, over_s) for *key, rate, over_s in data.get("alone", ())}
        learnt._packed = {(*key,): (rate, over_s) for *key, rate, over_s in data.get("packed", ())}
        return learnt

    def __eq__(self, other: object) -> bool:
        """True when both know the same."""
        return isinstance(other, Learnt) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def forget(self, models: Set[str]) -> None:
        """Where there are very many, keep those of models that are trained still."""
        if len(self._alone) + len(self._packed) > _MOST_KNOWN:
            self._alone = {key: seen for key, seen in self._alone.items() if key[0] in models}
            self._packed = {key: seen for key, seen in self._packed.items() if {*key[:2]} <= models}

    def knows(self, key: tuple[object, ...]) -> bool:
        """Tell whether anything was learnt by this key."""
        return key in self._alone or key in self._packed


def _mean(old: tuple[float, float] | None, rate: float, seconds: float) -> tuple[float, float]:
    if old is None:
        return rate, seconds
    if old[0] == rate:
        return rate, old[1] + seconds
    whole = old[1] + seconds
    return ((old[0] * old[1] + rate * seconds) / whole if whole else rate), whole
