"""The daemons' logs, in slurmctld's form: `[2026-11-20T15:00:00.123] level: text`, on stderr."""

from __future__ import annotations

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
