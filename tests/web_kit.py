"""What a gandivactld of many jobs tells `gandiva web`, made up; its names are as hostile as may be."""

from __future__ import annotations

import json
from typing import Any

Row = dict[str, Any]

#: Markup, quotes, a line break, what steers text's direction, and what looks like an address.
HOSTILE = (
    "<img src=x onerror=window.hacked=1>",
    "\"><script>window.hacked=1</script>",
    "'-alert(1)-'",
    "</title></textarea></style></script><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "a\nb\u202ec\x00&lt;&amp;{{7*7}}${7*7}",
)


def hostile(number: int) -> str:
    """Return one of these."""
    return HOSTILE[number % len(HOSTILE)]


def job(number: int) -> Row:
    """A row of `gandiva queue --json`; every second one runs."""
    runs = number % 2 == 1
    return {
        "job_id": number, "array_job_id": None, "array_task_id": None, "name": hostile(number),
        "user": f"user{number % 50}", "account": hostile(number + 1), "partition": "gandiva",
        "state": "RUNNING" if runs else "HELD", "gpus": 1, "type": "v100", "node": "n1" if runs else "",
        "gpu_ids": [0] if runs else [],
        "places": [{"node": hostile(number + 2), "gpus": [0]}] if runs else [],
        "nodes": 1, "share": 0.5 if runs else None, "rate": 2.5 if runs else None,
        "parked_s": 61.0 if runs else None, "reason": "Running" if runs else "NoRoom",
        "detail": f"job {number} {hostile(number + 3)}", "tickets": 100, "restart": 0,
        "submit_s": 1.75e9, "start_s": 1.75e9 if runs else None, "suspends": 3, "reaims": 0,
        "off_boundary": 0,
        "steps": 10, "world": 1, "ranks": 1, "moves_by": None,
    }  # fmt: skip


def node(number: int, gpus: int = 4) -> Row:
    """A row of `gandiva nodes --json`; its first GPU is held, its second by one that is not to be seen."""
    free = {"job_id": None, "user": "", "state": "", "packed_with": None}
    holders = [{"gpu": gpu, **free} for gpu in range(gpus)]
    holders[0] |= {"job_id": 2 * number + 1, "user": hostile(number), "state": "RUNNING"}
    holders[1] |= {"state": "RUNNING"}
    return {
        "node": f"n{number}{hostile(number)}", "type": "v100", "gpus": gpus, "slots": 16, "state": "up",
        "slurm_state": "MIXED", "generation": 7, "report_age_s": 0.5, "holders": holders, "packs": [],
        "strangers": [], "faults": [], "residents": [], "reason": hostile(number),
    }  # fmt: skip


def ping() -> Row:
    """What gandivactld tells of itself."""
    return {
        "version": "0.1.0", "cluster": hostile(0), "cycle": 9, "stale_s": 0.5, "started_s": 1.75e9,
        "slurm": "commands", "slurm_error": "", "state_error": "", "errors": 0, "rounds": {},
    }  # fmt: skip


def share(number: int) -> Row:
    """A row of `gandiva share --json`."""
    return {
        "account": hostile(number), "user": f"user{number}", "tickets": 100, "norm_shares": 0.02,
        "gpu_s": 360.0,
        "effectv_share": 0.03, "entitled_share": 0.02, "served_fair": 1.5, "fair_share": None,
        "traded_in": {}, "traded_out": {},
    }  # fmt: skip


def why(number: int) -> Row:
    """`gandiva why --story --json` of a job."""
    line = {"t_s": 1.75e9, "from": "HELD", "to": "RUNNING", "code": "Running", "text": hostile(number + 4)}
    return {
        "job_id": number, "state": "RUNNING", "code": "Running", "sentence": hostile(number + 5),
        "evidence": [hostile(each) for each in range(6)], "next": hostile(number), "story": [line],
    }  # fmt: skip


class Told:
    """Answers what `gandiva web` asks; `trouble`: an error instead. `asked` counts by name."""

    def __init__(self, jobs: int, nodes: int = 3, hidden: tuple[str, ...] = ()) -> None:
        self.rows = [job(number) for number in range(1, jobs + 1)]
        self.nodes = [node(number) for number in range(nodes)]
        users = [f"user{number}" for number in range(50)]
        self.private = {"hidden": [*hidden], "people": [], "users": users}
        self.trouble: Exception | None = None
        self.asked: list[str] = []

    def __call__(self, name: str, arguments: Row) -> Any:
        """Answer a question."""
        self.asked.append(name)
        if self.trouble is not None:
            raise self.trouble
        if name == "overview":
            told = {"nodes": self.nodes, "ping": ping(), "private": self.private}
            return {"queue": [json.dumps(self.rows)], **told}
        if name == "share":
            return {"window": [0.0, 1.0], "users": [share(number) for number in range(50)]}
        return why(arguments["job_id"]) if name == "why" else []
