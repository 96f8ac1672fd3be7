"""The process's one rank: counts boundaries on its control page and stops at one when the node says so.

`boundary` is the hot path: no system call, no lock, well under half a microsecond. Everything else happens
behind the one comparison it makes, with the page's AT word. Before the process has joined its node, the words
are private memory whose AT is 0, so that the same comparison leads to the join.
"""

from __future__ import annotations

import atexit
import os
from threading import get_ident
from time import monotonic_ns, sleep
from typing import Optional

from gandiva_slurm.client import machine
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.guards import is_fit_to_park, is_loader_worker
from gandiva_slurm.client.identity import find_identity, hello, start_ticks
from gandiva_slurm.client.join import NotJoined, join
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.tiers import HoldTier
from gandiva_slurm.wire.page import (
    DONE,
    ERROR_BYTES,
    ERROR_OFFSET,
    HOLD,
    KIND_HOOK,
    NEVER,
    PAGE_BYTES,
    PARKED,
    RELEASING,
    RESTORING,
    W_AT,
    W_AT2,
    W_BEAT,
    W_ERROR,
    W_FIRST_NS,
    W_HELD,
    W_KIND,
    W_LAST_NS,
    W_PID,
    W_RELEASED,
    W_SEQ,
    W_START,
    W_STATE,
    W_TIER_USED,
    W_USER_STEPS,
    W_WAKE_BY,
    W_WORD,
)

#: A failed join is tried again after this long, and so many times in all.
JOIN_AGAIN_NS, JOIN_TRIES = 30_000_000_000, 10
#: Waiting sleeps from the first to the second, a half longer each time; restoring backs off further.
FIRST_PAUSE_S, LONGEST_PAUSE_S, RESTORE_PAUSE_S = 20e-6, 1e-3, 1.0
#: A hold is borne for four times the longer of 250 ms and four steps.
HOLD_FLOOR_NS, HOLD_STEPS, HOLD_PATIENCE = 250_000_000, 4, 4
#: A parked rank waits so long after its wake-by time, and up to ten seconds more: not all come back at once.
WAKE_GRACE_S, WAKE_JITTER_S = 60.0, 10.0
#: A command that is being written is read again so often; then taken as it is, which is safe.
_READS = 50
_NOBODY = -1


