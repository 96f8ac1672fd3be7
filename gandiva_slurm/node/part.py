"""What a node remembers of its part of a span, a job of several nodes, beside what it knows of any job.

The controller's orders move it (`span`); where it stands follows from this and from its ranks' pages
(`phase_of`). Everything here that must survive a kill of gandivad is in its JSON.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gandiva_slurm.model import span as words
from gandiva_slurm.model.job import SUSPENDED, SUSPENDING
from gandiva_slurm.model.span import HeldTime, PartStand
from gandiva_slurm.node.park import SANE_SEQ, ended_rank
from gandiva_slurm.node.park_part import HOLDING, MISSED
from gandiva_slurm.node.ranks import have_saved
from gandiva_slurm.wire.page import W_SEQ

if TYPE_CHECKING:
    from gandiva_slurm.node.jobs import Resident
    from gandiva_slurm.node.settings import NodeSettings

#: What is wanted of a part: no GPU; its GPUs cleared; its GPUs held.
OUT, RESERVE, IN = "out", "reserve", "in"

Span = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(eq=False)
class Part:
    """`span`: its nodes with their GPUs there. Times are monotonic."""

    span: Span
    wish: str = OUT
    #: where the last round said it is to be, "" before the first
    word: str = ""
    #: the newest order obeyed
    epoch_ns: int = 0
    seq: int = 0
    #: False as long as no process of it has come: it is only planned
    has_begun: bool = False
    #: True from the first process of a step to its last
    has_processes: bool = False
    #: True where its batch script runs: with it the job ends
    has_script: bool = False
    #: its GPUs are free, and kept so
    is_clear: bool = False
    #: all that it has here gave its device back; nobody was told yet that the GPUs are free
    is_released: bool = False
    #: when it was told to park, the boundary of its last aim, and until when that is waited for
    asked_ns: int = 0
    at: int = 0
    until_ns: int = 0
    #: (phase, whether its aim is lost) as noticed last, and since when
    seen: tuple[str, bool] = (words.OFF, False)
    since_ns: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_forced(self) -> bool:
        """True when its GPUs are its own in the node's choice."""
        return self.wish != OUT

    def leave(self) -> None:
        """It has no GPU here any more, and none is kept for it."""
        self.wish, self.is_clear, self.is_released = OUT, False, False

    def obey(self, epoch_ns: int, seq: int) -> bool:
        """Take the number of an order; False when a newer one is obeyed."""
        if (epoch_ns, seq) < (self.epoch_ns, self.seq):
            return False
        self.epoch_ns, self.seq = epoch_ns, seq
        return True

    def to_json(self) -> dict[str, Any]:
        """Return what belongs into the state file."""
        names = ("span", "word", "epoch_ns", "seq", "has_begun", "has_processes", "has_script")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Part:
        """Read what `to_json` wrote."""
        span = tuple((node, tuple(gpus)) for node, gpus in row["span"])
        return cls(**{**row, "span": span})


def phase_of(resident: Resident) -> str:
    """Return the phase (`model.span`) a part is in."""
    part = resident.part
    assert part is not None
    if resident.state == SUSPENDED:
        if part.wish == OUT:
            return words.OFF
        return words.READY if part.is_clear else words.RESERVED
    if resident.state != SUSPENDING:
        return words.ON
    if part.is_released:
        return words.RELEASED
    if resident.is_frozen:
        return words.FREEZING
    phases = _gang_phases(resident)
    if "aiming" in phases or MISSED in phases:
        return words.AIMING
    return words.HOLDING if HOLDING in phases else words.RELEASING


def has_missed(resident: Resident) -> bool:
    """True when its aim is lost."""
    return resident.state == SUSPENDING and MISSED in _gang_phases(resident)


def has_ended(resident: Resident) -> bool:
    """True when one of its ranks has: no boundary of all of them will come."""
    return any(ended_rank(group.views(), group.alive()) for group in resident.sets)


def notice(resident: Resident, now: int) -> None:
    """Tell whoever waits for this part that it stands elsewhere than before."""
    part = resident.part
    if part is None:
        return
    seen = (phase_of(resident), has_missed(resident))
    if seen != part.seen:
        part.seen, part.since_ns = seen, now
    part.news.set()


def trouble_of(resident: Resident) -> str:
    """Return why this job cannot be parked over its nodes, "" when it can."""
    if len(resident.sets) > 1 and any(group.world > 1 for group in resident.sets):
        return f"{len(resident.sets)} process groups on this node; a job of several nodes is parked as one"
    return ""


def stand_of(resident: Resident, settings: NodeSettings, now: int) -> PartStand:
    """Return the part as the controller is told of it."""
    part = resident.part
    assert part is not None
    seqs = [min(view[W_SEQ], SANE_SEQ) for group in resident.sets for view in group.views()]
    paces = [group.form().pace for group in resident.sets]
    trouble = trouble_of(resident)
    errors = [group.gang.last_error for group in resident.sets if group.gang is not None]
    return PartStand(
        job_id=resident.key.job_id,
        restart=resident.key.restart,
        phase=phase_of(resident),
        world=max((group.world for group in resident.sets), default=0),
        ranks=tuple(sorted({rank.rank for rank in resident.ranks if rank.is_alive})),
        min_seq=min(seqs, default=0),
        max_seq=max(seqs, default=0),
        step_ns=max((pace.slowest_ns for pace in paces), default=0),
        fast_ns=min((pace.fastest_ns for pace in paces), default=0),
        spread_ns=max((pace.spread_ns for pace in paces), default=0),
        is_parkable=not trouble and resident.has_client(),
        must_stay=resident.must_stay(settings.client_wait_ns),
        blind_ns=resident.counts.blind_ns,
        left_ns=_left_ns(resident, settings, now),
        at=part.at,
        error=trouble or next(filter(None, errors), "") or resident.refusal.why,
        has_saved=resident.state == SUSPENDED and have_saved(resident.ranks),
    )


def held_time(resident: Resident, settings: NodeSettings, now: int, keeps_turn: bool = False) -> HeldTime:
    """Return how long a resident has held its GPUs here so far, and whether they can be taken from it."""
    counts, key = resident.counts, resident.key
    may_stay = keeps_turn or resident.must_stay(settings.client_wait_ns)
    return HeldTime(
        key.job_id,
        key.restart,
        resident.user,
        resident.gpus,
        counts.held_ns - counts.shared_ns // 2,
        counts.over_ns,
        words.ENDED if resident.is_ending else words.ON if resident.holds else words.OFF,
        must_stay=resident.holds and not resident.is_ending and may_stay,
        left_ns=_left_ns(resident, settings, now),
    )


def _left_ns(resident: Resident, settings: NodeSettings, now: int) -> int:
    if resident.state != SUSPENDED or (resident.part is not None and not resident.part.has_begun):
        return -1
    bound_ns = resident.bound_ns(settings.max_park_ns, settings.freeze_bound_ns, settings.quantum_ns)
    return max(0, bound_ns - now)


def _gang_phases(resident: Resident) -> list[str]:
    return [group.gang.phase for group in resident.sets if group.gang is not None and any(group.alive())]
