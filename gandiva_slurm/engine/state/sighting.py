"""What a node says of an incarnation, as the engine keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured


@dataclass
class Sighting:
    """An incarnation that a node reports, with the GPUs it is bound to (none: to none yet)."""

    gpus: tuple[int, ...] = ()
    #: how the node slices it, as it said last; "" = it has not said
    state: str = ""
    reason: str = ""
    detail: str = ""
    #: since when it should not be there; 0 = it should
    odd_ns: int = 0
    #: its tasks are stopped before they begin
    is_unborn: bool = False
    #: GPU time it has held there, as it was told last; when that was (0: never), and what was planned since
    held_ns: int = 0
    told_ns: int = 0
    planned_ns: int = 0
    #: asked for, so that the action is emitted once; the node's plan names it as long as it is seen
    is_fenced: bool = False
    #: as it was told last; what is known once (rate alone, GPU, peak) is not forgotten, and `held_bytes` is
    #: of its last park
    measured: Measured = field(default_factory=Measured)


def why_unfit(
    sightings: Mapping[tuple[str, JobKey], Sighting], key: JobKey, nodes: Iterable[str]
) -> str:
    """Why a node of a job's cannot restore it, by that node's last word; "" where it can, or has."""
    seen = (sightings.get((name, key)) for name in nodes)
    return next((each.measured.unrestored for each in seen if each and each.measured.unrestored), "")
