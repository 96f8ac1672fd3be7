"""Names of things: jobs and their incarnations."""

from typing import NamedTuple


class JobKey(NamedTuple):
    """One incarnation of a Slurm job: at most one pair of a job id runs or writes (ADR 0003, fencing)."""

    job_id: int
    restart: int

    def __str__(self) -> str:
        return f"{self.job_id}.{self.restart}"

    @classmethod
    def parse(cls, text: str) -> "JobKey":
        """Read what `str` wrote; ValueError on anything else."""
        job_id, _, restart = text.partition(".")
        return cls(int(job_id), int(restart))
