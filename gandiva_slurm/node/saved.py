"""The daemon's state as JSON: what `adopt` needs to take over every job, running or parked, after a kill."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime
from gandiva_slurm.node.clock import host_boot
from gandiva_slurm.node.image_state import Image
from gandiva_slurm.node.jobs import Away, Counts, Leave, Resident, Words
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.part import Part
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank, RankSet
from gandiva_slurm.slicing.refusal import Refusal

if TYPE_CHECKING:
    from gandiva_slurm.node.context import Node


#: What of an image's state must survive, in this order; the guard reads the first three.
_IMAGE = (
    "maker", "is_whole", "is_kept", "kept_steps", "is_restored", "from_steps", "spent_ns", "spare_until_ns",
    "unfit", "unfit_ns", "restoring", "root", "has_card", "left",
)  # fmt: skip


def state_of(node: Node) -> dict[str, Any]:
    """Return all that must survive; where ranks stand is in their pages."""
    return {
        "node": node.settings.node,
        "host_boot": host_boot(),
        "freezer": node.freezer.name,
        "image_dir": str(node.settings.image_dir or node.former_images),
        "offset_ns": node.clock.offset_ns,
        "saved_mono_ns": node.clock.mono(),
        "plan": None if node.plan is None else dataclasses.asdict(node.plan),
        "local": node.local.to_json(),
        "ledger": node.ledger.to_json(),
        "newest": {str(job_id): restart for job_id, restart in node.newest.items()},
        "ended": [str(key) for key in node.ended],
        "finals": [[str(key), *final] for key, final in node.finals.items()],
        "lease_ns": node.lease_ns,
        "promised": [[job_id, *promise] for job_id, promise in node.promised.items()],
        "past": [[dataclasses.asdict(held), when_ns] for held, when_ns in node.past.values()],
        "jobs": [_job(resident) for resident in node.residents.values()],
    }


def read_job(row: dict[str, Any], node: str) -> tuple[Resident, list[dict[str, Any]]]:
    """Make a resident of its row, without its ranks; return it and the rows of its process groups."""
    key = JobKey.parse(row["key"])
    processes = JobProcesses(key, row["uid"], node, _ids(row["stepds"]), set(row["cgroups"]))
    processes.newest = row.get("newest_stepd", 0)
    resident = Resident(
        key=key,
        user=row["user"],
        gpus=tuple(row["gpus"]),
        tickets=row["tickets"],
        submitted_ns=row["submitted_ns"],
        processes=processes,
        registered_real_ns=row["registered_real_ns"],
        registered_ns=row.get("registered_ns", 0),
        name=row["name"],
        is_planned=row["is_planned"],
        slots=tuple(row["slots"]),
        since_ns=row["since_ns"],
        stopped=_ids(row["stopped"]),
        left_stopped=_ids(row["left_stopped"]),
        is_frozen=row["is_frozen"],
        is_shut=row.get("is_shut", False),
        is_fenced=row["is_fenced"],
        words=Words(heard_ns=row.get("heard_ns", time.monotonic_ns()), halted_ns=row.get("halted_ns", 0)),
        is_confined=row.get("is_confined", False),
        is_caught=row.get("is_caught", False),
        has_begun=row.get("has_begun", True),
        tasks={ProcId(*stepd): _ids(tasks) for stepd, tasks in row["tasks"]},
        charged_ns=row["charged_ns"],
        overrun_from_ns=row["overrun_from_ns"],
        refusal=Refusal(**row.get("refusal", {})),
        leave=Leave(row.get("is_leaving", False), save_ns=row.get("save_ns", 0)),
        away=Away.from_json(row["away"]) if row.get("away") else Away(),
        image=_image(row.get("image")),
        counts=Counts(**row["counts"]),
        part=Part.from_json(row["part"]) if row.get("part") else None,
    )
    return resident, row["sets"]


def restoring_in(saved: dict[str, Any]) -> dict[JobKey, list[Any]]:
    """Return what was being restored when a state was saved, by the incarnations that it was for."""
    rows = {JobKey.parse(row["key"]): _image(row.get("image")).restoring for row in saved["jobs"]}
    return {key: row for key, row in rows.items() if row}


def read_past(rows: list[Any]) -> dict[JobKey, tuple[HeldTime, int]]:
    """Read what ended residents had held."""
    found = [(HeldTime(**{**row, "gpus": tuple(row["gpus"])}), when_ns) for row, when_ns in rows]
    return {held.key: (held, when_ns) for held, when_ns in found}


def _job(resident: Resident) -> dict[str, Any]:
    processes = resident.processes
    return {
        "key": str(resident.key),
        "uid": processes.uid,
        "user": resident.user,
        "name": resident.name,
        "gpus": resident.gpus,
        "tickets": resident.tickets,
        "submitted_ns": resident.submitted_ns,
        "registered_real_ns": resident.registered_real_ns,
        "registered_ns": resident.registered_ns,
        "is_planned": resident.is_planned,
        "slots": resident.slots,
        "stepds": sorted(processes.stepds),
        "newest_stepd": processes.newest,
        "cgroups": sorted(processes.cgroups),
        "since_ns": resident.since_ns,
        "stopped": sorted(resident.stopped),
        "left_stopped": sorted(resident.left_stopped),
        "is_frozen": resident.is_frozen,
        "is_shut": resident.is_shut,
        "is_fenced": resident.is_fenced,
        "heard_ns": resident.words.heard_ns,
        "halted_ns": resident.halted_ns,
        "is_confined": resident.is_confined,
        "is_caught": resident.is_caught,
        "has_begun": resident.has_begun,
        "tasks": [[stepd, sorted(tasks)] for stepd, tasks in resident.tasks.items()],
        "charged_ns": resident.charged_ns,
        "overrun_from_ns": resident.overrun_from_ns,
        "refusal": dataclasses.asdict(resident.refusal),
        "is_leaving": resident.leave.is_told,
        "save_ns": resident.leave.save_ns,
        "away": resident.away.to_json(),
        "image": _image_row(resident.image),
        "counts": dataclasses.asdict(resident.counts),
        "part": resident.part.to_json() if resident.part is not None else None,
        "sets": [_set(group) for group in resident.sets],
    }


def _image_row(image: Image) -> list[Any]:
    return [getattr(image, name) for name in _IMAGE]


def _image(row: list[Any] | None) -> Image:
    # A row of another release may be shorter.
    image = Image(**dict(zip(_IMAGE, row or (), strict=False)))
    image.maker = ProcId(*image.maker) if image.maker else None
    return image


def _set(group: RankSet) -> dict[str, Any]:
    ranks = [_rank(rank) for rank in group.in_order() if rank.is_alive]
    return {"world": group.world, "master": group.master, "mark": group.mark, "ranks": ranks}


def _rank(rank: Rank) -> dict[str, Any]:
    return {"rank": rank.rank, "proc": rank.proc, "stepd": rank.stepd, "remote_fd": rank.remote_fd}


def _ids(rows: list[list[int]]) -> set[ProcId]:
    return {ProcId(*row) for row in rows}
