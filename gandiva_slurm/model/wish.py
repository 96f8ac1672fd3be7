"""What if one job had other tickets, other GPUs or another GPU type: `gandiva when JOB --if tickets=200`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gandiva_slurm.model.errors import UsageError

#: What may be other than it is, and how that is written; tickets and GPUs within these bounds.
FORMS = "tickets=N, gpus=N, type=NAME"
MOST = {"tickets": 1000, "gpus": 100_000}


#: The number of a job that is not submitted yet: Slurm gives none as large.
NEW_ID = 1 << 30
#: What is told of such a job: numbers within these bounds, and a GPU type.
NEW_FORMS = "gpus=N,nodes=N,type=NAME,limit=SECONDS"
NEW_MOST = {"gpus": 100_000, "nodes": 4096, "limit": 365 * 86400}


@dataclass(frozen=True)
class Wish:
    """One thing of one job that is other than it is: `what` is tickets, gpus or type; or new, a job more."""

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


def parse_new(text: str) -> dict[str, str | int]:
    """Read `gpus=2,type=v100`, of a job that is not submitted yet; UsageError says what is allowed."""
    told: dict[str, str | int] = {"gpus": 1, "nodes": 1, "type": "", "limit": 0}
    for part in text.split(","):
        what, _, value = part.partition("=")
        is_number = value.isascii() and value.isdecimal() and len(value) < 9
        if what == "type" and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
            told[what] = value
        elif what in NEW_MOST and is_number and 1 <= int(value) <= NEW_MOST[what]:
            told[what] = int(value)
        else:
            raise UsageError(f"invalid --new {text[:80]!r}; allowed: {NEW_FORMS}")
    if int(told["gpus"]) % int(told["nodes"]):
        raise UsageError(f"invalid --new {text[:80]!r}: as many GPUs on each node")
    return told
