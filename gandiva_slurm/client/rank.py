"""The process's one rank: it counts boundaries on its control page and stops at one when the node says so.

`boundary` is the hot path: no system call, no lock, well under half a microsecond. Everything else happens
behind the one comparison it makes, with the page's AT word. Before the process has joined its node, the words
are private memory whose AT is 0, so that the same comparison leads to the join.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from threading import get_ident
from time import monotonic_ns
from typing import Any, Callable, Dict, Optional

from gandiva_slurm.client.behind import Writing
from gandiva_slurm.client.blame import is_from_signal_handler
from gandiva_slurm.client.groups import shortest_timeout_ms
from gandiva_slurm.client.guards import is_loader_worker
from gandiva_slurm.client.identity import find_identity, hello, start_ticks
from gandiva_slurm.client.join import NotJoined, join
from gandiva_slurm.client.notice import say
from gandiva_slurm.client.sharing import Share, tell_memory
from gandiva_slurm.client.stop import Stop
from gandiva_slurm.client.summary import sum_up
from gandiva_slurm.client.tiers import DRAIN_S, wants_to_move
from gandiva_slurm.wire.page import (
    DONE,
    FRAMEWORKS,
    KIND_HOOK,
    KIND_RUN,
    NEVER,
    PAGE_BYTES,
    STAMPS,
    UNMOVED_BYTES,
    UNMOVED_OFFSET,
    W_AT,
    W_BEGUN,
    W_ELASTIC,
    W_FIRST_NS,
    W_FRAMEWORK,
    W_GROUP_MS,
    W_KIND,
    W_LAST_NS,
    W_PEAK,
    W_PID,
    W_SEQ,
    W_STAMPS,
    W_START,
    W_STATE,
    W_THROTTLE,
    W_USER_STEPS,
)

#: A failed join is tried again after the first of these, then after twice as long each time, up to the
#: second; the third is how often. gandivad may just start anew: a job without a rank holds its GPU and pays.
JOIN_AGAIN_NS, JOIN_LONGEST_NS, JOIN_TRIES = 1_000_000_000, 30_000_000_000, 14
#: A hold is borne for four times the longer of 250 ms and four steps.
HOLD_FLOOR_NS, HOLD_STEPS, HOLD_PATIENCE = 250_000_000, 4, 4
#: Steps for which a park waits for the device, since the script may be that far ahead of it; the part of what
#: the node gives a park that this may take at most (a tier that gives up is followed by one that waits as
#: long, and a copy takes its time); and what an old node gives, in seconds.
DRAIN_STEPS, DRAIN_PART, PARK_DEADLINE_S = 4, 1 / 3, 30.0
#: A parked rank waits so long after its wake-by time, and up to ten seconds more: not all come back at once.
WAKE_GRACE_S, WAKE_JITTER_S = 60.0, 10.0
_NOBODY = -1


class Rank:
    """This process as its node sees it. One a process: `this_rank()`."""

    def __init__(self, socket_path: str) -> None:
        """Prepare to join at the first boundary; nothing is opened yet."""
        self.kind = KIND_HOOK
        self.words = _private_words()
        self.seq = 0
        self.user_steps = 0
        self.stop: Optional[Stop] = None
        self.share = Share(self.words)
        #: the THROTTLE word that asks for nothing new
        self.calm = 0
        self.save: Optional[Callable[[], None]] = None
        self.capture: Optional[Callable[[], Writing]] = None
        self.is_elastic = False
        #: which framework saves it, a number of FRAMEWORKS
        self.framework = 0
        #: Identifies the thread that passed the first boundary; None before there was one.
        self.owner: Optional[int] = None
        #: What the script trains with, as far as it was seen: weak references by id.
        self.seen: Dict[int, Callable[[], Any]] = {}
        self._socket_path = socket_path
        self._is_stopped = False
        self._tries = 0
        self._again_ns = 0
        self._first_ns = 0
        self._begun = 0
        self._unmoved = ""
        self._park_deadline_s = PARK_DEADLINE_S

    def boundary(self, mini_batches: int = 1) -> None:
        """Pass a boundary, or stop at it; `mini_batches` are the user's own that end here.

        Only the thread that passed the first boundary counts.
        """
        if get_ident() != self.owner and not self._take_thread():
            return
        self.seq = seq = self.seq + 1
        self.user_steps = steps = self.user_steps + mini_batches
        words = self.words
        words[W_SEQ] = seq
        words[W_USER_STEPS] = steps
        words[W_LAST_NS] = words[W_STAMPS + seq % STAMPS] = monotonic_ns()
        if words[W_AT] <= seq or words[W_THROTTLE] != self.calm:
            self._leave_hot_path(seq)

    def claim(
        self,
        kind: int,
        save: Optional[Callable[[], None]] = None,
        is_elastic: bool = False,
        framework: str = "",
        capture: Optional[Callable[[], Writing]] = None,
    ) -> None:
        """Let the script's own `steps` or `step` mark the boundaries from now on; the hook stands back.

        All stand back behind an attached training, whose boundaries are places to `save` at too; from what
        an elastic one saves, another number of ranks can go on. `framework`: which one saves it, if any.
        `capture`: of one that can be written while it is parked.
        """
        if self.kind == KIND_RUN and kind != KIND_RUN:
            return
        self.save, self.is_elastic, self.framework = save, is_elastic, FRAMEWORKS.index(framework)
        self.capture = capture
        self.words[W_ELASTIC], self.words[W_FRAMEWORK] = is_elastic, self.framework
        if self.stop is not None:
            self.stop.save, self.stop.capture = save, capture
        if kind != self.kind:
            self.kind = kind
            self.words[W_KIND] = kind
            self.begin_at(None)

    def begin_at(self, mini_batches: Optional[int]) -> None:
        """Show the node how many mini-batches the training had done before this process; None: not known.

        Nor is it known where this process has counted others before.
        """
        self._begun = 0 if mini_batches is None or self.user_steps else mini_batches + 1
        self.words[W_BEGUN] = self._begun

    def tell_unmoved(self, why: str) -> None:
        """Show the node why this training cannot be moved; "": it can."""
        self._unmoved = why
        shown = why.encode()[:UNMOVED_BYTES].ljust(UNMOVED_BYTES, b"\0")
        self.words.cast("B")[UNMOVED_OFFSET : UNMOVED_OFFSET + UNMOVED_BYTES] = shown

    def see(self, thing: Any) -> None:
        """Note an optimizer, a module, or what else keeps tensors of the training."""
        import weakref  # torch has it; a script without torch need not pay for it

        key = id(thing)
        if key not in self.seen:
            with contextlib.suppress(TypeError):  # some cannot be referred to weakly
                self.seen[key] = weakref.ref(thing, lambda _: self.seen.pop(key, None))

    def disarm(self) -> None:
        """In a forked child: a rank's child is no rank; another process's child may become one."""
        if self.owner is not None:
            self.owner, self.stop, self.words = _NOBODY, None, _private_words()
            self.share.end()

    def finish(self) -> None:
        """At exit: tell the node that no boundary will come any more, and the user what there was."""
        if self.stop is not None:
            with contextlib.suppress(Exception):  # a broken device tells nothing
                tell_memory(self.words)
            self.words[W_STATE] = DONE
            lived_ns, stop = monotonic_ns() - self._first_ns, self.stop
            sum_up(self.user_steps, lived_ns, stop.waited_ns, stop.parks, self.words[W_PEAK])

    def _take_thread(self) -> bool:
        if self.owner is not None:
            return False
        self.owner = _NOBODY if is_loader_worker() else get_ident()
        self._first_ns = monotonic_ns()
        return self.owner != _NOBODY

    def _leave_hot_path(self, seq: int) -> None:
        """Join, share, stop. No exception of ours gets out; one of the script's own signal handlers does."""
        if self._is_stopped:
            return  # a signal handler, run while we wait, passes a boundary of its own
        try:
            self._is_stopped = True
            if self.stop is None:
                self._join()
            if self.words[W_THROTTLE] != self.calm:
                self.calm = self.share.heed()
            if self.stop is not None and self.words[W_AT] <= seq:
                step_ns = self._step_ns(self.stop.waited_ns)
                self.stop.obey(seq, longest_hold_ns(step_ns), longest_drain_s(step_ns, self._park_deadline_s))
                self.share.rest()
                self.words[W_LAST_NS] = self.words[W_STAMPS + seq % STAMPS] = monotonic_ns()
        except Exception as err:
            if is_from_signal_handler(err):
                raise
            self._retire(err)
        finally:
            self._is_stopped = False

    def _join(self) -> None:
        if monotonic_ns() < self._again_ns:
            return
        identity = find_identity()
        try:
            page = join(self._socket_path, hello(identity, self.kind))
        except NotJoined as err:
            say(f"{err}; training goes on and cannot be parked until it does")
            self._again_ns = monotonic_ns() + min(JOIN_AGAIN_NS << self._tries, JOIN_LONGEST_NS)
            self._tries += 1
            if self._tries >= JOIN_TRIES:
                self.words[W_AT] = NEVER
            return
        jitter_s = WAKE_JITTER_S * int.from_bytes(os.urandom(2), "big") / 65536
        grace_s = float(page.answer.get("wake_grace_s", WAKE_GRACE_S)) + jitter_s
        self._park_deadline_s = float(page.answer.get("park_deadline_s", PARK_DEADLINE_S))
        self._introduce(page.words)
        self.stop, self.words = Stop(page.words, int(grace_s * 1e9), self.seen), page.words
        self.tell_unmoved(self._unmoved)
        self.share = Share(page.words)
        self.stop.save, self.stop.capture, self.stop.wake = self.save, self.capture, self.share.wake
        if identity.rank == 0 and "GANDIVA_CHECKPOINT_FILES" in os.environ:
            from gandiva_slurm.client.newest import directory, watch

            watch(page.words, directory() or ".")
        if wants_to_move():
            from gandiva_slurm.client.roots import watch_modules

            watch_modules(self, sys.modules["torch"])

    def _introduce(self, words: memoryview) -> None:
        words[W_PID], words[W_START] = os.getpid(), start_ticks()
        words[W_KIND], words[W_ELASTIC], words[W_FIRST_NS] = self.kind, self.is_elastic, self._first_ns
        words[W_FRAMEWORK] = self.framework
        words[W_GROUP_MS] = shortest_timeout_ms()
        words[W_BEGUN], words[W_USER_STEPS] = self._begun, self.user_steps
        words[W_LAST_NS] = monotonic_ns()
        words[W_SEQ] = self.seq

    def _step_ns(self, waited_ns: int) -> int:
        return (monotonic_ns() - self._first_ns - waited_ns) // self.seq

    def _retire(self, err: Exception) -> None:
        """Something of ours broke: train on as if Gandiva were not there."""
        say(f"the client failed and takes no further part ({type(err).__name__}: {err}); training goes on")
        if self.stop is not None:
            self.stop.tell(err)
        self.share.end()
        self.words, self.calm = _private_words(), 0
        self.words[W_AT] = NEVER


def longest_hold_ns(step_ns: int) -> int:
    """Return how long a hold is borne where a step takes so long."""
    return HOLD_PATIENCE * max(HOLD_FLOOR_NS, HOLD_STEPS * step_ns)


def longest_drain_s(step_ns: int, park_deadline_s: float) -> float:
    """Return how long a park waits for the device where a step takes so long."""
    return max(DRAIN_S, min(DRAIN_STEPS * step_ns / 1e9, DRAIN_PART * park_deadline_s))


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


def cannot_be_moved(why: str) -> None:
    """Say, here and to the node, that this training is parked like any other and not moved."""
    rank = this_rank()
    if rank is not None:
        rank.tell_unmoved(why)
    say(f"this training is not saved and cannot be moved: {why}")


def _private_words() -> memoryview:
    return memoryview(bytearray(PAGE_BYTES)).cast("Q")
