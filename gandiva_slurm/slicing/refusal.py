"""A gang that is asked to park and does not: how long others bear it, and when it is frozen (ADR 0018).

Counted is what it holds while others wait for its GPUs, from its first failed park on; a park that works ends
the count. Past the bound it is stopped where it is. Afterwards it holds at least as long as it was stopped,
and is asked once more at the least, before it is stopped again. Pure: a node counts for its own gangs, the
controller for those of several nodes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Refusal:
    """Failed parks since the last one that worked. Moments are monotonic ns, 0 = none."""

    #: how many, why the last one failed, and when the first one did
    failures: int = 0
    why: str = ""
    since_ns: int = 0
    #: held since the first of them while others waited for its GPUs
    refused_ns: int = 0
    #: how many failed since it was thawed last, and what it has held since then
    asked: int = 0
    served_ns: int = 0
    #: frozen for all this: since when; how long the last time; how often
    frozen_at_ns: int = 0
    frozen_ns: int = 0
    freezes: int = 0

    @property
    def is_frozen(self) -> bool:
        """True while it is frozen because it refused."""
        return self.frozen_at_ns > 0

    def fail(self, why: str, now_ns: int) -> None:
        """A park has failed."""
        self.since_ns = self.since_ns or now_ns
        self.failures, self.asked, self.why = self.failures + 1, self.asked + 1, why

    def hold(self, held_ns: int, refused_ns: int) -> None:
        """It held its GPUs so long, and others waited for them during `refused_ns` of that."""
        if self.failures:
            self.served_ns += held_ns
            self.refused_ns += refused_ns

    def is_over(self, bound_ns: int, *, is_pressed: bool) -> bool:
        """True when others have borne it for long enough. `bound_ns` 0: they bear it for ever.

        `is_pressed`: one of them has reached the bound of its own park or freeze, and goes before.
        """
        if not bound_ns or not self.asked:
            return False
        return is_pressed or (self.refused_ns >= bound_ns and self.served_ns >= self.frozen_ns)

    def freeze(self, now_ns: int) -> None:
        """It is stopped where it is."""
        self.frozen_at_ns, self.freezes = now_ns, self.freezes + 1

    def thaw(self, now_ns: int) -> None:
        """It goes on."""
        if self.is_frozen:
            self.frozen_ns = max(0, now_ns - self.frozen_at_ns)
            self.frozen_at_ns = self.asked = self.served_ns = 0

    def told(self) -> str:
        """Say what happened, "" when nothing did."""
        if not self.failures:
            return ""
        times = "once" if self.failures == 1 else f"{self.failures} times in a row"
        return f"failed to park {times}, the last time: {self.why}"
