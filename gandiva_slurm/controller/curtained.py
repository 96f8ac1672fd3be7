"""Answers without what is not the asker's to see (`privacy`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gandiva_slurm.controller.foretold import Told
from gandiva_slurm.controller.privacy import JOBS, USAGE, Curtain, Viewer
from gandiva_slurm.engine.state.records import JobRecord

Row = dict[str, Any]
#: What a row of the queue says in sentences.
_SENTENCES = ("detail",)
#: What a row of a node has of jobs, one by one.
_LISTS = ("residents", "strangers")
#: Who holds a GPU where that is not to be seen; that it is held remains.
_NOBODY = {"job_id": None, "user": "", "packed_with": None}


def queue(rows: Iterable[Row], curtain: Curtain) -> list[Row]:
    """Return jobs that may be seen, without others."""
    if curtain.is_open:
        return [*rows]
    told = [row | {name: curtain.over(row[name]) for name in _SENTENCES} for row in rows]
    return [row | {"when": _brief(row["when"], curtain)} if "when" in row else row for row in told]


def _brief(when: Row | None, curtain: Curtain) -> Row | None:
    return when and when | {"why": curtain.over(when["why"])}


def why(row: Row, curtain: Curtain) -> Row:
    """Return what is said of a job, without others."""
    story = [line | {"text": curtain.over(line["text"])} for line in row["story"]]
    evidence = curtain.over_all(row["evidence"])
    return row | {"sentence": curtain.over(row["sentence"]), "evidence": evidence, "story": story}


def when(told: Told, records: Mapping[int, JobRecord], curtain: Curtain) -> Row:
    """Return what is foretold of these jobs, which may be seen, and by what; without others in its words."""
    jobs = [
        {"turn": None, "start": None, "end": None, "why": "", **told.rows.get(job_id, {})}
        | {"job_id": job_id, "state": record.state, "is_told": job_id in told.rows}
        for job_id, record in sorted(records.items())
    ]
    rows = [row | {"why": curtain.over(row["why"])} for row in jobs]
    return {"trouble": told.trouble, "forecast": {**told.meta} or None, "jobs": rows}


def wished(told: Row, curtain: Curtain) -> Row:
    """Return what would be of a job, without others."""
    rows = {name: told[name] | {"why": curtain.over(str(told[name]["why"]))} for name in ("now", "then")}
    return told | rows


def newcomer(told: Row, curtain: Curtain) -> Row:
    """Return what is foretold of a job of the asker's that is not submitted yet, without others."""
    return told | {"new": told["new"] | {"why": curtain.over(str(told["new"]["why"]))}}


def nodes(rows: Iterable[Row], curtain: Curtain) -> list[Row]:
    """Return the nodes; of jobs that may not be seen only that their GPUs are held."""
    return [_node(row, curtain) for row in rows]


def may_see_usage(row: Row, viewer: Viewer) -> bool:
    """True when what a job or a user has used is the viewer's to see."""
    accounts = [name for name in row["account"].split(",") if name]
    return all(viewer.sees(what, row["user"], accounts) for what in (JOBS, USAGE))


def used(rows: Iterable[Row], viewer: Viewer) -> list[Row]:
    """Return what jobs have used, as far as it is the viewer's to see; without mates that are not."""
    shown = [row for row in rows if may_see_usage(row, viewer)]
    return [_with_mates(row, viewer) for row in shown]


def _with_mates(row: Row, viewer: Viewer) -> Row:
    if "mates" not in row:  # its mates were chosen already, for one who asked as less than an operator
        return row
    told = {name: value for name, value in row.items() if name != "mates"}
    return told | {"packed_with": [mate for mate, owners in row["mates"] if _may_see(owners, viewer)]}


def _may_see(owners: Iterable[tuple[str, str]], viewer: Viewer) -> bool:
    """True for a number that only these have had; a job that nobody has seen is nobody's to see."""
    seen = [viewer.sees(JOBS, user, [account]) for user, account in owners]
    return viewer.sees_every(JOBS) or (bool(seen) and all(seen))


def _holder(one: Row, curtain: Curtain) -> Row:
    shown = one if curtain.shows(one["job_id"]) else one | _NOBODY
    return shown if curtain.shows(shown["packed_with"]) else shown | {"packed_with": None}


def _node(row: Row, curtain: Curtain) -> Row:
    holders = [_holder(one, curtain) for one in row["holders"]]
    packs = [pack for pack in row["packs"] if all(map(curtain.shows, pack["jobs"]))]
    lists = {name: [one for one in row[name] if curtain.shows(one["job_id"])] for name in _LISTS}
    lists["faults"] = [one | {"why": curtain.over(one["why"])} for one in row["faults"]]
    return row | lists | {"holders": holders, "packs": packs, "reason": curtain.over(row["reason"])}

