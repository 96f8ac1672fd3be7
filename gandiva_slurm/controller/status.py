"""What the controller knows of itself, for `gandiva check` and its like."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Status:
    """Counts and faults. Times are unix seconds, `fresh_s` is monotonic."""

    started_s: float
    cycle: int = 0
    errors: int = 0
    last_error: str = ""
    slurm_error: str = "Slurm has not been read yet"
    #: jobs whose records Slurm shows so that they cannot be read, each with a sentence
    unread: Mapping[int, str] = field(default_factory=dict)
    fresh_s: float = field(default_factory=time.monotonic)

    def fail(self, sentence: str) -> None:
        """Count an error of our own."""
        self.errors += 1
        self.last_error = sentence
