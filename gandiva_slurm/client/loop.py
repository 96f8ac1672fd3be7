"""`steps(iterable)` and `step()`: the script's own mark of its mini-batches.

Under Gandiva every mark is a boundary, a place to park; elsewhere the script runs as if the lines were not
there.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, TypeVar

from gandiva_slurm.client.notice import say
from gandiva_slurm.client.rank import this_rank
from gandiva_slurm.wire.page import KIND_STEP, KIND_STEPS

T = TypeVar("T")

_ALONE = "no GANDIVA_SOCKET here: this script runs as if gandiva were not imported"


def steps(iterable: Iterable[T]) -> Iterable[T]:
    """Iterate over `iterable`; each item is a mini-batch, done when the next one is asked for.

    `len()` and attributes are those of `iterable`. Outside Gandiva it is returned as it is.
    """
    rank = this_rank()
    if rank is None:
        say(_ALONE)
        return iterable
    rank.claim(KIND_STEPS)
    boundary = rank.boundary if rank.kind == KIND_STEPS else _none
    return wrapped(iterable, lambda items: StepsIterator(iter(items), boundary))


def step() -> None:
    """Mark the end of a mini-batch in a hand-written loop."""
    rank = this_rank()
    if rank is None:
        say(_ALONE)
        return
    rank.claim(KIND_STEP)
    if rank.kind == KIND_STEP:
        rank.boundary()


def wrapped(iterable: Iterable[Any], begin: Callable[[Iterable[Any]], Iterator[Any]]) -> Steps:
    """Return `iterable` with each pass over it begun by `begin`; its length and attributes stay its own."""
    return (SizedSteps if hasattr(type(iterable), "__len__") else Steps)(iterable, begin)


def _none() -> None:
    """Mark nothing: an attached training marks its own boundaries."""


class Steps:
    """An iterable whose every item ends in a boundary."""

    def __init__(self, iterable: Iterable[Any], begin: Callable[[Iterable[Any]], Iterator[Any]]) -> None:
        """Keep what is iterated over and what begins a pass."""
        self._iterable = iterable
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass over the items."""
        return self._begin(self._iterable)

    def __getattr__(self, name: str) -> Any:
        """Answer for the iterable: `gandiva.steps(loader).dataset` works as it does without us."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._iterable, name)


class SizedSteps(Steps):
    """Steps over something with a length."""

    def __len__(self) -> int:
        """Return the iterable's own length."""
        return len(self._iterable)  # type: ignore[arg-type]


class StepsIterator:
    """One pass. It never holds an item, so a batch is gone before the rank waits."""

    def __init__(self, items: Iterator[Any], boundary: Callable[[], None]) -> None:
        """Start before the first item: there is no boundary yet."""
        self._next = items.__next__
        self._boundary = boundary
        self._started = False
        self.is_over = False

    def __iter__(self) -> Iterator[Any]:
        """Return itself, as iterators do."""
        return self

    def __next__(self) -> Any:
        """End the mini-batch before this one and fetch the next."""
        if self._started:
            self._boundary()
        self._started = True
        try:
            return self._next()
        except StopIteration:
            self.is_over = True
            raise
