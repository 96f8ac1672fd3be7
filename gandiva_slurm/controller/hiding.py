"""What of the engine's record is hidden from one who asks."""

from __future__ import annotations

from gandiva_slurm.controller.privacy import Curtain, Viewer, curtain
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.model.snapshot import SlurmJob


def curtain_of(engine: Engine, viewer: Viewer) -> Curtain:
    """Return what takes others' jobs out of an answer; it is of this moment."""
    jobs = engine.jobs

    def find(job_id: int) -> SlurmJob | None:
        record = jobs.get(job_id)
        return record.job if record is not None else None

    return curtain(viewer, find, lambda: (record.job for record in jobs.values()), lambda: users_of(engine))


def users_of(engine: Engine) -> set[str]:
    """Return all names of users that an answer may have in it."""
    jobs = {record.job.user for record in engine.jobs.values()}
    return jobs | {row.user for row in engine.state.associations}
