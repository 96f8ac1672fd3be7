"""What is decided of a span for a round, and what it is decided by. Nothing acts here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime, PartStand


class Verdict(NamedTuple):
    """Where a span is to be until the next round; why, when that is not for its pass alone."""

    where: str
    why: str = ""
    #: all of its parts hold their GPUs; some do and some do not: the others must follow
    is_on: bool = False
    is_torn: bool = False
    #: it is out, and may come in by itself when the controller falls silent: it meets no other span then
    comes_back: bool = False
    #: it is out because it refused to park for too long: it is stopped where it is
    freezes: bool = False
    #: it is out to be moved: its ranks save themselves before they release
    saves: bool = False


class Seen(NamedTuple):
    """What a node said last, and when it was asked."""

    boot: str
    held: Mapping[JobKey, HeldTime]
    parts: Mapping[JobKey, PartStand]
    at_ns: int
    is_silent: bool = False
