"""The controller's record of spans: a JSON line for each round and each change of hands.

Each line has `event`, `t_ns` (unix) and `mono_ns`. `round`: which nodes answered, where each span is to be,
and why. `span`: one change of hands, with its stages and when each began, in milliseconds from its first
order. From it anybody can count parks and tell how long they took.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

#: The file is moved aside at this size; one old one is kept.
MAX_BYTES = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class Record:
    """Appends lines to a file; a full disk stops the record, never the daemon."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._failed = False

    def write(self, event: str, **fields: Any) -> None:
        """Append one event that happened just now."""
        line = {"event": event, "t_ns": time.time_ns(), "mono_ns": time.monotonic_ns()} | fields
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        try:
            self._append(data)
            self._failed = False
        except OSError as err:
            if not self._failed:
                log.error("%s: %s; spans are not recorded until it can be written", self.path, err.strerror)
            self._failed = True

    def _append(self, data: bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            if os.fstat(fd).st_size + len(data) <= self._max_bytes:
                os.write(fd, data)
                return
        finally:
            os.close(fd)
        os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
        self._append(data)
