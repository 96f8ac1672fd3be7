"""The daemon's state on disk: what a gandivad killed at any moment must know when it comes back."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

VERSION = 1

log = logging.getLogger(__name__)


class StateFile:
    """One JSON file, replaced as a whole.

    `save` writes a temporary file and renames it: that survives a kill of the daemon at any point, and is
    fast enough (0.1 ms) to be done before each change of hands. `sync`, once in a while and in another
    thread, makes it survive the host's power, after which no job of it lives anyway.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failed = False

    def load(self) -> dict[str, Any] | None:
        """Return what was saved last; None when there is nothing, or nothing readable."""
        try:
            data = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as err:
            log.error(
                "%s: not readable (%s); starting without it: jobs on this node are not known", self.path, err
            )
            return None
        if not isinstance(data, dict) or data.get("version") != VERSION:
            log.error("%s: not a state of version %d; starting without it", self.path, VERSION)
            return None
        return data

    def save(self, state: dict[str, Any]) -> bool:
        """Replace the file; False (and one line in the log) when that cannot be done."""
        temporary = self.path.with_suffix(".tmp")
        try:
            with open(temporary, "w", encoding="utf-8") as stream:
                json.dump(state | {"version": VERSION}, stream, separators=(",", ":"))
            os.replace(temporary, self.path)
        except OSError as err:
            if not self._failed:
                log.error("%s: %s; a restart now would forget the jobs here", self.path, err.strerror)
            self._failed = True
            return False
        self._failed = False
        return True

    def sync(self, *others: Path) -> None:
        """Bring these files, this one and its directory's entries to the disk, in that order.

        It may block: call it in a thread.
        """
        for path in (*others, self.path, self.path.parent):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError:
                return
            try:
                os.fsync(fd)
            except OSError as err:
                log.error("%s: %s", path, err.strerror)
            finally:
                os.close(fd)
