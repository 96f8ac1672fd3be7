"""What of gandiva_fair is on: other policies, and tests, go without some of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """What of it is on: `gandiva` knows no users; tests show what each of the others is worth."""

    name: str = "gandiva_fair"
    by_user: bool = True
    by_type: bool = True
    packs: bool = True
    #: jobs of a user take turns; else the first to come goes first
    in_turn: bool = True
