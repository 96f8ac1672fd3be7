"""The node's event log: one JSON line for everything that happens to a gang, appended and never rewritten.

Each line has `event`, `t_ns` (unix), `mono_ns`, `node`, and mostly `job`, `restart`, `gpus`. From it
anybody can check that no GPU was held twice (`grant` to `release`), that parks were at one boundary, and
how long they took.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gandiva_slurm.lines import MAX_BYTES, LineFile
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.clock import Clock

#: Old files kept.
KEPT = 3


class EventLog:
    """Appends lines to `events.jsonl`."""

    def __init__(self, path: Path, node: str, clock: Clock, max_bytes: int = MAX_BYTES) -> None:
        self._node = node
        self._clock = clock
        self._file = LineFile(path, KEPT, max_bytes)

    def write(self, event: str, key: JobKey | None = None, mono_ns: int | None = None, **fields: Any) -> None:
        """Append one event; `mono_ns` is when it happened, now if not given."""
        mono = self._clock.mono() if mono_ns is None else mono_ns
        line: dict[str, Any] = {
            "event": event,
            "t_ns": self._clock.real(mono),
            "mono_ns": mono,
            "node": self._node,
        }
        if key is not None:
            line |= {"job": key.job_id, "restart": key.restart}
        self._file.append(line | fields)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
