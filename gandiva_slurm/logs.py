"""The daemons' logs, in slurmctld's form: `[2026-11-20T15:00:00.123] level: text`, on stderr.

What a daemon finds wrong again and again it tells once: `Trouble` when it begins and ends, `warn_once` else.
What others can bring about at will it tells once a minute: `Often`.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable

MINUTE_S = 60.0
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


class Often:
    """What others can bring about as often as they like: one line a minute a kind, which counts the rest.

    Kinds are words of ours, so that there are few.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        #: by kind: when it was told last, and how often it came since
        self._kinds: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, text: str) -> None:
        """Warn of it, at most once a minute."""
        self._tell(logging.WARNING, kind, text, False)

    def info(self, kind: str, text: str) -> None:
        """Tell it, at most once a minute."""
        self._tell(logging.INFO, kind, text, False)

    def error(self, kind: str, text: str) -> None:
        """Tell an error of ours with where it was raised, at most once a minute."""
        self._tell(logging.ERROR, kind, text, True)

    def _tell(self, level: int, kind: str, text: str, exc_info: bool) -> None:
        now_s = self._clock()
        told_s, untold = self._kinds.get(kind, (now_s - MINUTE_S, 0))
        if now_s - told_s < MINUTE_S:
            self._kinds[kind] = told_s, untold + 1
            return
        self._kinds[kind] = now_s, 0
        more = f" (and {untold} more since the last such line)" if untold else ""
        self._logger.log(level, "%s%s", text, more, exc_info=exc_info)


@functools.lru_cache(maxsize=1024)
def warn_once(logger: logging.Logger, text: str) -> None:
    """Tell what is found anew at each reading; of very many such sentences the oldest may come again."""
    logger.warning("%s", text)
