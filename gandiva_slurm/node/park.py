"""The node's half of the park protocol for one gang: hold, then commit (ADR 0007). No clock, no I/O.

    running ─ park ─► aiming ─ all hold at the aimed boundary ─► committing ─ all have released ─► parked
       ▲                │ a miss, a leave, a time-out: aim again, five times at most
       └─ all train ─ resuming ◄─ resume; a rank that ended or could not release; the sixth miss

gandivad reads the pages (`views`), calls one of `park`, `tick`, `resume`, `adopt`, and performs the writes it
gets, in order, at once. While `phase` is aiming, committing or resuming it ticks every half to one
millisecond; while running, once a second is plenty (it teaches the coordinator the gang's pace).
Views hold what ranks wrote and are not trusted: a rank counts only when state, generation and boundary match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gandiva_slurm.node.pace import Pace
from gandiva_slurm.wire.page import (
    CMD_AIM,
    CMD_COMMIT,
    CMD_RUN,
    DONE,
    FAILED,
    HOLD,
    LEFT,
    NEVER,
    PARKED,
    RELEASING,
    RESTORING,
    STATE_NAMES,
    W_AT,
    W_AT2,
    W_BEAT,
    W_MISSED_GEN,
    W_SEQ,
    W_STATE,
    W_STATE_GEN,
    W_STATE_SEQ,
    W_WAKE_BY,
    W_WORD,
    generation_of,
    word,
)

PageView = Sequence[int]
#: (rank index, ((word index, value), ...)) to be written in this order.
Write = tuple[int, tuple[tuple[int, int], ...]]

#: A gang that missed so many aims in one park trains on.
MAX_REAIMS = 5
#: A rank that stands at the aimed boundary without holding for this long, or two steps, has slipped by.
SLIP_NS, SLIP_STEPS = 20_000_000, 2
#: Some rank holds and not all do within this long, or four steps: aim again.
HOLD_NS, HOLD_STEPS = 250_000_000, 4
#: A rank may be parked once it has passed so many boundaries.
FIRST_BOUNDARIES = 3
#: Counters and generations in pages are believed up to here, so that sums stay within a word.
SANE_SEQ, SANE_GEN = 1 << 62, 1 << 54
_STOPPED = frozenset((HOLD, RELEASING, PARKED, RESTORING))


class Stand(NamedTuple):
    """Where a park stands: everything the protocol remembers between two ticks.

    `held_ns` is when a rank was first seen holding, `slipped_ns` at the aimed boundary without; 0 = not seen.
    """

    phase: str = "running"
    gen: int = 0
    seq: int = 0
    tries: int = 0
    wake_by_ns: int = 0
    aimed_ns: int = 0
    held_ns: int = 0
    slipped_ns: int = 0
    run_wanted: bool = False


class Gang:
    """The coordinator of one gang on one node."""

    def __init__(self, world: int, generation: int = 0, pace: Pace | None = None) -> None:
        """`world` ranks, all running; orders begin above `generation`."""
        self.world = world
        self.stand = Stand(gen=generation)
        self.pace = pace or Pace()
        self.max_reaims = MAX_REAIMS
        self.reaims = 0
        self.failed_parks = 0
        self.last_error = ""
        #: how many boundaries ahead the last park was aimed; 0 where a single rank takes the next one
        self.margin = 0

    @property
    def phase(self) -> str:
        """running, aiming, committing, parked or resuming."""
        return self.stand.phase

    @property
    def generation(self) -> int:
        """The generation of the last order."""
        return self.stand.gen

    @property
    def park_seq(self) -> int:
        """The boundary of the last park: aimed at, or where a single rank stopped."""
        return self.stand.seq

    def park(self, views: Sequence[PageView], now_ns: int, wake_by_ns: int) -> list[Write]:
        """Begin to park; after `wake_by_ns` the ranks restore by themselves if the node is gone."""
        if self.phase != "running":
            raise ValueError(f"park: the gang is {self.phase}; only a running gang can be parked")
        self.pace.observe(views)
        self.stand = Stand(gen=self.stand.gen, wake_by_ns=wake_by_ns)
        if self.world > 1:
            return self._aim(views, now_ns)
        self._next(views, "committing")
        return self._order(0, CMD_COMMIT, now_ns)

    def tick(self, views: Sequence[PageView], alive: Sequence[bool], now_ns: int) -> list[Write]:
        """Look at the pages and go on; `alive` tells which ranks' processes still exist."""
        if self.phase in ("running", "aiming"):
            self.pace.observe(views)
        if self.phase == "aiming":
            return self._tick_aiming(views, alive, now_ns)
        if self.phase == "committing":
            return self._tick_committing(views, alive, now_ns)
        if self.phase == "resuming" and not any(
            living and view[W_STATE] in _STOPPED for view, living in zip(views, alive, strict=True)
        ):
            self.stand = self.stand._replace(phase="running")
        return []

    def resume(self, views: Sequence[PageView], now_ns: int) -> list[Write]:
        """Let the gang train: at once, or, when several ranks were told to release, once all have."""
        if self.phase == "committing" and self.world > 1:
            self.stand = self.stand._replace(run_wanted=True)
            return []
        return self._run(views, now_ns)

    def adopt(self, views: Sequence[PageView], now_ns: int) -> list[Write]:
        """Take over from a gandivad that is gone: a gang parked whole stays so, anything else runs."""
        gens = {view[W_STATE_GEN] for view in views}
        orders = {view[W_WORD] for view in views}
        if len(gens) == len(orders) == 1 and all(view[W_STATE] == PARKED for view in views):
            gen, order = gens.pop(), orders.pop()
            if order == word(gen, CMD_COMMIT):
                self.stand = Stand("parked", gen, views[0][W_STATE_SEQ], wake_by_ns=views[0][W_WAKE_BY])
                return []
        return self._run(views, now_ns)

    def _tick_aiming(self, views: Sequence[PageView], alive: Sequence[bool], now_ns: int) -> list[Write]:
        if self.stand.aimed_ns:
            self.pace.took(now_ns - self.stand.aimed_ns)
            self.stand = self.stand._replace(aimed_ns=0)
        ended = ended_rank(views, alive)
        if ended:
            return self._give_up(f"{ended} while it was told to hold", views, now_ns)
        holding = [stands_at(view, HOLD, self.stand.gen, self.stand.seq) for view in views]
        if all(holding):
            self.stand = self.stand._replace(phase="committing")
            commit = ((W_BEAT, now_ns), (W_WORD, word(self.stand.gen, CMD_COMMIT)))
            return [(rank, commit) for rank in range(self.world)]
        miss = self._miss(views, holding, now_ns)
        if not miss:
            return []
        if self.stand.tries >= self.max_reaims:
            return self._give_up(miss, views, now_ns)
        self.reaims += 1
        self.last_error = miss
        self.stand = self.stand._replace(tries=self.stand.tries + 1)
        return self._aim(views, now_ns)

    def _miss(self, views: Sequence[PageView], holding: Sequence[bool], now_ns: int) -> str:
        """Return why this aim is lost, "" while it is not; start and stop the two clocks."""
        stand = self.stand
        slipped = False
        for rank, view in enumerate(views):
            if view[W_SEQ] > stand.seq or view[W_MISSED_GEN] == stand.gen:
                return f"rank {rank} had passed boundary {stand.seq} when it was told to hold there"
            if view[W_STATE] in (LEFT, FAILED) and view[W_STATE_GEN] == stand.gen:
                return f"rank {rank} did not wait at boundary {stand.seq} ({STATE_NAMES[view[W_STATE]]})"
            slipped = slipped or (view[W_SEQ] == stand.seq and not holding[rank])
        slipped_ns = (stand.slipped_ns or now_ns) if slipped else 0
        held_ns = stand.held_ns or (now_ns if any(holding) else 0)
        self.stand = stand._replace(slipped_ns=slipped_ns, held_ns=held_ns)
        if slipped_ns and now_ns - slipped_ns > max(SLIP_NS, SLIP_STEPS * self.pace.slowest_ns):
            return f"a rank went past boundary {stand.seq} just as it was told to hold there"
        if held_ns and now_ns - held_ns > max(HOLD_NS, HOLD_STEPS * self.pace.slowest_ns):
            return f"not all ranks reached boundary {stand.seq} within {(now_ns - held_ns) // 1_000_000} ms"
        return ""

    def _tick_committing(self, views: Sequence[PageView], alive: Sequence[bool], now_ns: int) -> list[Write]:
        # No rank may run on while another can still begin to release: wait for every answer, whatever it is.
        gen = self.stand.gen
        if any(living and not _has_answered(view, gen) for view, living in zip(views, alive, strict=True)):
            return []
        ended = ended_rank(views, alive)
        unreleased = [rank for rank, view in enumerate(views) if view[W_STATE] != PARKED]
        if ended or unreleased:
            return self._give_up(ended or f"rank {unreleased[0]} did not release its device", views, now_ns)
        self.stand = self.stand._replace(phase="parked", seq=views[0][W_STATE_SEQ])
        return self._run(views, now_ns) if self.stand.run_wanted else []

    def _aim(self, views: Sequence[PageView], now_ns: int) -> list[Write]:
        self.margin = self.pace.margin(self.stand.tries)
        seq = max(min(view[W_SEQ], SANE_SEQ) for view in views) + self.margin
        self.pace.restart(self.stand.seq)
        self._next(views, "aiming")
        self.stand = self.stand._replace(seq=seq, aimed_ns=now_ns, held_ns=0, slipped_ns=0)
        return self._order(seq, CMD_AIM, now_ns)

    def _run(self, views: Sequence[PageView], now_ns: int) -> list[Write]:
        self.pace.restart(self.stand.seq)
        self._next(views, "resuming")
        return self._order(NEVER, CMD_RUN, now_ns)

    def _give_up(self, reason: str, views: Sequence[PageView], now_ns: int) -> list[Write]:
        self.failed_parks += 1
        self.last_error = reason
        return self._run(views, now_ns)

    def _next(self, views: Sequence[PageView], phase: str) -> None:
        """Enter a phase under a generation above every one in use."""
        seen = [generation_of(view[W_WORD]) for view in views]
        gen = max([self.stand.gen, *(gen for gen in seen if gen < SANE_GEN)]) + 1
        self.stand = self.stand._replace(phase=phase, gen=gen, run_wanted=False)

    def _order(self, at: int, command: int, now_ns: int) -> list[Write]:
        # AT goes last: the hot path reads it alone. The beat is fresh, lest a rank that holds leave at once.
        words = (
            (W_BEAT, now_ns),
            (W_WAKE_BY, self.stand.wake_by_ns),
            (W_AT2, at),
            (W_WORD, word(self.stand.gen, command)),
            (W_AT, at),
        )
        return [(rank, words) for rank in range(self.world)]


def beat(now_ns: int) -> tuple[tuple[int, int], ...]:
    """Return the words that tell a rank its node is alive; written to every page each second."""
    return ((W_BEAT, now_ns),)


def stands_at(view: PageView, state: int, gen: int, seq: int) -> bool:
    """True when a rank says that it is in this state, by this order, at this boundary."""
    return (view[W_STATE], view[W_STATE_GEN], view[W_STATE_SEQ]) == (state, gen, seq)


def _has_answered(view: PageView, gen: int) -> bool:
    return view[W_STATE] == DONE or (view[W_STATE] in (PARKED, LEFT, FAILED) and view[W_STATE_GEN] == gen)


def ended_rank(views: Sequence[PageView], alive: Sequence[bool]) -> str:
    """Name the first rank that has ended, "" while all live."""
    for rank, (view, living) in enumerate(zip(views, alive, strict=True)):
        if not living or view[W_STATE] == DONE:
            return f"rank {rank} has ended"
    return ""
