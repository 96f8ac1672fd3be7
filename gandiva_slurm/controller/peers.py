"""Which other nodes a node asks that hears neither gandivactld nor slurmctld (ADR 0048)."""

from __future__ import annotations

from collections.abc import Iterable

#: Each costs a node that hears nobody a message a second, and 2 s where none answers.
MOST_PEERS = 32


def peers_of(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the others that a node asks when it hears nobody: MOST_PEERS at most, from all over."""
    ring = sorted(names)
    others = [*ring[ring.index(name) + 1 :], *ring[: ring.index(name)]] if name in ring else ring
    count = min(MOST_PEERS, len(others))
    return tuple(others[place * len(others) // count] for place in range(count))
