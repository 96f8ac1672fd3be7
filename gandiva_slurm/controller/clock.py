"""gandivactld's time: even, whatever is done to the system's clock (ADR 0042).

Deadlines, retries and all that the engine writes down are in even time: CLOCK_BOOTTIME, which is never set
and goes on in a suspend, plus an offset that stays for as long as the host is up. By how much the system's
clock is ahead of it is the skew; Slurm's times, and those that people read, are compared by it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gandiva_slurm.config import NS_PER_S

#: The system's clock counts as set by more than this: less is what reading two clocks takes.
STEP_NS = NS_PER_S
MINUTE_NS = 60 * NS_PER_S

log = logging.getLogger(__name__)


def boot_ns() -> int:
    """Nanoseconds since the host began, suspends included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def host_boot() -> str:
    """A name for this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Clock:
    """Even time, kept over restarts in a file."""

    def __init__(
        self,
        file: Path,
        since_boot_ns: Callable[[], int] = boot_ns,
        system_ns: Callable[[], int] = time.time_ns,
        boot: Callable[[], str] = host_boot,
    ) -> None:
        self._since_boot_ns, self._system_ns = since_boot_ns, system_ns
        self._file, self._boot, self._saved = file, boot(), (0, 0)
        saved, boot_id = _read(file)
        #: by how much the system's clock was ahead when that was looked at last
        self.skew_ns = saved.get("skew_ns", 0)
        if boot_id == self._boot:
            self._offset_ns = saved["offset_ns"]
        else:  # even time goes on by the system's, which may have been set back meanwhile
            now_ns = max(system_ns() - self.skew_ns, saved.get("last_ns", 0))
            self._offset_ns = now_ns - since_boot_ns()
        self.look()

    def now_ns(self) -> int:
        """Even time, near unix time as long as nobody sets the system's clock."""
        return self._since_boot_ns() + self._offset_ns

    def shown_ns(self) -> int:
        """What the system's clock shows: unix time, which may jump."""
        return self._system_ns()

    def look(self) -> int:
        """Return the skew; where the system's clock was set it is another one."""
        skew_ns = self._system_ns() - self.now_ns()
        if abs(skew_ns - self.skew_ns) > STEP_NS:
            by_s = (skew_ns - self.skew_ns) / NS_PER_S
            log.warning("the system's clock was set by %+.0f s: deadlines go on by even time", by_s)
            self.skew_ns = skew_ns
        return self.skew_ns

    def save(self) -> None:
        """Write it down for the next life, once a minute; a disk that refuses changes nothing now."""
        last_ns, minute = self.now_ns(), (self.skew_ns, self.now_ns() // MINUTE_NS)
        if minute == self._saved:
            return
        numbers = {"offset_ns": self._offset_ns, "skew_ns": self.skew_ns, "last_ns": last_ns}
        data, self._saved = {"boot": self._boot, **numbers}, minute
        with contextlib.suppress(OSError):
            new = self._file.with_name(self._file.name + ".new")
            new.write_text(json.dumps(data))
            new.replace(self._file)


def _read(file: Path) -> tuple[dict[str, int], str]:
    """What was saved, and in which boot; {}: nothing that can be used."""
    try:
        data = json.loads(file.read_text())
        return {key: int(data[key]) for key in ("offset_ns", "skew_ns", "last_ns")}, str(data["boot"])
    except (OSError, KeyError, TypeError, ValueError):
        return {}, ""
