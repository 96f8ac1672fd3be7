"""How spans' changes of hands go: when to ask again, and who refused to park for too long (ADR 0018). Pure.

Held times are those of one part: what all parts of a span held together, divided by their number.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import FREEZE, LEAVE, OUT
from gandiva_slurm.slicing.refusal import Refusal

#: A span that failed to change hands so often in a row is asked in every fourth round only.
PATIENCE, PAUSE_ROUNDS = 3, 4
#: Rounds without another try after a save that failed: so the next park, if others wait, does without one.
REST_ROUNDS = 2


@dataclass
class Luck:
    """Of one span: failures in a row and why the last one, rounds to wait, its failed parks.

    `held_ns`: by all of its parts since the last look; `blind_ns`: without all of its ranks, since they were
    there last; `is_over`: others have borne its failed parks for long enough; `rest`: rounds in which it is
    not asked to save itself.
    """

    failures: int = 0
    pause: int = 0
    why: str = ""
    refusal: Refusal = field(default_factory=Refusal)
    held_ns: int = 0
    blind_ns: int = 0
    was_waited_for: bool = False
    is_over: bool = False
    rest: int = 0

    @property
    def is_refusing(self) -> bool:
        """True when its next park is likely to fail as the last one did."""
        return self.refusal.failures > 0 and not self.is_over

    def tried(self, move: str, error: str, now_ns: int) -> None:
        """A change of hands is over; FREEZE is a way out that does not end a refusal, LEAVE a failed save."""
        if move == LEAVE:
            self.rest, self.why = REST_ROUNDS, error
            return
        self.failures = self.failures + 1 if error else 0
        # The round to come counts.
        self.pause = 0 if not error else 1 if self.failures < PATIENCE else PAUSE_ROUNDS
        self.why = error
        if move == FREEZE and not error:
            self.refusal.freeze(now_ns)
            self.is_over = False
        elif move == OUT and error:
            self.refusal.fail(error, now_ns)
        elif move == OUT:
            self.refusal, self.is_over = Refusal(), False

    def look(self, parts: int, has_all_ranks: bool, now_ns: int) -> None:
        """Take into account what it has held since the last look; it is on."""
        held_ns = self.held_ns // parts
        self.refusal.thaw(now_ns - held_ns)
        self.refusal.hold(held_ns, held_ns if self.was_waited_for else 0)
        self.blind_ns = 0 if has_all_ranks else self.blind_ns + held_ns

    def told(self) -> str:
        """Say why it is, or is to be, frozen; "" when it is not."""
        return f"frozen where it is: {self.refusal.told()}" if self.refusal.is_frozen or self.is_over else ""


class Lucks:
    """Of all spans of a domain."""

    def __init__(self) -> None:
        self._of: dict[JobKey, Luck] = {}

    def of(self, key: JobKey) -> Luck:
        """Return a span's."""
        return self._of.setdefault(key, Luck())

    def keep(self, keys: Collection[JobKey]) -> None:
        """Forget all others."""
        self._of = {key: luck for key, luck in self._of.items() if key in keys}

    def end_round(self) -> None:
        """A quantum is over."""
        for luck in self._of.values():
            luck.pause, luck.rest = max(0, luck.pause - 1), max(0, luck.rest - 1)

    def take(self, others: Lucks) -> None:
        """Take over what another domain knew; what is known here stays."""
        self._of = others._of | self._of

    def press(self, on: Mapping[JobKey, int], waiting: int, overdue: int, bound_ns: int) -> None:
        """Tell those that are on which GPUs are waited for, and by whom that has reached his own bound.

        GPUs are bits, as in a gang's mask. After this, who has been borne for too long `is_over`.
        """
        for key, luck in self._of.items():
            mask = on.get(key, 0)
            luck.held_ns, luck.was_waited_for = 0, bool(waiting & mask)
            borne_ns = bound_ns if luck.was_waited_for else 0
            luck.is_over = luck.refusal.is_over(borne_ns, is_pressed=bool(overdue & mask))


def union(masks: Iterable[int]) -> int:
    """Return all GPUs of these masks as one."""
    return functools.reduce(operator.or_, masks, 0)
