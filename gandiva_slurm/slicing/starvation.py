"""Which gangs are passed over although it is their user's turn: their GPUs are never free together. Pure.

Stride serves users by their passes and skips a gang that does not fit. A user may be served with others of
its gangs for ever while the one that it would run first never fits: the user has its share, that gang has
nothing. Such a gang is counted, and after a while goes first, at its user's cost.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

#: Rounds in which a gang is passed over before it goes first: others then lose one of 24, under 5 %.
PASSED_OVER = 24

Key = TypeVar("Key", bound=Hashable)


class Waiter(NamedTuple, Generic[Key]):
    """A gang that could run: its owner, and its place among those of the same owner, the lowest first."""

    key: Key
    owner: Hashable
    place: tuple[int, tuple[int, ...]]


class Starving(Generic[Key]):
    """Counts, for each owner, how often the gang of its lowest pass was passed over for another one."""

    def __init__(self) -> None:
        self._skips: dict[Key, int] = {}

    def note(self, gangs: Iterable[Waiter[Key]], chosen: Collection[Key]) -> None:
        """A round was decided."""
        mine: dict[Hashable, list[Waiter[Key]]] = {}
        for gang in gangs:
            mine.setdefault(gang.owner, []).append(gang)
        skips = {}
        for own in mine.values():
            head = min(own, key=lambda gang: gang.place).key
            if head not in chosen and any(gang.key in chosen for gang in own):
                skips[head] = self._skips.get(head, 0) + 1
            elif head not in chosen and head in self._skips:
                skips[head] = self._skips[head]
        self._skips = skips

    def starved(self) -> list[Key]:
        """Return the gangs that must go first now."""
        return [key for key, skips in self._skips.items() if skips >= PASSED_OVER]
