"""Holds: who held which GPUs from when to when, numbered, and kept until the controller has them (ADR 0008).

A hold is open from the grant until the last rank has released. Each is a line in a file of their own when it
begins and one when it ends, so that neither a kill of gandivad nor days without a controller lose or double
one, nor a state file that cannot be read. A power cut takes what had not come to the disk: a hold that ends
anew after it is known to the controller by its beginning, and counts once.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable
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
    #: the host's boot in which it began, where that was read from the file
    boot: str = ""


class Ledger:
    """The holds of one node. `boot` names the series of numbers; all times are unix nanoseconds."""

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self.boot = boot
        #: this boot of the host, which the name begins with (a name that was taken over may be of another)
        self._host = boot.partition("-")[0]
        self.open: dict[JobKey, OpenHold] = {}
        #: called after each change of who holds what
        self.on_change: Callable[[], None] = lambda: None
        self._closed: list[Hold] = []
        self._next_seq = 1
        self._acked_lines = 0
        self._failed = False

    def begin(self, key: JobKey, user: str, gpus: tuple[int, ...], now_ns: int) -> None:
        """A gang was granted its GPUs."""
        assert key not in self.open, f"{key} holds already"
        self.open[key] = OpenHold(user, gpus, now_ns)
        self._append(_begun(self._host, key, self.open[key]))
        self.on_change()

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
            hold = self._renew(key, now_ns, now_ns)
        hold.shared_with = mate
        self.on_change()

    def redate(self, then_ns: int, now_ns: int) -> None:
        """Dates jump from one moment to another: what lasts ends at the one, and begins anew at the other."""
        for key in list(self.open):
            self._renew(key, then_ns, now_ns)
        self.on_change()

    def _renew(self, key: JobKey, end_ns: int, begin_ns: int) -> OpenHold:
        """Close a hold, unless it has just begun, and go on with it."""
        old = self.open[key]
        if end_ns > old.t0_ns:
            self.end(key, end_ns)
        parked_at_ns = begin_ns if old.parked_at_ns else 0
        hold = self.open[key] = OpenHold(old.user, old.gpus, begin_ns, parked_at_ns, old.shared_with)
        self._append(_begun(self._host, key, hold))
        return hold

    def end(self, key: JobKey, now_ns: int) -> Hold:
        """Its last rank has released (or is dead): the hold is closed, numbered and written."""
        hold = dataclasses.replace(self._as_hold(key, now_ns), seq=self._next_seq)
        del self.open[key]
        self._next_seq += 1
        self._closed.append(hold)
        self._append(dataclasses.asdict(hold))
        self.on_change()
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
        for row in rows.values():
            del row["boot"]
        return {"boot": self.boot, "next_seq": self._next_seq, "acked": self._acked, "open": rows}

    def restore(self, data: dict[str, Any], rebooted: bool) -> None:
        """Take over from the state file and the file of closed holds."""
        self.boot = data["boot"]
        rows = {JobKey.parse(key): row for key, row in data["open"].items()}
        self.open = {key: OpenHold(**(row | {"gpus": tuple(row["gpus"])})) for key, row in rows.items()}
        written, begun = self._read()
        for hold in written:
            key = JobKey(hold.job_id, hold.restart)
            if key in self.open and self.open[key].t0_ns == hold.t0_ns:
                del self.open[key]
        self._closed = [hold for hold in written if hold.seq > data["acked"]]
        self._next_seq = max([data["next_seq"], *(hold.seq + 1 for hold in written)])
        if rebooted:
            self._next_seq += REBOOT_JUMP
            # What began after the state was saved lasted until the last that is known of.
            self._end_all(begun, _last_ns(written, begun))
        self._rewrite()

    def recover(self, now_ns: int) -> None:
        """Take over from the file of holds alone: there is no state, or none that can be read.

        All closed holds are reported again, under this boot's name; what was open has been held until now
        where the host is still in that boot, else until the last that is known of.
        """
        written, begun = self._read()
        if not written and not begun and not self.path.exists():
            return  # a new node
        self._closed = written
        self._next_seq = max([0, *(hold.seq for hold in written)]) + REBOOT_JUMP
        end_ns = now_ns if self._is_of_this_boot(begun) else _last_ns(written, begun)
        self._end_all(begun, end_ns)
        self._rewrite()

    def _end_all(self, begun: dict[JobKey, OpenHold], end_ns: int) -> None:
        for key, hold in begun.items():
            if key not in self.open:
                self.open[key] = hold
                self.end(key, max(end_ns, hold.t0_ns))

    def _is_of_this_boot(self, begun: dict[JobKey, OpenHold]) -> bool:
        return all(hold.boot == self._host for hold in begun.values())

    @property
    def _acked(self) -> int:
        return self._closed[0].seq - 1 if self._closed else self._next_seq - 1

    def _as_hold(self, key: JobKey, now_ns: int) -> Hold:
        hold = self.open[key]
        park_ns = max(0, now_ns - hold.parked_at_ns) if hold.parked_at_ns else 0
        end_ns = max(now_ns, hold.t0_ns)
        times = (hold.t0_ns, end_ns, park_ns)
        return Hold(0, *key, hold.user, hold.gpus, *times, hold.shared_with)

    def _append(self, row: dict[str, Any]) -> None:
        if self._failed:  # what could not be written then, and half a line perhaps, is set right first
            self._rewrite()
        else:
            self._write(_lines([row]), is_whole=False)

    def _rewrite(self) -> None:
        rows = [dataclasses.asdict(hold) for hold in self._closed]
        rows += [_begun(self._host, key, hold) for key, hold in self.open.items()]
        if self._write(_lines(rows), is_whole=True):
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

    def _read(self) -> tuple[list[Hold], dict[JobKey, OpenHold]]:
        """Return the closed holds, and those that began and have not ended."""
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return [], {}
        closed: list[Hold] = []
        begun: dict[JobKey, OpenHold] = {}
        for line in lines:
            try:
                row = json.loads(line)
                row |= {"gpus": tuple(row["gpus"])}
                if "begun" in row:
                    hold = OpenHold(row["user"], row["gpus"], row["t0_ns"], boot=row["boot"])
                    begun[JobKey(*row["begun"])] = hold
                else:
                    closed.append(Hold(**row))
                    begun.pop(JobKey(closed[-1].job_id, closed[-1].restart), None)
            except (ValueError, TypeError, KeyError):
                log.error("%s: a line is torn; left out: %.80s", self.path, line)
        return closed, begun


def _last_ns(closed: list[Hold], begun: dict[JobKey, OpenHold]) -> int:
    return max([0, *(hold.t1_ns for hold in closed), *(hold.t0_ns for hold in begun.values())])


def _begun(boot: str, key: JobKey, hold: OpenHold) -> dict[str, Any]:
    return {"begun": key, "user": hold.user, "gpus": hold.gpus, "t0_ns": hold.t0_ns, "boot": boot}


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
