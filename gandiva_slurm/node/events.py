"""The node's event log: one JSON line for everything that happens to a gang, appended and never rewritten.

Each line has `event`, `t_ns` (unix), `mono_ns`, `node`, and mostly `job`, `restart`, `gpus`. From it
anybody can check that no GPU was held twice (`grant` to `release`), that parks were at one boundary, and
how long they took.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
from pathlib import Path
from typing import Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.clock import Clock

#: A log file is moved aside at this size; this many old ones are kept.
MAX_BYTES = 64 * 1024 * 1024
KEPT = 3

log = logging.getLogger(__name__)


class EventLog:
    """Appends lines to `events.jsonl`; a full disk stops the log, never the daemon."""

    def __init__(self, path: Path, node: str, clock: Clock, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._node = node
        self._clock = clock
        self._max_bytes = max_bytes
        self._failed = False
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

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
        data = (json.dumps(line | fields, separators=(",", ":")) + "\n").encode()
        try:
            self._append(data)
            self._failed = False
        except OSError as err:
            if not self._failed:
                log.error("%s: %s; events are not recorded until it can be written", self.path, err.strerror)
            self._failed = True

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        if self._size + len(data) > self._max_bytes:
            self._rotate()
        written = os.write(self._fd, data)
        if written < len(data):  # half a line would spoil the next one
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def _rotate(self) -> None:
        names = [self.path] + [self.path.with_name(f"{self.path.name}.{n}") for n in range(1, KEPT + 1)]
        for newer, older in reversed(list(itertools.pairwise(names))):
            if newer.exists():
                os.replace(newer, older)
        os.close(self._fd)
        self._fd, self._size = self._open(), 0
