"""Slurm's words for the states of jobs and nodes, mapped in this one place.

22.05 prints one word for a job: a flag such as COMPLETING hides the base state below it. Whatever is not
known to be finished is alive (`model.snapshot.FINISHED`), so an unknown word passes through unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

from gandiva_slurm.model.snapshot import FINISHED

#: The state of a job whose processes are being ended: finished or requeued below, its node not yet free.
COMPLETING = "COMPLETING"
PENDING = "PENDING"
#: Reasons with which Slurm shows a job that somebody holds.
HELD_REASONS = frozenset({"JobHeldUser", "JobHeldAdmin"})


def job_state(word: str) -> str:
    """Return the state in upper case and without a tail (as in "CANCELLED by 1000"); "" becomes UNKNOWN."""
    return (word.split() or ["UNKNOWN"])[0].upper()


def is_finished(state: str) -> bool:
    """True when the job is over for good."""
    return state in FINISHED


def has_started(state: str) -> bool:
    """True when Slurm's start time is a fact and not a forecast."""
    return state not in {PENDING, COMPLETING}


def node_state(base: str, flags: Iterable[str]) -> frozenset[str]:
    """Return base state and flags, in upper case."""
    return frozenset({base.upper() or "UNKNOWN", *(flag.upper() for flag in flags)})
