"""The node's half of the park protocol where a gang's ranks live on several nodes. No clock, no I/O.

The boundary comes from outside, and so does the word to release: all ranks here hold at it, then this waits
(ADR 0007, over nodes). What is local is as in `park`: pages, generations, and that nothing is believed that
does not match.

    running ─ aim ─► aiming ─ all hold ─► holding ─ commit ─► committing ─ all released ─► parked
                       │ a miss, a leave     │ one leaves                │ one could not release
                       └───────► missed ◄────┘                           └─► resuming
"""

from __future__ import annotations

from collections.abc import Sequence

from gandiva_slurm.node.pace import Pace
from gandiva_slurm.node.park import Gang, PageView, Stand, Write, ended_rank, stands_at
from gandiva_slurm.wire.page import CMD_AIM, CMD_COMMIT, HOLD, W_BEAT, W_SEQ, W_WORD, word

#: Phases besides those of `park.Gang`: all ranks here hold; this aim is lost, another or RUN is to come.
HOLDING, MISSED = "holding", "missed"


class PartGang(Gang):
    """The ranks of a gang that live on this node; the coordinator of the whole is elsewhere."""

    def __init__(self, world: int, generation: int = 0, pace: Pace | None = None) -> None:
        """`world` is the number of ranks here."""
        super().__init__(world, generation, pace)
        #: True after an aim at 0: these ranks wait for no other, each stops at its next boundary
        self.is_loose = False

    def aim(self, at: int, views: Sequence[PageView], now_ns: int, wake_by_ns: int) -> list[Write]:
        """Tell the ranks to hold at boundary `at`; 0: write nothing yet, each will stop at its next one."""
        if self.phase not in ("running", "aiming", HOLDING, MISSED):
            raise ValueError(f"aim: the part is {self.phase}")
        self.pace.observe(views)
        self.last_error = ""
        self.reaims += self.phase != "running"
        seqs = [view[W_SEQ] for view in views]
        self.margin = max(0, at - max(seqs))
        self.is_loose = at == 0
        self.stand = Stand(phase=self.phase, gen=self.stand.gen, wake_by_ns=wake_by_ns)
        if self.is_loose:
            self.stand = self.stand._replace(phase=HOLDING)
            return []
        self.pace.restart(at)
        self._next(views, "aiming")
        self.stand = self.stand._replace(seq=at, aimed_ns=now_ns)
        if max(seqs) > at:  # one that stands right there may hold for an aim before this one
            rank = seqs.index(max(seqs))
            self._lose(f"rank {rank} of this node had passed boundary {at} before it was told to hold there")
        return self._order(at, CMD_AIM, now_ns)

    def commit(self, views: Sequence[PageView], alive: Sequence[bool], now_ns: int) -> list[Write]:
        """Let the ranks release, if all of them still hold; else the aim is lost and nothing is written."""
        if self.phase != HOLDING:
            return []
        if self.is_loose:
            self._next(views, "committing")
            return self._order(0, CMD_COMMIT, now_ns)
        self._check_hold(views, alive)
        if self.phase != HOLDING:
            return []
        self.stand = self.stand._replace(phase="committing")
        words = ((W_BEAT, now_ns), (W_WORD, word(self.stand.gen, CMD_COMMIT)))
        return [(rank, words) for rank in range(self.world)]

    def tick(self, views: Sequence[PageView], alive: Sequence[bool], now_ns: int) -> list[Write]:
        """Look at the pages and go on."""
        if self.phase == HOLDING:
            if not self.is_loose:
                self._check_hold(views, alive)
            return []
        return super().tick(views, alive, now_ns)

    def resume(self, views: Sequence[PageView], now_ns: int) -> list[Write]:
        """Let the ranks train: at once, or, when they were told to release, once all of them have."""
        if self.phase == "committing":
            self.stand = self.stand._replace(run_wanted=True)
            return []
        return self._run(views, now_ns)

    def _tick_aiming(self, views: Sequence[PageView], alive: Sequence[bool], now_ns: int) -> list[Write]:
        if self.stand.aimed_ns:
            self.pace.took(now_ns - self.stand.aimed_ns)
            self.stand = self.stand._replace(aimed_ns=0)
        ended = ended_rank(views, alive)
        holding = [stands_at(view, HOLD, self.stand.gen, self.stand.seq) for view in views]
        if ended:
            self._lose(f"{ended} while it was told to hold")
        elif all(holding):
            self.stand = self.stand._replace(phase=HOLDING)
        else:
            miss = self._miss(views, holding, now_ns)
            if miss:
                self._lose(miss)
        return []

    def _check_hold(self, views: Sequence[PageView], alive: Sequence[bool]) -> None:
        ended = ended_rank(views, alive)
        gone = [n for n, v in enumerate(views) if not stands_at(v, HOLD, self.stand.gen, self.stand.seq)]
        if ended or gone:
            self._lose(ended or f"rank {gone[0]} of this node did not wait at boundary {self.stand.seq}")

    def _lose(self, why: str) -> None:
        self.last_error = why
        self.stand = self.stand._replace(phase=MISSED)
