"""Slurm's words for the states of jobs and nodes, mapped in this one place.

22.05's JSON and libslurm have one word for a job: a flag such as COMPLETING hides the base state below it.
Later JSON lists base state and flags, from which the same word is taken here. Whatever is not known to be
finished is alive (`model.snapshot.FINISHED`), so an unknown word passes through unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gandiva_slurm.model.snapshot import FINISHED

#: The state of a job whose processes are being ended: finished or requeued below, its node not yet free.
COMPLETING = "COMPLETING"
PENDING = "PENDING"
#: The state of a job that ended with exit code 0.
WELL = "COMPLETED"
#: Flags that hide the base state, the first one found wins; as Slurm's own commands show it.
HIDING = (
    COMPLETING, "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED",
    "SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING",
)  # fmt: skip


#: It waits as any other that is held. So does one that Slurm has requeued oftener than max_batch_requeue,
#: which counts our requeues, too.
_HELD = "REQUEUE_HOLD"


def job_state(words: Sequence[str]) -> str:
    """Return one state in upper case and without a tail (as in "CANCELLED by 1000"); nothing is UNKNOWN."""
    known = [word.split()[0].upper() for word in words if word.strip()]
    state = next((flag for flag in HIDING if flag in known), known[0] if known else "UNKNOWN")
    return PENDING if state == _HELD else state


def is_finished(state: str) -> bool:
    """True when the job is over for good."""
    return state in FINISHED


def has_started(state: str) -> bool:
    """True when Slurm's start time is a fact and not a forecast."""
    return state not in {PENDING, COMPLETING}


def node_state(words: Iterable[str]) -> frozenset[str]:
    """Return base state and flags, in upper case."""
    return frozenset(word.upper() for word in words if word) or frozenset({"UNKNOWN"})
