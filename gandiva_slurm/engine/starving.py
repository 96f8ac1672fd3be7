"""Who is passed over although it is his user's turn: gangs whose GPUs are never free together. Pure.

Stride serves users by their passes and skips a gang whose GPUs are taken. Where gangs overlap in part, a
user may be served with others of his gangs for ever while the one he would run first never fits: he has his
share, it has nothing. Such a gang is counted, and after a while goes first, at its user's cost.
Opportunistic gangs are not: they go before nobody, and are promoted when they have waited long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gandiva_slurm.engine.local import Gang
from gandiva_slurm.model.ids import JobKey

#: Rounds in which a gang is passed over before it goes first: then others lose one in so many, under 5 %.
PASSED_OVER = 24


class Starving:
    """Counts, for each user, how often the gang of his lowest pass was passed over for another of his.

    A user is another one in each virtual cluster.
    """

    def __init__(self) -> None:
        self._skips: dict[JobKey, int] = {}

    def note(
        self,
        gangs: Iterable[Gang],
        passes: Mapping[int, int],
        can_run: Collection[JobKey],
        chosen: Collection[JobKey],
    ) -> None:
        """A round was decided; `passes` are those of the jobs."""
        mine: dict[tuple[str, str], list[Gang]] = {}
        for gang in gangs:
            if not gang.is_opportunistic and (gang.key in can_run or gang.key in chosen):
                mine.setdefault((gang.vc, gang.user), []).append(gang)
        skips = {}
        for own in mine.values():
            head = min(own, key=lambda gang: (passes.get(gang.key.job_id, 0), gang.order)).key
            if head not in chosen and any(gang.key in chosen for gang in own):
                skips[head] = self._skips.get(head, 0) + 1
            elif head not in chosen and head in self._skips:
                skips[head] = self._skips[head]
        self._skips = skips

    def starved(self) -> list[JobKey]:
        """Return the gangs that must go first now."""
        return [key for key, skips in self._skips.items() if skips >= PASSED_OVER]
