"""What every run of a published table gives: rows of ours and the paper's, and how far it has come."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was measured. `paper` None: the paper has no such number."""

    what: str
    ours: Value
    paper: Value = None
    unit: str = ""
    note: str = ""


#: Told of progress: done, of so many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is asked for."""

    seed: int = 0
    on_progress: Progress | None = None

    def tell(self, done: int, whole: int) -> None:
        """Tell how far it has come, where somebody looks."""
        if self.on_progress:
            self.on_progress(done, whole)


def published(name: str) -> Any:
    """Read one of the files of `data`: numbers of papers, never results of ours."""
    file = resources.files("gandiva_slurm.sim.paper") / "data" / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))
