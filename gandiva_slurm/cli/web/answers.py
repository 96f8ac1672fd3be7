"""The answers of the API, field by field: docs/openapi.json is made of it, and tests hold answers to it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from gandiva_slurm.cli.client import VERSION
from gandiva_slurm.cli.web.asked import DEFAULT_ROWS, MOST_ROWS

_WORDS = {
    "user": "names, with commas between them",
    "account": "names, with commas between them",
    "state": "states, with commas between them; `all` of /jobs shows ended ones too",
    "job": "job ids, with commas between them: 12,13_4",
    "start": "beginning of the window, as sacct reads times (default: midnight)",
    "end": "end of the window (default: now)",
    "offset": "rows to pass over (default: 0)",
    "limit": f"rows of this answer, 1 to {MOST_ROWS} (default: {DEFAULT_ROWS})",
}


class Shape(BaseModel):
    """Part of an answer; fields may be added within a version, none is taken away."""

    model_config = ConfigDict(extra="forbid")


class Answer(Shape):
    """What every answer begins with."""

    version: int = Field(description="of the API's answers, and of --json")
    age_s: float = Field(description="seconds since gandivactld was looked at")


class Error(Shape):
    """A request that has no answer: one sentence."""

    version: int
    error: str
    age_s: float | None = Field(default=None, description="of the last look, while nothing answers")


class Health(Answer):
    """How gandivactld is, and who asks."""

    user: str
    gandivactld: str = Field(description="its release")
    cluster: str
    cycle: int
    stale_s: float = Field(description="seconds since Slurm was read")
    started_s: float
    slurm: str
    slurm_error: str
    state_error: str
    errors: int
    rounds: dict[str, float] = Field(description="how late turns were: p50_ms, p99_ms, and of how many turns")


class Place(Shape):
    """GPUs of a job on a node."""

    node: str
    gpus: list[int]


class Foretold(Shape):
    """What is foretold of a job: low end, middle and high end in unix seconds, null: later than was run."""

    turn: list[float | None] | None
    start: list[float | None] | None
    end: list[float | None] | None
    why: str = Field(description="why no time can be told")
    of_s: float = Field(description="the forecast's moment")
    reached_s: float | None


class Job(Shape):
    """A row of `gandiva queue --json`; `reason` and `detail` are the code and the text of `gandiva why`."""

    job_id: int
    array_job_id: int | None
    array_task_id: int | None
    name: str
    user: str
    account: str
    partition: str
    state: str
    gpus: int
    type: str
    node: str
    gpu_ids: list[int]
    places: list[Place]
    nodes: int
    share: float | None = Field(description="part of its nodes' GPU time, of the last minute")
    rate: float | None = Field(description="mini-batches a second")
    parked_s: float | None
    reason: str
    detail: str
    tickets: int | None
    restart: int
    submit_s: float | None
    start_s: float | None
    suspends: int
    reaims: int
    off_boundary: int
    steps: int
    world: int
    ranks: int
    moves_by: str | None
    when: Foretold | None = Field(description="null: no forecast, or none yet")


class Paged(Answer):
    """A part of many rows."""

    total: int = Field(description="rows there are")
    offset: int


class Jobs(Paged):
    """/jobs."""

    jobs: list[Job]


class Line(Shape):
    """A line of a job's story."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    t_s: float
    from_: str = Field(alias="from")
    to: str
    code: str
    text: str


class Reasoned(Shape):
    """Why a job is where it is, as `gandiva why` says."""

    job_id: int
    state: str
    code: str
    sentence: str
    evidence: list[str]
    next: str
    story: list[Line] = Field(description="empty where it was not asked for")


class Story(Answer, Reasoned):
    """/jobs/ID: `gandiva why --story --json`, and the job's row of the queue."""

    job: Job


class Holder(Shape):
    """Who holds a GPU; of a job that is not to be seen only the state."""

    gpu: int
    job_id: int | None
    user: str
    state: str
    packed_with: int | None


class Resident(Shape):
    """A job that lives on a node, as its gandivad tells."""

    job_id: int
    restart: int
    user: str
    state: str
    gpus: list[int]
    ranks: int
    world: int
    steps: int
    rate: float
    rate_alone: float | None
    rate_packed: float | None
    duty: int
    step_p50_ms: float | None
    step_p99_ms: float | None
    packed_step_p50_ms: float | None
    packed_step_p99_ms: float | None
    gpu_percent: int | None
    live_bytes: int | None
    spilled_bytes: int | None
    peak_bytes: int | None
    reason: str
    detail: str


