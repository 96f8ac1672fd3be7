"""Why a request gets no data: a sentence and the status of HTTP that goes with it."""

from __future__ import annotations

from gandiva_slurm.model.errors import GandivaError


class Refused(GandivaError):
    """A request that is not answered. `age_s`: how old the last look is, where that matters."""

    def __init__(self, status: int, sentence: str, age_s: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.age_s = age_s
