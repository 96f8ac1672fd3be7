"""Two jobs that hold the same GPU at the same time, as the plan has them (`led_packs` keeps these books)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gandiva_slurm.model.reason import Reason, because


@dataclass(frozen=True)
class Pack:
    """Two jobs that share a GPU. `gain` is what decided that; of a trial it is not known yet."""

    node: str
    gpu: int
    first: int
    second: int
    since_ns: int
    is_trial: bool = True
    gain: float = 0.0
    #: how long it is tried at the least, and what was known when that was last looked at
    least_s: int = 0
    evidence: tuple[str, ...] = ()
    #: how often either had run out of GPU memory before they were packed
    ooms: int = 0

    @property
    def jobs(self) -> tuple[int, int]:
        """Both of them."""
        return (self.first, self.second)

    def mate(self, job_id: int) -> int:
        """The other one."""
        return self.second if job_id == self.first else self.first

    def reason(self, job_id: int) -> Reason:
        """Why one of them shares its GPU."""
        mate = self.mate(job_id)
        if self.is_trial:
            return because("PackTrial", *self.evidence, mate=mate, least_s=self.least_s)
        return because("Packed", *self.evidence, mate=mate, gain=self.gain)


def pack_of(packs: Iterable[Pack], job_id: int) -> Pack | None:
    """The pack of a job; None: it is in none."""
    return next((pack for pack in packs if job_id in pack.jobs), None)
