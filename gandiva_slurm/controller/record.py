"""The controller's record of spans: a JSON line for each round and each change of hands.

Each line has `event`, `t_ns` (unix) and `mono_ns`. `round`: which nodes answered, where each span is to be,
and why. `span`: one change of hands, with its stages and when each began, in milliseconds from its first
order. From it anybody can count parks and tell how long they took.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gandiva_slurm.lines import MAX_BYTES, LineFile

#: Old files kept.
KEPT = 1


class Record:
    """Appends lines to `spans.jsonl`."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._file = LineFile(path, KEPT, max_bytes)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event that happened just now."""
        self._file.append({"event": event, "t_ns": time.time_ns(), "mono_ns": time.monotonic_ns()} | fields)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
