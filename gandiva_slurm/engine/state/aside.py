"""Jobs whose scheduling is set aside: each of them alone causes an error that would stop all others'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.engine.state.plain import build
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob


@dataclass
class Aside:
    """Why a job is set aside, and what Slurm has shown of it.

    Records of these jobs are stand-ins, of sound values alone. Those of jobs with nodes are in `jobs` of the
    engine's state and have their turns; the others, and those that still are an error there, are in `hidden`.
    """

    why: str
    since_ns: int
    release: str
    is_hidden: bool = False
    seen: SlurmJob | None = None

    @property
    def reason(self) -> Reason:
        """What happened, in words."""
        return because("SetAside", why=self.why)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Aside:
        """Read what `plain` made of one."""
        aside = build(cls, {**raw, "seen": None})
        if raw["seen"] is not None:
            options = raw["seen"]["options"]
            told = None if options is None else build(JobOptions, options)
            aside.seen = build(SlurmJob, {**raw["seen"], "options": told})
        return aside
