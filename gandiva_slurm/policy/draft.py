"""Trying things on a board: whatever was tried can be taken back, to the last ticket.

A plan is drafted whole (a gang with all that must move for it), looked at, and kept or rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gandiva_slurm.policy.placement import Board, Need, Place, Stay, kept_key


class Draft:
    """A board and how to undo what was done to it since a mark."""

    def __init__(self, board: Board) -> None:
        self.board = board
        #: node, key, and the stay that was taken away; None: one was laid there
        self._done: list[tuple[str, int, Stay | None]] = []

    def mark(self) -> int:
        """Where a rollback leads back to."""
        return len(self._done)

    def rollback(self, mark: int) -> None:
        """Undo everything since the mark, last first."""
        while len(self._done) > mark:
            node, key, stay = self._done.pop()
            if stay is None:
                self.board.lift(node, key)
            else:
                self.board.lay(node, key, stay)

    def lift(self, job_id: int, nodes: Iterable[str]) -> None:
        """Take a job off its nodes."""
        for node in nodes:
            self._done.append((node, job_id, self.board.lift(node, job_id)))

    def put(self, need: Need, place: Place) -> None:
        """Give a job its place."""
        for part in place.parts:
            self._lay(part.node, need.job_id, need.stay(part.gpus))

    def keep(self, need: Need, place: Place) -> None:
        """Keep a place for a job that waits for it, or is elsewhere still."""
        for part in place.parts:
            here = self.board.sites[part.node].stays.get(need.job_id)
            stay = need.stay(part.gpus)
            if here is not None:
                more = tuple(gpu for gpu in part.gpus if gpu not in here.gpus)
                stay = replace(stay, gpus=more, memory_mib=0)
            if stay.gpus:
                self._lay(part.node, kept_key(need.job_id), stay)

    def leave(self, job_id: int, nodes: Iterable[str]) -> None:
        """A job leaves these nodes: its room there is taken until then, its load is gone."""
        for node in nodes:
            stay = self.board.lift(node, job_id)
            self._done.append((node, job_id, stay))
            self._lay(node, job_id, replace(stay, is_leaving=True))

    def _lay(self, node: str, key: int, stay: Stay) -> None:
        self.board.lay(node, key, stay)
        self._done.append((node, key, None))
