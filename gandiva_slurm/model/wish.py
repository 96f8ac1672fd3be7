"""What if one job had other tickets, other GPUs or another GPU type: `gandiva when JOB --if tickets=200`."""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.model.errors import UsageError

#: What may be other than it is, and how that is written; tickets and GPUs within these bounds.
FORMS = "tickets=N, gpus=N, type=NAME"
MOST = {"tickets": 1000, "gpus": 100_000}


@dataclass(frozen=True)
class Wish:
    """One thing of one job that is other than it is: `what` is tickets, gpus or type."""

    job_id: int
    what: str
    value: str


def parse_wish(job_id: int, text: str) -> Wish:
    """Read `tickets=200`; UsageError says what is allowed."""
    what, _, value = text.partition("=")
    is_number = value.isascii() and value.isdecimal() and len(value) < 7
    if what == "type" and value.isprintable() and 0 < len(value) <= 64:
        return Wish(job_id, what, value)
    if what in MOST and is_number and 1 <= int(value) <= MOST[what]:
        return Wish(job_id, what, str(int(value)))
    most = f", 1..{MOST[what]}" if what in MOST else ""
    raise UsageError(f"invalid --if {text[:80]!r}; allowed: {FORMS}{most}")
