"""How fast a gang steps and how late its node acts: what the park coordinator aims by. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gandiva_slurm.wire.page import W_LAST_NS, W_SEQ

#: Before anything is measured: a step, and the time from reading the pages to having written all orders.
FIRST_STEP_NS, FIRST_SPREAD_NS = 10_000_000, 2_000_000
#: A step longer than this is a pause; what a rank writes is not trusted beyond it.
LONGEST_STEP_NS = 60_000_000_000
#: A node that was away for longer than this is not the rule.
LONGEST_SPREAD_NS = 25_000_000
#: The next boundary will do when a step is so many times longer than the node needs: one in so many misses.
NEXT_IS_SAFE = 50
#: Never aim further ahead than this at first.
WIDEST_MARGIN = 32
#: Estimates move by one part in so many towards a milder sample; to a worse one at once.
FORGET = 8


class Pace:
    """Fastest and slowest step of late, and the spread of the node's own writes, in nanoseconds."""

    def __init__(self) -> None:
        """Start from guesses; the first samples replace them."""
        self.fastest_ns = 0
        self.slowest_ns = 0
        self.spread_ns = FIRST_SPREAD_NS
        self._last: dict[int, tuple[int, int]] = {}
        self._floor = 0

    def observe(self, views: Sequence[Sequence[int]]) -> None:
        """Learn from the boundaries passed since the last look."""
        for rank, view in enumerate(views):
            seq, at_ns = view[W_SEQ], view[W_LAST_NS]
            last_seq, last_ns = self._last.get(rank, (seq, at_ns))
            if seq > last_seq and at_ns <= last_ns:
                continue  # the page was read between the rank's two writes
            if seq > last_seq:
                self._sample(min((at_ns - last_ns) // (seq - last_seq), LONGEST_STEP_NS))
            if seq > self._floor:
                self._last[rank] = (seq, at_ns)

    def restart(self, floor: int) -> None:
        """Forget the last look: ranks waited at boundary `floor`, and a wait is no step."""
        self._last = {}
        self._floor = floor

    def took(self, spread_ns: int) -> None:
        """Learn how long the node needed from reading the pages until it came to look at them again."""
        if spread_ns >= self.spread_ns:
            self.spread_ns = min(spread_ns, LONGEST_SPREAD_NS)
        else:
            self.spread_ns -= (self.spread_ns - spread_ns) // FORGET

    def margin(self, tries: int) -> int:
        """Return how many boundaries ahead of the fastest rank to aim, after `tries` misses in this park."""
        fastest_ns = self.fastest_ns or FIRST_STEP_NS
        if fastest_ns >= NEXT_IS_SAFE * self.spread_ns:
            return 1 << tries
        return min(2 + 2 * self.spread_ns // fastest_ns, WIDEST_MARGIN) << tries

    def _sample(self, step_ns: int) -> None:
        if not self.fastest_ns:
            self.fastest_ns = self.slowest_ns = step_ns
        if step_ns < self.fastest_ns:
            self.fastest_ns = max(step_ns, 1)
        else:
            self.fastest_ns += (step_ns - self.fastest_ns) // FORGET
        if step_ns > self.slowest_ns:
            self.slowest_ns = step_ns
        else:
            self.slowest_ns -= (self.slowest_ns - step_ns) // FORGET
