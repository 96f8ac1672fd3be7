"""Figures beside their limits, and the table of them that a benchmark prints at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_told: list[tuple[str, str, str, str]] = []


def judge(what: str, now: float, limit: float, form: str = "{:,.0f}") -> None:
    """Note a figure beside its limit; it fails where it is above. `limit` 0: there is none."""
    is_over = bool(limit) and now > limit
    _told.append((what, form.format(now), form.format(limit) if limit else "", "over" if is_over else ""))
    assert not is_over, f"{what}: {form.format(now)}, limit {form.format(limit)}"


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print what a module has measured when all is."""
    _told.clear()
    yield
    print("\n\n| what | now | wanted | |\n|---|---|---|---|")
    for row in _told:
        print(f"| {' | '.join(row)} |")
