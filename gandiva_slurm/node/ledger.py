"""Holds: who held which GPUs from when to when, numbered, and kept until the controller has them (ADR 0008).

A hold is open from the grant until the last rank has released. Open holds live in the daemon's state file,
closed ones in a file of their own, appended when they close, so that neither a kill of gandivad nor days
without a controller lose or double one.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.wire.messages import Hold

#: A report carries at most so many closed holds, the oldest first; the rest follows when these are
#: acknowledged.
REPORTED = 5000
#: After a reboot numbers jump, so that one which was lost with the disk's cache is not used twice.
REBOOT_JUMP = 1_000_000
#: Acknowledged lines are dropped from the file when there are so many.
_PRUNE = 1000

log = logging.getLogger(__name__)


@dataclasses.dataclass
class OpenHold:
    """A hold that lasts. `parked_at_ns` is when the order to park was given, 0 while there is none.

    `shared_with` is the job that holds the same GPUs, 0 while none does.
    """

    user: str
    gpus: tuple[int, ...]
    t0_ns: int
    parked_at_ns: int = 0
    shared_with: int = 0


class Ledger:
    """The holds of one node. `boot` names the series of numbers; all times are unix nanoseconds."""

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self.boot = boot
        self.open: dict[JobKey, OpenHold] = {}
        self._closed: list[Hold] = []
        self._next_seq = 1
        self._acked_lines = 0
        self._failed = False

    def begin(self, key: JobKey, user: str, gpus: tuple[int, ...], now_ns: int) -> None:
        """A gang was granted its GPUs."""
        assert key not in self.open, f"{key} holds already"
        self.open[key] = OpenHold(user, gpus, now_ns)

    def order_park(self, key: JobKey, now_ns: int) -> None:
        """It was told to park: what follows is overrun."""
        self.open[key].parked_at_ns = now_ns

    def cancel_park(self, key: JobKey) -> None:
        """It could not park and goes on."""
        self.open[key].parked_at_ns = 0

    def share(self, key: JobKey, mate: int, now_ns: int) -> None:
        """From now on it holds its GPUs together with that job, 0: alone; what was until now is closed."""
        hold = self.open[key]
        if hold.shared_with == mate:
            return
        if now_ns > hold.t0_ns:
            self.end(key, now_ns)
            parked_at_ns = now_ns if hold.parked_at_ns else 0
            hold = self.open[key] = OpenHold(hold.user, hold.gpus, now_ns, parked_at_ns)
        hold.shared_with = mate

    def end(self, key: JobKey, now_ns: int) -> Hold:
        """Its last rank has released (or is dead): the hold is closed, numbered and written."""
        hold = dataclasses.replace(self._as_hold(key, now_ns), seq=self._next_seq)
        del self.open[key]
        self._next_seq += 1
        self._closed.append(hold)
        if self._failed:  # what could not be written then, and half a line perhaps, is set right first
            self._rewrite()
        else:
            self._append([hold])
        return hold

    def report(self, now_ns: int) -> tuple[Hold, ...]:
        """What the controller must still hear: closed holds it has not acknowledged, then the open ones."""
        return (*self._closed[:REPORTED], *(self._as_hold(key, now_ns) for key in self.open))

    def acknowledge(self, boot: str, seq: int) -> bool:
        """The controller has all holds of this boot up to `seq`; True when that is news."""
        if boot != self.boot or not self._closed or self._closed[0].seq > seq:
            return False
        before = len(self._closed)
        self._closed = [hold for hold in self._closed if hold.seq > seq]
        self._acked_lines += before - len(self._closed)
        if self._acked_lines >= _PRUNE:
            self._rewrite()
        return True

    def to_json(self) -> dict[str, Any]:
        """Return what belongs into the state file."""
        rows = {str(key): dataclasses.asdict(hold) for key, hold in self.open.items()}
        return {"boot": self.boot, "next_seq": self._next_seq, "acked": self._acked, "open": rows}

    def restore(self, data: dict[str, Any], rebooted: bool) -> None:
        """Take over from the state file and the file of closed holds."""
        self.boot = data["boot"]
        rows = {JobKey.parse(key): row for key, row in data["open"].items()}
        self.open = {key: OpenHold(**(row | {"gpus": tuple(row["gpus"])})) for key, row in rows.items()}
        written = self._read()
        for hold in written:
            key = JobKey(hold.job_id, hold.restart)
            if key in self.open and self.open[key].t0_ns == hold.t0_ns:
                del self.open[key]
        self._closed = [hold for hold in written if hold.seq > data["acked"]]
        self._next_seq = max([data["next_seq"], *(hold.seq + 1 for hold in written)])
        if rebooted:
            self._next_seq += REBOOT_JUMP
        self._rewrite()

    @property
    def _acked(self) -> int:
        return self._closed[0].seq - 1 if self._closed else self._next_seq - 1

    def _as_hold(self, key: JobKey, now_ns: int) -> Hold:
        hold = self.open[key]
        park_ns = max(0, now_ns - hold.parked_at_ns) if hold.parked_at_ns else 0
        end_ns = max(now_ns, hold.t0_ns)
        times = (hold.t0_ns, end_ns, park_ns)
        return Hold(0, *key, hold.user, hold.gpus, *times, hold.shared_with)

    def _append(self, holds: list[Hold]) -> None:
        text = "".join(json.dumps(dataclasses.asdict(hold), separators=(",", ":")) + "\n" for hold in holds)
        self._write(text, is_whole=False)

    def _rewrite(self) -> None:
        text = "".join(
            json.dumps(dataclasses.asdict(hold), separators=(",", ":")) + "\n" for hold in self._closed
        )
        if self._write(text, is_whole=True):
            self._acked_lines = 0

    def _write(self, text: str, is_whole: bool) -> bool:
        """Append to the file, or replace it as a whole."""
        path = self.path.with_suffix(".tmp") if is_whole else self.path
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if is_whole else os.O_APPEND)
        try:
            with open(os.open(path, flags, 0o640), "w", encoding="utf-8") as stream:
                stream.write(text)
            if is_whole:
                os.replace(path, self.path)
        except OSError as err:
            if not self._failed:
                what = f"{self.path}: {err.strerror}"
                log.error("%s; holds are kept in memory only until it can be written", what)
            self._failed = True
            return False
        self._failed = False
        return True

    def _read(self) -> list[Hold]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        holds = []
        for line in lines:
            try:
                row = json.loads(line)
                holds.append(Hold(**(row | {"gpus": tuple(row["gpus"])})))
            except (ValueError, TypeError, KeyError):
                log.error("%s: a line is torn; left out: %.80s", self.path, line)
        return holds
