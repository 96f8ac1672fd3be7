"""A job whose memory does not come back at its turn: the turn is given on, and it is tried again (ADR 0053).

A rank that is told to train allocates on its GPU what was moved away; where others fill it by then, that
fails. It says so on its page and stays parked, with all it had safe in the host's memory. Such a job does not
run: it gives its GPUs back, frozen where it is, and rests, longer each time. Of the try it pays what took
longer than any honest one needs: nobody works for nothing by telling of failures.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node.pages import error_text
from gandiva_slurm.wire import page as wire

if TYPE_CHECKING:
    from gandiva_slurm.node.context import Node
    from gandiva_slurm.node.jobs import Resident
    from gandiva_slurm.node.procs import ProcId

NS_PER_S = 1_000_000_000
#: How long it rests after its first failure; twice as long after each further one, up to the second.
REST_NS, LONGEST_REST_NS = NS_PER_S, 32 * NS_PER_S
#: What is not charged of one failed try, in ns.
FREE_NS = NS_PER_S
#: The least time that a job has to come back, in ns, however short turns are.
LEAST_RESUME_NS = NS_PER_S
#: States of a rank that still stands at the boundary where it was parked.
_AT_BOUNDARY = (wire.PARKED, wire.RESTORING)


@dataclass
class Returning:
    """How a job's returns to its GPUs go. Times are monotonic."""

    #: of each rank, the errors it had told when the GPUs were granted
    errors: dict[ProcId, int] = field(default_factory=dict)
    #: failures in a row, and why the last one
    failures: int = 0
    why: str = ""
    #: when it is tried again; 0: it does not rest
    again_ns: int = 0
    #: its hold is of a try that has failed
    is_free: bool = False


def longest_ns(node: Node, resident: Resident) -> int:
    """Return how long a gang may say that it comes back: a quantum, the parts of spans as long as a park."""
    deadline_ns = node.settings.park_deadline_ns
    if resident.part is not None:
        return deadline_ns
    return min(deadline_ns, max(LEAST_RESUME_NS, node.local.quantum_ns))


def begin(resident: Resident) -> None:
    """It was granted its GPUs: what its ranks tell from now on is of this try."""
    resident.returning.errors = {rank.proc: rank.look()[wire.W_ERROR] for rank in resident.ranks}
    resident.returning.again_ns = 0


def failure(resident: Resident) -> str:
    """Say why its memory has not come back; "" while no rank says that it could not restore.

    Of a part of a job of several nodes the controller's bound is all there is.
    """
    if resident.part is not None:
        return ""
    errors = resident.returning.errors
    for rank in resident.ranks:
        view = rank.look()
        is_new = view[wire.W_ERROR] > errors.get(rank.proc, view[wire.W_ERROR])
        if rank.is_alive and is_new and view[wire.W_STATE] == wire.PARKED:
            return error_text(view) or "its rank does not say why"
    return ""


def fail(node: Node, resident: Resident, why: str, now: int) -> None:
    """Write down that a try has failed; the switcher takes the GPUs back."""
    returning = resident.returning
    rest_ns = min(REST_NS << min(returning.failures, 10), LONGEST_REST_NS)
    returning.failures, returning.why = returning.failures + 1, why
    returning.again_ns, returning.is_free = now + rest_ns, True
    node.note("unrestored", resident, now, why=why, failures=returning.failures, rest_s=rest_ns / NS_PER_S)


def forgive(resident: Resident, now: int) -> int:
    """Its hold ends: return what of it is not charged, and take that off what it owes."""
    free_ns = max(0, min(FREE_NS, now - resident.charged_ns)) if resident.returning.is_free else 0
    resident.returning.is_free = False
    resident.charged_ns += free_ns
    return free_ns


def succeed(resident: Resident) -> None:
    """All its ranks train again."""
    resident.returning = Returning()


def stands_at_boundary(resident: Resident) -> bool:
    """True for one that failed with all its ranks where they were parked: none is in mid-step."""
    states = {rank.look()[wire.W_STATE] for rank in resident.ranks if rank.is_alive}
    return resident.returning.failures > 0 and states <= {*_AT_BOUNDARY}


def is_rested(resident: Resident, now: int) -> bool:
    """True once, when its rest is over: it may find its GPUs idle."""
    returning = resident.returning
    if not returning.again_ns or now < returning.again_ns:
        return False
    returning.again_ns = 0
    return True


def told(node: Node, resident: Resident) -> str:
    """Say that its memory did not come back, why, and when it is tried again; "" where it did."""
    returning = resident.returning
    if not returning.failures or resident.state != SUSPENDED:
        return ""
    times = "once" if returning.failures == 1 else f"{returning.failures} times"
    again = "in its next turn"
    if returning.again_ns > node.clock.mono():
        at = time.localtime(node.clock.real(returning.again_ns) // NS_PER_S)
        again = time.strftime("at %Y-%m-%dT%H:%M:%S at the earliest", at)
    return f"failed {times} ({returning.why}); tried again {again}"


def rests(node: Node, resident: Resident) -> bool:
    """True while it is not tried again."""
    return resident.returning.again_ns > node.clock.mono()
