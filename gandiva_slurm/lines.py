"""Files of JSON lines, as the daemons' records are: appended, turned over at a size, never half a line."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: A file is moved aside at this size.
MAX_BYTES = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class LineFile:
    """Appends lines; a full disk stops the record, never the daemon. `kept` old files stay beside it."""

    def __init__(self, path: Path, kept: int, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._kept = kept
        self._max_bytes = max_bytes
        self._failed = False
        self._fd = -1
        self._size = 0

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one line; what cannot be written is dropped, and that is logged once."""
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        try:
            self._append(data)
            self._failed = False
        except OSError as err:
            if not self._failed:
                log.error("%s: %s; nothing is recorded until it can be written", self.path, err.strerror)
            self._failed = True

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, data: bytes) -> None:
        self._open()
        if self._size and self._size + len(data) > self._max_bytes:
            self._turn_over()
        written = os.write(self._fd, data)
        if written < len(data):  # half a line would spoil the next one
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def _open(self) -> None:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._size = os.fstat(self._fd).st_size

    def _turn_over(self) -> None:
        names = [self.path] + [self.path.with_name(f"{self.path.name}.{n}") for n in range(1, self._kept + 1)]
        for newer, older in reversed(list(itertools.pairwise(names))):
            if newer.exists():
                os.replace(newer, older)
        self.close()
        self._open()
