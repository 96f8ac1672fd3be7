"""Spans, jobs of several nodes: the words controller and nodes use of them, and how a part stands.

A span has a *part* on each of its nodes. Nothing acts here; the table of orders is the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.model.ids import JobKey

#: Phases of a part, in the order of a turn.
#: `off`: parked or not begun, holds no GPU · `reserved`: its GPUs are being cleared · `ready`: cleared, waits
#: for GO · `on`: granted, resuming or running · `aiming`: its ranks were told to hold · `holding`: all of
#: them hold at `at` · `releasing` or `freezing`: told to release, or sent SIGSTOP · `released`: all of its
#: ranks have, and its GPUs are given to nobody until FREE.
OFF, RESERVED, READY, ON = "off", "reserved", "ready", "on"
AIMING, HOLDING, RELEASING, FREEZING, RELEASED = "aiming", "holding", "releasing", "freezing", "released"
PHASES = (OFF, RESERVED, READY, ON, AIMING, HOLDING, RELEASING, FREEZING, RELEASED)

#: Order → (what the node does, the phase its answer waits for). Orders to all parts of a node have job 0.
GATHER, ROUND = "GATHER", "ROUND"
RESERVE, UNRESERVE, GO = "RESERVE", "UNRESERVE", "GO"
AIM, COMMIT, FREEZE, FREE, RUN = "AIM", "COMMIT", "FREEZE", "FREE", "RUN"
#: No order: a way out on which all ranks save themselves before they release (AIM with `saves`).
LEAVE = "LEAVE"
ORDERS: dict[str, tuple[str, str]] = {
    GATHER: ("tells what was held and how its parts stand", ""),
    ROUND: ("ends the quantum: local gangs are chosen anew around the spans as they are told", ""),
    RESERVE: ("clears the part's GPUs; told again, it only renews the bound of `ready`", READY),
    UNRESERVE: ("gives cleared GPUs back to the local gangs", OFF),
    GO: ("grants the cleared GPUs and lets the ranks run; charged from now", ON),
    AIM: ("tells the ranks to hold at boundary `at`; 0: they wait for nobody, nothing is done yet", HOLDING),
    COMMIT: ("lets ranks that hold release (AIM 0: each at its next boundary); again: only renews", RELEASED),
    FREEZE: ("stops all processes of a part: it has no client, or did not park for too long", RELEASED),
    FREE: ("all parts have released: the GPUs may be given on", OFF),
    RUN: ("takes an aim, a hold, or a release that was not freed back", ON),
}

#: Where a span is to be until the next round. BACK is OUT, too, but it comes in by itself at the lease's end:
#: it meets no other span on any of its nodes then.
IN, STAY, OUT, BACK = "in", "on", "out", "back"

#: State of a resident in HeldTime beside ON and OFF.
ENDED = "ended"

#: Codes of an answer that is not ok.
#: `miss`: some rank had passed the boundary or does not wait there: aim again · `late`: the wait is over and
#: the order goes on · `stale`: a newer order of this job, or a newer controller, is obeyed · `no`: cannot be
#: done from this phase, or failed; the phase tells where the part is now.
MISS, LATE, STALE, NO = "miss", "late", "stale", "no"

#: Bounds the nodes keep by themselves, so that a dead controller holds nobody.
#: `holding` without COMMIT: on again. `released` without FREE: on again. `ready` without GO: unreserved.
HOLD_BOUND_NS = 2_000_000_000
RELEASED_BOUND_NS = 5_000_000_000
READY_BOUND_NS = 5_000_000_000
#: Quanta for which a node goes by the controller's word after it heard of it last, and the time beyond.
LEASE_QUANTA, LEASE_NS = 3, 10_000_000_000


def lease_ns(quantum_ns: int) -> int:
    """Return how long whose turn it is stays decided when no more is heard of it."""
    return LEASE_QUANTA * quantum_ns + LEASE_NS


@dataclass(frozen=True)
class PartStand:
    """One part as its node sees it now.

    `world`: ranks of its process group on all nodes together (1: its ranks wait for nobody); `ranks`: the
    rank numbers here; `min_seq`, `max_seq`: the boundaries they stand at. `step_ns`, `fast_ns`: slowest and
    fastest step of late; `spread_ns`: from reading the pages until all orders are written. `is_parkable`:
    all expected here are ranks and have passed enough boundaries; `must_stay`: it moves, or its last park
    failed just now. `blind_ns`: held without a parkable client so far. `left_ns`: until its park's bound
    brings it back, -1 while it is not parked. `at`: the boundary of its last aim. `has_saved`: it is parked,
    and all its ranks have saved themselves, to go on elsewhere.
    """

    job_id: int
    restart: int
    phase: str
    world: int = 0
    ranks: tuple[int, ...] = ()
    min_seq: int = 0
    max_seq: int = 0
    step_ns: int = 0
    fast_ns: int = 0
    spread_ns: int = 0
    is_parkable: bool = False
    must_stay: bool = False
    blind_ns: int = 0
    left_ns: int = -1
    at: int = 0
    error: str = ""
    has_saved: bool = False

    @property
    def key(self) -> JobKey:
        """The incarnation."""
        return JobKey(self.job_id, self.restart)


@dataclass(frozen=True)
class HeldTime:
    """How long one resident held its GPUs, each of them, in this boot of its node's daemon; it never falls.

    `over_ns` is the part of it past its quantum. `state`: on (holds now), off, ended. `must_stay`: its GPUs
    cannot be taken from it now. `left_ns`: until its park's bound, -1 while it is not parked. Every resident
    is listed, local ones and parts, also one that never held; one that ended, for a minute more at least.
    """

    job_id: int
    restart: int
    user: str
    gpus: tuple[int, ...]
    held_ns: int
    over_ns: int
    state: str
    must_stay: bool = False
    left_ns: int = -1

    @property
    def key(self) -> JobKey:
        """The incarnation."""
        return JobKey(self.job_id, self.restart)
