"""What commands print with --json, field by field: docs/commands.schema.json is made of it.

The rows are those of the API (`web.answers`). Within a version fields may be added, and none is taken away.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.json_schema import models_json_schema

from gandiva_slurm.cli.client import VERSION
from gandiva_slurm.cli.web.answers import Job, Node, Reasoned, Shape, Used, UserShare

#: Low end, middle and high end of a range, in unix seconds; null: later than was run forward.
Range = list[float | None]


class Printed(Shape):
    """What each command's answer begins with."""

    version: int = Field(description="of --json")


class Queue(Printed):
    """`gandiva queue --json`."""

    jobs: list[Job]


class Nodes(Printed):
    """`gandiva nodes --json`."""

    nodes: list[Node]


class Accounted(Used):
    """A row of `gandiva acct --json`."""

    now_s: float = Field(description="unix seconds: up to when it is counted")


class Acct(Printed):
    """`gandiva acct --json`."""

    jobs: list[Accounted]


class Share(Printed):
    """`gandiva share --json`."""

    window: tuple[float, float]
    users: list[UserShare]


class Why(Printed, Reasoned):
    """`gandiva why JOBID --json`."""


class Judged(Accounted):
    """A row of `gandiva eff --json`."""

    useful: float | None = Field(description="part of the GPU time held")
    idle: float | None = Field(description="part of the GPU time that NVML looked at")
    advice: str


class Eff(Printed):
    """`gandiva eff --json`."""

    jobs: list[Judged]


class Foreseen(Shape):
    """When a job is likely to have its next turn, to start and to end."""

    job_id: int = Field(description="one that is not submitted yet has a number of nobody's")
    turn: Range | None
    start: Range | None
    end: Range | None
    why: str = Field(description="why no time can be told")


class ForeseenJob(Foreseen):
    """Of a job that is in the queue."""

    state: str
    is_told: bool = Field(description="it was there when the forecast was made")


class Forecast(Shape):
    """By what it is foretold."""

    of_s: float = Field(description="unix seconds: the moment it was made of")
    runs: int = Field(description="runs of the engine, forward")
    reached_s: float | None = Field(default=None, description="how far all runs came")
    age_s: float | None = Field(default=None, description="how old it is")
    took_s: float | None = Field(default=None, description="seconds that it took to make")
    cycles: int | None = Field(default=None, description="of the engine, in all runs")
    errors: int | None = Field(default=None, description="past forecasts that its ranges are measured by")
    past_jobs: int | None = Field(default=None, description="jobs whose lengths it draws from")


class When(Printed):
    """`gandiva when JOBID --json`."""

    trouble: str = Field(description="why there is no forecast")
    forecast: Forecast | None
    jobs: list[ForeseenJob]
    assumes: list[str]


class Wished(Printed):
    """`gandiva when JOBID --if CHANGE --json`."""

    wish: str
    forecast: Forecast
    now: Foreseen
    then: Foreseen
    assumes: list[str]


class Newcomer(Printed):
    """`gandiva when --new ASKED --json`, and `--script`."""

    forecast: Forecast
    new: Foreseen
    assumes: list[str]


class Changed(Shape):
    """A job that was changed: to which value, and what it was; only the one that was asked for is there."""

    job_id: int
    was: int | str
    priority: int | None = None
    job_class: str | None = None


class Update(Printed):
    """`gandiva update JOBID … --json`."""

    jobs: list[Changed]


class Slurm(Shape):
    """How Slurm is talked to."""

    back_end: str
    slurm: str
    commands: str
    pyslurm: str
    why: str


class Finding(Shape):
    """Something that is wrong; `text` is the whole of it."""

    level: str
    what: str
    where: str
    cure: str
    text: str


class Check(Printed):
    """`gandiva check --json`."""

    slurm: Slurm | None
    rounds: dict[str, float] = Field(description="how late turns were: p50_ms, p99_ms, and of how many turns")
    findings: list[Finding]


class ImageRound(Shape):
    """One process image that was made and restored: its bytes, and the seconds of each part of a move."""

    bytes: int
    dump_s: float
    seal_s: float
    verify_s: float
    restore_s: float


class ImageRounds(Printed):
    """`gandiva check --process-images N --json`."""

    wanted: int
    rounds: list[ImageRound]
    failed: str = Field(description='why the round behind the last of these failed; "": none did')


class Group(Shape):
    """A row of `gandiva report --json`, in seconds; of account, user and type what it is made `--by`."""

    account: str | None = None
    user: str | None = None
    type: str | None = None
    jobs: int
    gpu_held_s: float
    gpu_parking_s: float
    gpu_packed_s: float
    gpu_parked_s: float
    gpu_seen_s: float
    gpu_busy_s: float
    gpu_exclusive_s: float
    waited_s: float
    begun: int
    began_s: float
    entitled: float | None
    all_held_s: float


class Report(Printed):
    """`gandiva report --json`."""

    window: tuple[float, float]
    rows: list[Group]


class Doctor(Printed):
    """`gandiva doctor --json COMMAND`: a sentence a subject."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str]
    boundary: str
    parked: str
    moved: str


#: By command, as it is typed.
PRINTED: dict[str, type[Printed]] = {
    "queue": Queue,
    "nodes": Nodes,
    "acct": Acct,
    "share": Share,
    "why": Why,
    "eff": Eff,
    "when": When,
    "when --if": Wished,
    "when --new": Newcomer,
    "update": Update,
    "check": Check,
    "check --process-images": ImageRounds,
    "report": Report,
    "doctor": Doctor,
}


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of each command's output, below its name in `properties`."""
    models: list[Any] = [(one, "validation") for one in PRINTED.values()]
    _, found = models_json_schema(models, ref_template="#/$defs/{model}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"gandiva COMMAND --json, version {VERSION}",
        "type": "object",
        "properties": {name: {"$ref": f"#/$defs/{one.__name__}"} for name, one in PRINTED.items()},
        "$defs": found["$defs"],
    }


if __name__ == "__main__":
    print(json.dumps(schemas(), indent=1))