class Node(Shape):
    """A row of `gandiva nodes --json`."""

    node: str
    type: str
    gpus: int
    slots: int
    state: str
    slurm_state: str
    generation: int
    report_age_s: float | None
    holders: list[Holder]
    packs: list[dict[str, Any]]
    strangers: list[dict[str, Any]]
    faults: list[dict[str, str]]
    residents: list[Resident]
    reason: str


class Nodes(Paged):
    """/nodes."""

    nodes: list[Node]


class UserShare(Shape):
    """A row of `gandiva share --json`."""

    account: str
    user: str
    tickets: int
    norm_shares: float
    gpu_s: float
    effectv_share: float
    entitled_share: float
    served_fair: float | None
    fair_share: float | None
    traded_in: dict[str, float]
    traded_out: dict[str, float]


class Shares(Answer):
    """/shares."""

    window: tuple[float, float]
    users: list[UserShare]


class Used(Shape):
    """A row of `gandiva acct --json`."""

    job_id: int
    array_job_id: int | None
    array_task_id: int | None
    name: str
    user: str
    account: str
    partition: str
    state: str
    gpus: int
    type: str
    node: str
    nodes: int
    exit_code: str
    submit_s: float
    start_s: float | None
    end_s: float | None
    gpu_held_s: float
    gpu_run_s: float
    gpu_packed_s: float
    gpu_parked_s: float
    packed_with: list[int]
    first_100_s: float | None
    gpu_mem_live_bytes: int | None
    gpu_mem_peak_bytes: int | None
    gpu_mem_spilled_bytes: int | None
    step_p50_ms: float | None
    step_p99_ms: float | None
    packed_step_p50_ms: float | None
    packed_step_p99_ms: float | None
    gpu_seen_s: float
    gpu_busy_s: float
    steps: int
    suspends: int
    migrations: int
    moved_by: list[str]
    lost_steps: int | None
    lost_steps_why: str
    ckpt_s: float | None
    ckpt_why: str
    restarts: int
    start_latency_s: float | None


class Acct(Paged):
    """/acct."""

    window: tuple[float, float]
    jobs: list[Used]


#: Path below /api/v1/, what it has, its answer, its parameters.
PATHS: tuple[tuple[str, str, type[Answer], tuple[str, ...]], ...] = (
    ("health", "How gandivactld is, and who asks", Health, ()),
    ("jobs", "The queue", Jobs, ("user", "state", "job", "offset", "limit")),
    ("jobs/{job_id}", "Why one job is where it is, and its story", Story, ()),
    ("nodes", "Nodes and who holds which GPU", Nodes, ("offset", "limit")),
    ("shares", "Tickets against GPU time", Shares, ("user", "account", "start", "end")),
    (
        "acct",
        "What jobs used in a window",
        Acct,
        ("user", "account", "state", "job", "start", "end", "offset", "limit"),
    ),
)
_STATUS = {
    "400": "a parameter is wrong",
    "401": "nobody known asks",
    "403": "PrivateData hides it",
    "404": "there is no such job or path",
    "429": "too many questions of this user wait",
    "503": "gandivactld does not answer, or is busy",
}


#: How it is known who asks, one of these: docs/web.md.
_WHO = {
    "proxy": {"type": "apiKey", "in": "header", "name": "X-Remote-User", "description": "set by a proxy"},
    "token": {"type": "apiKey", "in": "header", "name": "X-SLURM-USER-TOKEN", "description": "a JWT"},
    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "the same"},
}


def openapi() -> dict[str, Any]:
    """Return the description of the API (OpenAPI 3.1)."""
    models: list[Any] = [(one, "validation") for one in (Error, *(path[2] for path in PATHS))]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
    paths = [(path, (text, answer, parameters)) for path, text, answer, parameters in PATHS]
    return {
        "openapi": "3.1.0",
        "info": {"title": "gandiva web", "version": str(VERSION)},
        "servers": [{"url": "api/v1"}],
        "paths": {f"/{path}": {"get": _get(*told)} for path, told in paths},
        "security": [{name: []} for name in _WHO],
        "components": {"schemas": schemas["$defs"], "securitySchemes": _WHO},
    }


def _get(text: str, answer: type[Answer], parameters: tuple[str, ...]) -> dict[str, Any]:
    told: list[dict[str, Any]] = [
        {"name": name, "in": "query", "description": _WORDS[name], "schema": {"type": "string"}}
        for name in parameters
    ]
    if answer is Story:
        told.append({"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}})
    failed = {status: {"description": why, **_content("Error")} for status, why in _STATUS.items()}
    good = {"description": text, **_content(answer.__name__)}
    return {"summary": text, "parameters": told, "responses": {"200": good, **failed}}


def _content(name: str) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


if __name__ == "__main__":
    print(json.dumps(openapi(), indent=1))
