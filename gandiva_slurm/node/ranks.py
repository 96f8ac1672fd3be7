"""Ranks and the gangs they form, as one node sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.park import FIRST_BOUNDARIES, SANE_GEN, SANE_SEQ, Gang, Write
from gandiva_slurm.node.park_part import PartGang
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.wire import page as wire

#: How far a training is, where that is not known.
UNKNOWN = (-1, -1)


def stand_of(views: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return how many mini-batches the training of these ranks had done before them, and by now, or UNKNOWN.

    By their own word, on which all have to agree, and so bounded. `views`: their pages.
    """
    begun = {view[wire.W_BEGUN] for view in views}
    if len(begun) != 1 or not 0 < max(begun) <= SANE_SEQ:
        return UNKNOWN
    before = begun.pop() - 1
    return before, min(before + max(view[wire.W_USER_STEPS] for view in views), SANE_SEQ)


@dataclass(eq=False)
class Rank:
    """One training process and its page; `remote_fd` is the page's number in that process."""

    proc: ProcId
    rank: int
    page: Page
    stepd: ProcId | None
    remote_fd: int = -1
    is_alive: bool = True
    words: tuple[int, ...] = ()

    def look(self) -> tuple[int, ...]:
        """Read the page, unless the process is dead: then what it said last stays."""
        if self.is_alive or not self.words:
            self.words = self.page.read()
        return self.words


@dataclass(eq=False)
class RankSet:
    """The ranks of one process group, parked together. Most jobs have one; each step may have its own."""

    world: int
    master: str
    ranks: dict[int, Rank] = field(default_factory=dict)
    gang: Gang | None = None
    #: (boundaries, monotonic ns) at the start of the present run, to tell the mean mini-batch
    mark: tuple[int, int] = (0, 0)
    #: re-aims of the gang that are counted already
    counted_reaims: int = 0
    #: True where other ranks of its world live on other nodes: whether all are there is not known here
    is_part: bool = False

    def is_complete(self) -> bool:
        """True when every rank of the world that is to be here is, and lives."""
        is_whole = bool(self.ranks) if self.is_part else len(self.ranks) == self.world
        return is_whole and all(rank.is_alive for rank in self.ranks.values())

    def is_parkable(self) -> bool:
        """True when all ranks are here and have passed enough boundaries."""
        return self.is_complete() and min(view[wire.W_SEQ] for view in self.views()) >= FIRST_BOUNDARIES

    def in_order(self) -> list[Rank]:
        """Return the ranks by their number."""
        return [self.ranks[number] for number in sorted(self.ranks)]

    def form(self) -> Gang:
        """Return the gang's coordinator; its generation is above any that a page has seen."""
        if self.gang is None:
            kind = PartGang if self.is_part else Gang
            self.gang = kind(len(self.ranks), generation=self._newest_generation())
            self.counted_reaims = 0
        return self.gang

    def part_gang(self) -> PartGang:
        """Return the coordinator of these ranks, where they are a part of their gang."""
        gang = self.form()
        assert isinstance(gang, PartGang)
        return gang

    def order_park(self, now_ns: int, wake_by_ns: int) -> int:
        """Tell the gang to park; return how many boundaries ahead it is to stop."""
        views = self.views()
        self.apply(self.form().park(views, now_ns, wake_by_ns))
        return max(1, self.form().park_seq - max(view[wire.W_SEQ] for view in views))

    def new_reaims(self) -> int:
        """Return the re-aims since this was asked last."""
        new = (self.gang.reaims if self.gang is not None else 0) - self.counted_reaims
        self.counted_reaims += new
        return new

    def views(self) -> list[tuple[int, ...]]:
        """Read all pages."""
        return [rank.look() for rank in self.in_order()]

    def alive(self) -> list[bool]:
        """Which of them live."""
        return [rank.is_alive for rank in self.in_order()]

    def steps(self) -> int:
        """Mini-batches of the foremost rank: what the script counts itself, else boundaries."""
        return max((view[wire.W_USER_STEPS] or view[wire.W_SEQ] for view in self.views()), default=0)

    def stand(self) -> tuple[int, int]:
        """Mini-batches that its training had done before these processes, and by now; UNKNOWN: not told."""
        return stand_of(self.views())

    def apply(self, writes: list[Write]) -> None:
        """Write the coordinator's orders, rank by rank in the order given."""
        ranks = self.in_order()
        for index, words in writes:
            if ranks[index].is_alive:
                ranks[index].page.write(words)

    def set_mark(self, now_ns: int) -> None:
        """The gang starts to run now."""
        self.mark = (max((view[wire.W_SEQ] for view in self.views()), default=0), now_ns)

    def step_ns(self) -> int:
        """Return the mean time between boundaries since the mark, 0 when there was none."""
        seq, start_ns = self.mark
        best = max(self.views(), key=lambda view: view[wire.W_SEQ])
        passed = best[wire.W_SEQ] - seq
        return max(0, best[wire.W_LAST_NS] - start_ns) // passed if passed > 0 else 0

    def observed_step_ns(self, now_ns: int) -> int:
        """Return the mean mini-batch since the mark by this node's clock; where there was none, all of it."""
        seq, start_ns = self.mark
        passed = max((view[wire.W_SEQ] for view in self.views()), default=0) - seq
        return max(0, now_ns - start_ns) // max(1, passed)

    def forget_dead(self) -> None:
        """Drop ranks whose process is gone; the gang is formed anew when others take their place."""
        dead = [number for number, rank in self.ranks.items() if not rank.is_alive]
        for number in dead:
            self.ranks.pop(number).page.close()
        if dead:
            self.gang = None

    def _newest_generation(self) -> int:
        orders = [view[wire.W_WORD] >> 8 for view in self.views()]
        return max((order for order in orders if order < SANE_GEN), default=0)


def have_saved(ranks: Iterable[Rank]) -> bool:
    """True when these are parked and have saved themselves, each of them."""
    stands = {(page[wire.W_STATE], page[wire.W_TIER_USED]) for page in (rank.look() for rank in ranks)}
    return stands == {(wire.PARKED, wire.TIER_REQUEUE)}
