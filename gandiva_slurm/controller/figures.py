"""What a monitoring is told: counts of the whole cluster, of its nodes, and of users where asked for.

No job is named: how much is told grows with nodes and users, not with jobs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from gandiva_slurm.controller.loop import Controller
from gandiva_slurm.controller.views import World, node_state
from gandiva_slurm.engine.state.sizes import gpus_of
from gandiva_slurm.model import job as states
from gandiva_slurm.wire.messages import NodeReport

#: Users told of at most, those with the most GPUs wanted first; the others are added up.
MOST_USERS = 500
#: Under this name, which no user can have.
OTHERS = "(others)"

Row = dict[str, Any]


def figures(world: World, with_users: bool) -> Row:
    """Return what jobs, nodes and users come to now."""
    alive = [record for record in world.engine.jobs.values() if record.state != states.ENDED]
    waiting = Counter(record.reason.code for record in alive if record.state == states.HELD)
    counted = Counter(record.state for record in alive)
    idle = Counter(record.idle.parked_ns > 0 for record in alive if record.idle.told_ns)
    return {
        "jobs": {state: counted[state] for state in states.STATES if state != states.ENDED},
        "waiting": dict(waiting),
        "wanted_gpus": sum(map(gpus_of, alive)),
        "packs": {"trial": _packs(world, True), "kept": _packs(world, False)},
        "idle": {"told": idle[False], "behind": idle[True]},
        "set_aside": len(world.engine.state.aside),
        "policy_troubles": len(world.troubles),
        "nodes": [_node(world, name) for name in sorted(world.engine.nodes)],
        "users": _users(world) if with_users else [],
    }


def own_figures(controller: Controller) -> Row:
    """Return how gandivactld itself is."""
    status = controller.status
    return {
        "cycles": status.cycle,
        "errors": status.errors,
        "started_s": status.started_s,
        "stale_s": time.monotonic() - status.fresh_s,
        "is_slurm_read": not status.slurm_error,
        "is_state_written": not controller.books.error,
        "unread": len(status.unread),
        "rounds": controller.nodes.lateness(),
    }


def _packs(world: World, is_trial: bool) -> int:
    return sum(pack.is_trial == is_trial for pack in world.engine.state.packs)


def _node(world: World, name: str) -> Row:
    record, link, report = world.engine.nodes[name], world.links.get(name), world.reports.get(name)
    residents = report.residents if report else ()
    known = [item.gpu_percent for item in residents if item.gpu_percent >= 0 and item.state == states.RUNNING]
    return {
        "node": name,
        "type": record.node.gpu_type,
        "state": node_state(record, link),
        "gpus": record.gpus,
        "held_gpus": len(_held(report, record.gpus)),
        "jobs": len(residents),
        "suspends": sum(item.suspends for item in residents),
        "strangers": len(report.strangers) if report else 0,
        "report_age_s": link.age_s if link else None,
        "busy": sum(known) / len(known) / 100 if known else None,
    }


def _held(report: NodeReport | None, gpus: int) -> set[int]:
    holds = report.holds if report else ()
    return {gpu for hold in holds if hold.seq == 0 for gpu in hold.gpus if gpu < gpus}


def _users(world: World) -> list[Row]:
    """Return users by how many GPUs their jobs want, the last ones in one row."""
    due = world.engine.tickets()
    rows = {user: _no_user(user) | {"norm_share": float(share.norm_share)} for user, share in due.items()}
    for record in world.engine.jobs.values():
        if record.state == states.ENDED:
            continue
        row = rows.setdefault(record.job.user, _no_user(record.job.user))
        row["jobs"] += 1
        row["wanted_gpus"] += gpus_of(record)
    for hold in world.open_holds():
        row = rows.setdefault(hold.user, _no_user(hold.user))
        row["held_gpus"] += len(hold.gpus) / (2 if hold.shared_with else 1)
    ordered = sorted(rows.values(), key=lambda row: (-row["wanted_gpus"], row["user"]))
    rest = ordered[MOST_USERS:]
    return ordered[:MOST_USERS] + ([_sum(rest)] if rest else [])


def _no_user(user: str) -> Row:
    return {"user": user, "jobs": 0, "wanted_gpus": 0, "held_gpus": 0.0, "norm_share": 0.0}


def _sum(rows: Iterable[Row]) -> Row:
    total = _no_user(OTHERS)
    for row in rows:
        for name in ("jobs", "wanted_gpus", "held_gpus", "norm_share"):
            total[name] += row[name]
    return total
