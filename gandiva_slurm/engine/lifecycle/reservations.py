"""Reservations: nodes that Slurm keeps for others, now or before a job's time limit would be over.

Slurm starts no job on a node that is reserved before the job's limit is over (22.05: ReqNodeNotAvail), so
such a node is no place for it. A job submitted with --reservation runs nowhere else, and Slurm alone knows
who may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS, JobRecord
from gandiva_slurm.model.bounds import Reservation


def reserved_nodes(at: Cycle, record: JobRecord) -> Mapping[str, str]:
    """Return the nodes that are closed to a job, each with the reservation that says so."""
    bounds = at.state.bounds
    if bounds is None or not (bounds.reservations or record.options.reservation):
        return {}
    now_s = at.slurm_ns // SECOND_NS
    own = next((each for each in bounds.reservations if each.name == record.options.reservation), None)
    closed: dict[str, str] = {}
    if record.options.reservation:
        open_ = set(own.nodes) if own is not None and own.start_s <= now_s < own.end_s else set()
        closed = {name: record.options.reservation for name in at.state.nodes if name not in open_}
    until_s = now_s + record.job.time_limit_s if record.job.time_limit_s else None
    for each in bounds.reservations:
        if each is not own and now_s < each.end_s and (until_s is None or each.start_s < until_s):
            closed |= dict.fromkeys(each.nodes, each.name)
    return closed


def first_start_s(reservations: Iterable[Reservation], nodes: Iterable[str], now_s: int) -> int | None:
    """When the first reservation of any of these nodes begins that has not begun yet; None when none does."""
    here = set(nodes)
    starts = [each.start_s for each in reservations if each.start_s > now_s and here & set(each.nodes)]
    return min(starts, default=None)
