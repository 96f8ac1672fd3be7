"""All states that can be reached from a first one, and from which of them no end can be reached any more."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass
class Walk(Generic[S]):
    """`states` seen; `before`: the numbers of those each can come from; `unsafe`: steps that must not be."""

    states: list[S]
    before: list[list[int]] = field(default_factory=lambda: [[]])
    unsafe: list[tuple[S, S]] = field(default_factory=list)

    def cut_off_from(self, is_end: Callable[[S], bool]) -> list[S]:
        """The states from which none is reached that is an end."""
        ends = [number for number, state in enumerate(self.states) if is_end(state)]
        reached = bytearray(len(self.states))
        for number in ends:
            reached[number] = 1
        while ends:
            for number in self.before[ends.pop()]:
                if not reached[number]:
                    reached[number] = 1
                    ends.append(number)
        return [self.states[number] for number, known in enumerate(reached) if not known]


def walk(first: S, steps: Callable[[S], Iterable[tuple[S, bool]]], stops_at_unsafe: bool = False) -> Walk[S]:
    """Walk until there is nothing new. `steps` yields the states after one, and if the step is safe."""
    found, index = Walk([first]), {first: 0}
    with _no_collection():
        for number, state in enumerate(found.states):
            for after, is_safe in steps(state):
                known = index.get(after)
                if known is None:
                    known = index[after] = len(found.states)
                    found.states.append(after)
                    found.before.append([])
                found.before[known].append(number)
                if not is_safe:
                    found.unsafe.append((state, after))
                    if stops_at_unsafe:
                        return found
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hundreds of thousands of small tuples and no cycle among them: collecting would take half the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
