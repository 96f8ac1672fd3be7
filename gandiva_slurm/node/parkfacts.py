"""What pages and coordinators tell of a park that is over: for the log, and for whoever asks why."""

from __future__ import annotations

from typing import Any

from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.pages import error_text
from gandiva_slurm.node.returning import stands_at_boundary
from gandiva_slurm.wire import page as wire


def park_facts(resident: Resident) -> dict[str, Any]:
    """What the log keeps of a park: where each rank stood, and whether that was one boundary.

    One that was frozen before all its ranks could be asked has missed none, whatever came to it meanwhile.
    """
    seqs, aims, is_off = [], [], False
    for group in resident.sets:
        words = [rank.look() for rank in group.in_order()]
        at = [w[wire.W_STATE_SEQ] for w in words]
        aim = group.form().park_seq
        is_off = is_off or set(at) != {aim}
        seqs.append(at)
        aims.append(aim)
    if resident.is_frozen:
        is_off = bool(resident.sets) and not resident.is_unasked and not stands_at_boundary(resident)
    reaims = sum(group.new_reaims() for group in resident.sets)
    return {
        "seqs": seqs,
        "at": aims,
        "off_boundary": int(is_off),
        "frozen": resident.is_frozen,
        "reaims": reaims,
        "margin": max((group.form().margin for group in resident.sets), default=0),
    }


def last_error(resident: Resident) -> str:
    """Say why its ranks did not park."""
    errors = [group.gang.last_error for group in resident.sets if group.gang is not None]
    views = [rank.look() for rank in resident.ranks]
    errors += [error_text(view) for view in views if view[wire.W_STATE] == wire.FAILED]
    return "; ".join(filter(None, errors)) or "no common boundary was found"
