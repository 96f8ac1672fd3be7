"""The daemons' logs, in slurmctld's form: `[2026-11-20T15:00:00.123] level: text`, on stderr.

What a daemon finds wrong again and again it tells once: `Trouble` when it begins and ends, `warn_once` else.
"""

from __future__ import annotations

import functools
import logging
import sys
import time

#: `info` has no prefix in Slurm's logs either.
_LEVELS = {
    logging.CRITICAL: "fatal: ",
    logging.ERROR: "error: ",
    logging.WARNING: "warning: ",
    logging.DEBUG: "debug: ",
}


class SlurmFormatter(logging.Formatter):
    """One line a record, control characters of user text blanked; tracebacks follow on lines of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = "".join(char if char.isprintable() else " " for char in record.getMessage())
        level = _LEVELS.get(record.levelno, "")
        text = text if text.startswith(level) else level + text
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        line = f"[{stamp}.{int(record.msecs):03d}] {text}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(level: int = logging.INFO) -> None:
    """Send every logger of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SlurmFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


class Trouble:
    """Something that goes wrong for a while: told when it begins and when it is over, not in between."""

    def __init__(self, logger: logging.Logger, what: str, over: str) -> None:
        self._logger = logger
        self._what = what
        self._over = over
        self._is_here = False

    def begins(self, why: object) -> None:
        """It is there; `why` is told the first time."""
        if not self._is_here:
            self._logger.warning("%s: %s", self._what, why)
        self._is_here = True

    def ends(self) -> None:
        """It is not there, or no longer."""
        if self._is_here:
            self._logger.info("%s", self._over)
        self._is_here = False


@functools.lru_cache(maxsize=1024)
def warn_once(logger: logging.Logger, text: str) -> None:
    """Tell what is found anew at each reading; of very many such sentences the oldest may come again."""
    logger.warning("%s", text)