class Rank:
    """This process as its node sees it. One a process: `this_rank()`."""

    def __init__(self, socket_path: str, kind: int = KIND_HOOK) -> None:
        """Prepare to join at the first boundary; nothing is opened yet."""
        self.kind = kind
        self.words = memoryview(bytearray(PAGE_BYTES)).cast("Q")
        self.seq = 0
        self.user_steps = 0
        self.place = machine.Place()
        self.tier = HoldTier()
        self._socket_path = socket_path
        self._owner: Optional[int] = None
        self._joined = False
        self._busy = False
        self._tries = 0
        self._again_ns = 0
        self._first_ns = 0
        self._waited_ns = 0
        self._grace_ns = 0

    def boundary(self) -> None:
        """Pass a boundary, or stop at it; only the thread that passed the first one counts."""
        if get_ident() != self._owner and not self._take_thread():
            return
        self.seq = seq = self.seq + 1
        words = self.words
        words[W_SEQ] = seq
        words[W_LAST_NS] = monotonic_ns()
        if words[W_AT] <= seq:
            self._stop(seq)

    def user_boundary(self) -> None:
        """Pass a boundary that is also one of the user's mini-batches."""
        if get_ident() == self._owner or self._take_thread():
            self.user_steps = steps = self.user_steps + 1
            self.words[W_USER_STEPS] = steps
            self.boundary()

    def claim(self, kind: int) -> None:
        """Let the script's own `steps` or `step` mark the boundaries from now on; the hook stands back."""
        if kind != self.kind:
            self.kind = kind
            self.words[W_KIND] = kind

    def owns_this_thread(self) -> bool:
        """Return True in the thread that passed the first boundary, or before there was one."""
        return self._owner is None or get_ident() == self._owner

    def disarm(self) -> None:
        """In a forked child: a rank's child is no rank; another process's child may become one."""
        if self._owner is not None:
            self._owner = _NOBODY
            self._joined = False
            self.words = memoryview(bytearray(PAGE_BYTES)).cast("Q")

    def finish(self) -> None:
        """At exit: tell the node that no boundary will come any more."""
        if self._joined:
            self.words[W_STATE] = DONE

    def _take_thread(self) -> bool:
        if self._owner is not None:
            return False
        self._owner = _NOBODY if is_loader_worker() else get_ident()
        self._first_ns = monotonic_ns()
        return self._owner != _NOBODY

    def _stop(self, seq: int) -> None:
        """Leave the hot path. No exception of ours gets out; one of the script's own signal handlers does."""
        if self._busy:
            return
        self._busy = True
        try:
            if self._joined or self._join():
                self._obey(seq)
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self._retire(err)
        finally:
            self._busy = False

    def _join(self) -> bool:
        now_ns = monotonic_ns()
        if now_ns < self._again_ns:
            return False
        try:
            page = join(self._socket_path, hello(find_identity(), self.kind))
        except NotJoined as err:
            say(f"{err}; training goes on and cannot be parked until it does")
            self._tries += 1
            self._again_ns = monotonic_ns() + JOIN_AGAIN_NS
            if self._tries >= JOIN_TRIES:
                self.words[W_AT] = NEVER
            return False
        jitter_s = WAKE_JITTER_S * int.from_bytes(os.urandom(2), "big") / 65536
        self._grace_ns = int((float(page.answer.get("wake_grace_s", WAKE_GRACE_S)) + jitter_s) * 1e9)
        self._introduce(page.words)
        self.words, self._joined = page.words, True
        return self.words[W_AT] <= self.seq

    def _introduce(self, words: memoryview) -> None:
        words[W_PID], words[W_START] = os.getpid(), start_ticks()
        words[W_KIND], words[W_FIRST_NS] = self.kind, self._first_ns
        words[W_USER_STEPS] = self.user_steps
        words[W_LAST_NS] = monotonic_ns()
        words[W_SEQ] = self.seq

    def _obey(self, seq: int) -> None:
        """Do what the order says until the machine says GO."""
        started_ns = monotonic_ns()
        if not is_fit_to_park():
            return self._move(machine.pass_by(self.place, self._order(), seq))
        bounds = self._bounds(seq, started_ns)
        try:
            self._follow(seq, bounds)
        except BaseException:
            self._abandon()
            raise
        finally:
            now_ns = monotonic_ns()
            self._waited_ns += now_ns - started_ns
            self.words[W_LAST_NS] = now_ns

    def _follow(self, seq: int, bounds: machine.Bounds) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            place, effect = machine.advance(self.place, self._order(), seq, monotonic_ns(), bounds)
            if effect == machine.RELEASE:
                if not self._release(place):
                    return
                pause_s = FIRST_PAUSE_S
                continue
            self._move(place)
            if effect == machine.GO:
                return
            longest_s = LONGEST_PAUSE_S
            if effect == machine.RESTORE:
                if self._restore():
                    continue
                longest_s = RESTORE_PAUSE_S
            sleep(pause_s)
            pause_s = min(pause_s * 1.5, longest_s)

    def _release(self, place: machine.Place) -> bool:
        self._move(place)
        try:
            done = self.tier.release()
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self._tell(err)
            self._move(machine.failed(self.place))
            return False
        self.words[W_RELEASED], self.words[W_HELD] = done.released, done.held
        self.words[W_TIER_USED] = self.tier.number
        return True

    def _restore(self) -> bool:
        try:
            self.tier.restore()
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self._tell(err)
            self._move(machine.still_parked(self.place))
            return False
        return True

    def _abandon(self) -> None:
        """The wait was interrupted by the script: take everything back and train on."""
        if self.place.state in (RELEASING, PARKED, RESTORING):
            self.tier.restore()
        if self.place.state in (HOLD, RELEASING, PARKED, RESTORING):
            self._move(machine.left(self.place))

    def _retire(self, err: Exception) -> None:
        """Something of ours broke: train on as if Gandiva were not there."""
        say(f"the client failed and takes no further part ({type(err).__name__}: {err}); training goes on")
        self._tell(err)
        self.words = memoryview(bytearray(PAGE_BYTES)).cast("Q")
        self.words[W_AT] = NEVER

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

    def _bounds(self, seq: int, now_ns: int) -> machine.Bounds:
        step_ns = (now_ns - self._first_ns - self._waited_ns) // seq
        hold_ns = HOLD_PATIENCE * max(HOLD_FLOOR_NS, HOLD_STEPS * step_ns)
        return machine.Bounds(hold_ns, self._grace_ns)

    def _tell(self, err: Exception) -> None:
        text = f"{type(err).__name__}: {err}".encode()[:ERROR_BYTES].ljust(ERROR_BYTES, b"\0")
        self.words.cast("B")[ERROR_OFFSET : ERROR_OFFSET + ERROR_BYTES] = text
        self.words[W_ERROR] = self.words[W_ERROR] + 1


_rank: Optional[Rank] = None


def this_rank() -> Optional[Rank]:
    """Return the process's rank, made at the first call; None where Gandiva is not around."""
    global _rank
    if _rank is None:
        path = os.environ.get("GANDIVA_SOCKET")
        if not path:
            return None
        _rank = Rank(path)
        os.register_at_fork(after_in_child=_rank.disarm)
        atexit.register(_rank.finish)
    return _rank
