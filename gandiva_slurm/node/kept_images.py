"""Images of parked jobs that are made now and then and kept, in case their node is lost (ADR 0061).

The job goes on where it is when one is made; the newest is kept. It is used when the job is started anew on
another node and this one has not deleted it, as it does when it sees the job end: so it is used when this
node is lost, or has stopped the job because it runs elsewhere. What was trained since is lost.
"""

from __future__ import annotations

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node import leaving
from gandiva_slurm.node.jobs import Resident

#: A PART-th of a job's time at most is spent on them: PART times what one takes goes by.
PART = 100
#: None is made more often than this, and none so soon after one that failed.
LEAST_NS, FAILED_REST_NS = 30_000_000_000, 120_000_000_000
#: None is made of a job that has held its GPUs for less.
LEAST_HELD_NS = 10_000_000_000


def is_ready(resident: Resident) -> bool:
    """True for a job that is parked (frozen, if it has no client) and goes on from an image, if at all."""
    is_still = resident.state == SUSPENDED and (not resident.is_frozen or resident.image.is_blind)
    is_parked = is_still and resident.counts.suspends > 0
    is_free = not resident.image.keeps_still and not resident.image.restoring
    is_parked = is_parked and resident.may_have_turns and is_free
    return is_parked and resident.part is None and leaving.is_imageable(resident)


def is_due(resident: Resident, now: int) -> bool:
    """True when the next one may be made: it has trained since the last one, which was long ago.

    One that Slurm does not start again goes on nowhere.
    """
    image = resident.image
    if not resident.is_requeueable:
        return False
    has_trained = done(resident) > image.kept_steps and resident.counts.held_ns >= LEAST_HELD_NS
    return has_trained and now >= image.next_ns and not resident.awake_until_ns


def done(resident: Resident) -> int:
    """Return how far it is, as a number that grows: mini-batches, or turns where nothing tells of these."""
    return resident.counts.suspends if resident.image.is_blind else resident.steps()


def note_made(resident: Resident, now: int, took_ns: int, steps: int) -> None:
    """One was made, which took so long."""
    resident.image.kept_steps = steps
    resident.image.next_ns = now + max(LEAST_NS, PART * took_ns)


def note_failed(resident: Resident, now: int, took_ns: int) -> None:
    """None could be made; an older one stays."""
    resident.image.next_ns = now + max(FAILED_REST_NS, PART * took_ns)
