"""With whom a job takes turns."""

from __future__ import annotations

#: The group of those who have what others leave; no virtual cluster is called so.
SPARE = "\0spare"


def group_of(vc: str, is_opportunistic: bool) -> str:
    """Return with whom a job takes turns: those of its virtual cluster ("": of none), or SPARE."""
    return SPARE if is_opportunistic else vc
