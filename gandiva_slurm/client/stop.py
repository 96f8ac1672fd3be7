"""What a rank does at a boundary where the node wants it to stop: hold, release, stay parked, restore.

`machine.advance` decides; this carries it out on the control page, sleeping in between with the GIL released,
so that signals are served and other threads run.
"""

from __future__ import annotations

from time import monotonic_ns, sleep
from typing import Any, Callable, Dict, Optional

from gandiva_slurm.client import machine
from gandiva_slurm.client.behind import Behind, Writing
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.errors import NotSaved, Refused
from gandiva_slurm.client.guards import is_fit_to_park
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.sharing import ooms
from gandiva_slurm.client.tiers import DRAIN_S, BestTier, Released
from gandiva_slurm.wire.page import (
    ERROR_BYTES,
    ERROR_OFFSET,
    HOLD,
    PARKED,
    RELEASING,
    RESTORING,
    TIER_BEHIND,
    TIER_REQUEUE,
    W_AT,
    W_AT2,
    W_BEAT,
    W_ERROR,
    W_HELD,
    W_LIVE,
    W_OOMS,
    W_PEAK,
    W_RELEASED,
    W_TIER,
    W_TIER_USED,
    W_WAKE_BY,
    W_WORD,
)

#: Waiting sleeps from the first to the second, a half longer each time.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 20e-6, 1e-3
#: A rank parked for long sleeps a small part of that time, up to 10 ms: polling each millisecond took 6 % of
#: a core for every parked rank (measured; now 0.6 %), and the longer the park, the less a late start weighs.
PARKED_PART, PARKED_PAUSE_S = 1 / 128, 10e-3
#: A failed restore is tried again ever more seldom, down to once in this time.
RESTORE_PAUSE_S = 1.0
#: A command that is being written is read again so often; then taken as it is, which is safe.
_READS = 50


class Stop:
    """A rank's place in the park protocol, and the page it is told and shown on."""

    def __init__(
        self, words: memoryview, grace_ns: int, seen: Optional[Dict[int, Callable[[], Any]]] = None
    ) -> None:
        """Nobody has asked to park yet; `grace_ns` is borne beyond WAKE_BY with a silent node.

        `seen`, by weak reference, is what the script trains with.
        """
        self.words = words
        self.place = machine.Place()
        self.tier: Any = BestTier({} if seen is None else seen)
        #: Saves an attached training; None where the boundaries are no places to save at.
        self.save: Optional[Callable[[], None]] = None
        #: Captures an attached training, to be written while it is parked; None where it cannot be.
        self.capture: Optional[Callable[[], Writing]] = None
        #: Called before its memory comes back.
        self.wake: Callable[[], None] = _nothing
        #: for how long it has waited at boundaries, and how often it was parked
        self.waited_ns = self.parks = 0
        self._behind = Behind(words)
        self._grace_ns = grace_ns
        self._drain_s = DRAIN_S
        #: Why memory was held, as last told.
        self._told = ""

    def obey(self, seq: int, hold_ns: int, drain_s: float = DRAIN_S) -> None:
        """Do what the order says at boundary `seq` until the machine says GO.

        Hold at most `hold_ns`, and have the device finish its steps within `drain_s`.
        """
        self._drain_s = drain_s
        if not is_fit_to_park():
            self._move(machine.pass_by(self.place, self._order(), seq))
            return
        started_ns = monotonic_ns()
        try:
            self._follow(seq, machine.Bounds(hold_ns, self._grace_ns))
        except BaseException:
            self._abandon()
            raise
        finally:
            self.waited_ns += monotonic_ns() - started_ns

    def tell(self, err: Exception) -> None:
        """Show the node an error."""
        text = str(err) if isinstance(err, (NotSaved, Refused)) else f"{type(err).__name__}: {err}"
        shown = text.encode()[:ERROR_BYTES].ljust(ERROR_BYTES, b"\0")
        self.words.cast("B")[ERROR_OFFSET : ERROR_OFFSET + ERROR_BYTES] = shown
        self.words[W_ERROR] = self.words[W_ERROR] + 1

    def _follow(self, seq: int, bounds: machine.Bounds) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            place, effect = machine.advance(self.place, self._order(), seq, monotonic_ns(), bounds)
            self._move(place)
            longest_s = self._longest_pause_s()
            if effect == machine.GO or (effect == machine.RELEASE and not self._release()):
                return
            if effect == machine.RELEASE:
                pause_s = FIRST_PAUSE_S
                continue
            if effect == machine.RESTORE:
                if self._restore():
                    continue
                longest_s = RESTORE_PAUSE_S
            sleep(pause_s)
            if self.tier.is_called():
                self._abandon()
                return
            pause_s = min(pause_s * 1.5, longest_s)

    def _release(self) -> bool:
        asked = self.words[W_TIER]
        save = self.save if asked == TIER_REQUEUE else None
        try:
            if save is not None:
                save()
            writing = self._captured() if asked == TIER_BEHIND else None
            done = self.tier.release(self._drain_s)
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self.tell(err)
            self._move(machine.failed(self.place))
            return False
        self.parks += 1
        self._show(done)
        self.words[W_TIER_USED] = self.tier.number if save is None else TIER_REQUEUE
        if writing is not None:
            self._behind.begin(writing, self.tier.kept(), self.place.seq)
        return True

    def _captured(self) -> Optional[Writing]:
        """Capture what is to be written while it is parked; the park does not fail for that."""
        try:
            return self.capture() if self.capture is not None else None
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            say(f"not saved while parked, training goes on: {err}")
            return None

    def _show(self, done: Released) -> None:
        words = self.words
        words[W_RELEASED], words[W_HELD] = done.released, done.held
        words[W_LIVE], words[W_PEAK] = done.released + done.held, max(1, done.peak)
        words[W_OOMS] = ooms()
        if done.why != self._told:
            self._told = done.why
            if done.why:
                self.tell(Refused(done.why))

    def _restore(self) -> bool:
        self._behind.stop()
        try:
            self.wake()
            self.tier.restore()
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self.tell(err)
            self._move(machine.still_parked(self.place))
            return False
        return True

    def _abandon(self) -> None:
        """The wait was interrupted, by the script or an error of ours: take everything back and train on."""
        self._behind.stop()
        try:
            if self.place.state in (RELEASING, PARKED, RESTORING):
                self.tier.restore_at_last()
        finally:
            if self.place.state in (HOLD, RELEASING, PARKED, RESTORING):
                self._move(machine.left(self.place))

    def _move(self, place: machine.Place) -> None:
        for index, value in machine.publish(self.place, place):
            self.words[index] = value
        self.place = place

    def _order(self) -> machine.Order:
        words = self.words
        for _ in range(_READS):
            at, word = words[W_AT], words[W_WORD]
            if words[W_AT2] == at == words[W_AT]:
                break
        return machine.Order(at, word, words[W_WAKE_BY], words[W_BEAT])

    def _longest_pause_s(self) -> float:
        if self.place.state != PARKED:
            return LONGEST_PAUSE_S
        parked_s = (monotonic_ns() - self.place.since_ns) / 1e9
        return max(LONGEST_PAUSE_S, min(parked_s * PARKED_PART, PARKED_PAUSE_S))


def _nothing() -> None:
    """Nothing is to be done."""
