"""What `make test` leaves to `make test-all`, and that to `make soak`: long forms, and what is slow."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def slow(why: str) -> pytest.MarkDecorator:
    """Mark a test, or a case of one, for `make test-all` alone; `why` says what it costs and what stays."""
    return pytest.mark.slow(why)


def soak(why: str) -> pytest.MarkDecorator:
    """Mark a test, or a case of one, for `make soak` alone; `why` says what it costs and what stays."""
    return pytest.mark.soak(why)


def long_form(*values: Any, why: str) -> Any:
    """Return a case of `parametrize` that only `make test-all` runs."""
    return pytest.param(*values, marks=slow(why))


def by_need(names: Iterable[str], *needed: str) -> list[Any]:
    """Return the cases of a test: those needed in `make test`, the others marked as long forms."""
    found = list(names)
    assert set(needed) <= set(found), f"{set(needed) - set(found)} are no cases"
    return [name if name in needed else long_form(name, why="one more case") for name in found]


def soaked(*values: Any, why: str) -> Any:
    """Return a case of `parametrize` that only `make soak` runs."""
    return pytest.param(*values, marks=soak(why))


#: 1 in `make test-all`, which draws the examples of `make test` again, and more; all in `make soak`.
LONG_VARIABLE = "GANDIVA_LONG"
#: One example in this many is drawn, by what the variable is set to.
ONE_IN = {"all": 1, "1": 2}


#: Marks what `make test-all` does again with more examples; others have drawn all theirs in `make test`.
DRAWN = pytest.mark.drawn


def drawn(examples: int) -> int:
    """Return how many examples to draw of a costly property: a fifth in `make test`, half in test-all.

    What asks for it is marked `DRAWN`.
    """
    return -(-examples // ONE_IN.get(os.environ.get(LONG_VARIABLE, ""), 5))


#: An explorer's scenario with at least this many states is left to `make test-all`; 10,000 take about 0.3 s.
MOST_STATES = 60_000


def by_states(scenarios: Mapping[str, tuple[Any, int]], *longest: str) -> list[Any]:
    """Return the names of an explorer's scenarios (name -> scenario, least states), long ones marked.

    The `longest` are left to `make soak`.
    """
    why = "{:,} states and more"
    assert set(longest) <= set(scenarios), longest
    return [
        soaked(name, why=why.format(states))
        if name in longest
        else long_form(name, why=why.format(states))
        if states >= MOST_STATES
        else name
        for name, (_, states) in scenarios.items()
    ]
