"""What moves took and lost, from a job's runs: measured, or not told and said why not.

- CkptTime: from the order to save, or the signal, until the save was whole. Of a job that its ranks save
  the node tells when it was ordered and when all of it there was saved and parked (its mini-batch under way
  is in it); of one with a checkpoint of its own it lasts from the signal until its last process had ended.
  One that is requeued without a word (`self`), or had not begun (`anew`), saves nothing for it: 0. A save
  that failed is no move's. To that comes how long it ran, parked, to write itself to disk
  (`checkpoint_parked`), be it moved or not. One whose node was lost saved nothing either: it goes on from
  an image that was kept (`kept image`), and was as far as its node had told last.
- LostSteps: the mini-batches that a run's training had done at its end, less those from which the next run's
  went on. Both are the sum of what the training had done before its process, which attached ones and
  frameworks have from the checkpoint, others from the optimizer's own count, and of what it did in it. A run
  that was not moved and after which another went on was lost with its node, or requeued: how far it was is
  what its node told last. What a job lost that then begins anew is counted where nobody told of its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gandiva_slurm.accounting.days import NS_PER_S

#: Why something is not known.
NO_END = "its node has not told how far it was when it left"
NOT_ON = "it has not come to a mini-batch since its last move"
NO_COUNT = (
    "its training does not tell from which mini-batch it goes on: its optimizer counts no steps, or begins "
    "at 0 again, or the job has several trainings"
)
NOT_FITTING = "it counts more mini-batches behind a move than before it"
NO_TIME = "nobody saw both begin and end of its save"
#: Moves for which nothing is saved.
UNSAVED = ("self", "kept image", "anew")


@dataclass
class Moves:
    """Sums over the moves of one job; its runs are to be added in their order."""

    count: int = 0
    lost: int = 0
    save_ns: int = 0
    #: why it is not known what was lost, or how long it took; "" while it is
    why_lost: str = ""
    why_time: str = ""
    #: what the job moved by, each once
    by: list[str] = field(default_factory=list)
    #: the run before, if it has left to go on elsewhere
    left: Any = field(default=None, repr=False)
    #: the run before, if it has trained, or written itself while it was parked, and has not left
    cut: Any = field(default=None, repr=False)
    #: a run that was to go on from there, and has not begun: where its node is lost the next one goes on
    begins: Any = field(default=None, repr=False)

    def add(self, run: Any) -> None:
        """Take in a run, a row of `runs`; the one before it may have been moved to where this one is."""
        has_begun = run["begun"] >= 0 or run["steps"] or run["moved_ns"]
        before = self.left if self.left is not None else self.cut
        self.begins = None if before is None or has_begun else run
        if self.begins is None:
            self._add(run)

    def _add(self, run: Any) -> None:
        if self.left is not None:
            self.count += 1
            self.by += [self.left["moved_by"]] if self.left["moved_by"] not in self.by else []
            self._add_lost(self.left, run)
            self._add_time(self.left)
        elif self.cut is not None:
            self._add_cut(self.cut, run)
        is_moved = run["moved_ns"] > 0
        self.left = run if is_moved else None
        self.cut = run if (run["written_ns"] or run["steps"]) and not is_moved else None
        self.save_ns += run["written_ns"]

    def told(self) -> dict[str, Any]:
        """Return what a job's row says of its moves, when all runs are added."""
        if self.begins is not None:
            self._add(self.begins)
            self.begins = None
        return {
            "migrations": self.count,
            "moved_by": [how for how in self.by if how],
            "lost_steps": None if self.why_lost else self.lost,
            "lost_steps_why": self.why_lost,
            "ckpt_s": None if self.why_time else self.save_ns / NS_PER_S,
            "ckpt_why": self.why_time,
        }

    def _add_lost(self, left: Any, on: Any) -> None:
        if left["moved_by"] == "anew":
            return
        if left["reached"] < 0 and not left["gone_ns"]:
            self.why_lost = NO_END
        elif left["reached"] < 0 or (on["begun"] < 0 and on["steps"]):
            self.why_lost = NO_COUNT
        elif on["begun"] < 0:
            self.why_lost = NOT_ON
        elif on["begun"] > left["reached"]:
            self.why_lost = NOT_FITTING
        else:
            self.lost += left["reached"] - on["begun"]

    def _add_cut(self, cut: Any, on: Any) -> None:
        reached = max(cut["reached"], cut["begun"] + cut["steps"] if cut["begun"] >= 0 else -1)
        # One whose end was told and that begins anew was requeued for that.
        is_meant = bool(cut["gone_ns"]) and not cut["written_ns"]
        if reached >= 0 and on["begun"] >= 0:
            self.lost += max(0, reached - on["begun"]) if on["begun"] or not is_meant else 0
        elif not is_meant:
            self.why_lost = NO_COUNT if on["steps"] else NOT_ON

    def _add_time(self, left: Any) -> None:
        by, save_ns = left["moved_by"], left["save_ns"]
        if by == "signal":
            save_ns = max(0, left["gone_ns"] - left["signalled_ns"]) if left["signalled_ns"] else 0
        if by in UNSAVED:
            return
        if not save_ns:
            self.why_time = NO_TIME
        self.save_ns += save_ns
