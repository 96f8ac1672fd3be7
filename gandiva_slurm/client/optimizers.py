"""Boundaries with no change to the script: the return of the outermost Optimizer.step outside backward.

`install` is called when torch.optim.optimizer has just been imported (client/hook). A step nested in another
(a subclass calling super().step(), a wrapper, ZeRO) is none, nor is one inside backward: every boundary
counted here is one where a rank may park.
"""

from __future__ import annotations

import os
import sys
import weakref
from threading import get_ident
from types import CodeType, FrameType, ModuleType
from typing import Any, Callable, Optional

from gandiva_slurm.client import start
from gandiva_slurm.client.rank import Rank, this_rank
from gandiva_slurm.client.segments import prefer_expandable
from gandiva_slurm.wire.page import KIND_HOOK

Hook = Callable[..., None]

_installed = False


def install(module: ModuleType) -> None:
    """Hook every optimizer of `torch.optim.optimizer`, once; a torch without global hooks is left alone."""
    global _installed
    rank = this_rank()
    if _installed or not hasattr(module, "register_optimizer_step_post_hook"):
        return
    _installed = True
    if os.environ.get("GANDIVA_TRIAL"):
        from gandiva_slurm.client import trial

        trial.watch(module, os.environ["GANDIVA_TRIAL"])
    if rank is None:
        return
    prefer_expandable(module.torch)
    watch = StepWatch(rank, getattr(module.torch._C, "_current_graph_task_id", None))
    module.register_optimizer_step_pre_hook(watch.before)
    module.register_optimizer_step_post_hook(watch.after)


def _untraced(function: Hook) -> Hook:
    # torch.compile must call a hook, not trace into it; the attribute is the one torch.compiler.disable sets.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


class StepWatch:
    """Sees every Optimizer.step begin and end, and passes the outermost ends on to the rank."""

    def __init__(self, rank: Rank, backward_id: Optional[Callable[[], int]]) -> None:
        """`backward_id` answers -1 outside backward."""
        self._rank = rank
        self._backward_id = backward_id or (lambda: -1)
        self._depth = 0
        self._first: Callable[[], Any] = lambda: None

    @_untraced
    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step begins."""
        owner = self._rank.owner
        if owner is None or owner == get_ident():
            self._depth += 1

    @_untraced
    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step has returned: a boundary if outermost, outside backward, and nobody else marks them."""
        rank = self._rank
        owner = rank.owner
        if owner is not None and owner != get_ident():
            return
        if id(optimizer) not in rank.seen:
            rank.see(optimizer)
        self._depth = depth = self._depth - 1
        if depth and self._is_nested(sys._getframe(1)):
            return
        if rank.kind == KIND_HOOK and self._backward_id() == -1:
            rank.boundary(1 if self._first() is optimizer else self._first_has_changed(optimizer))

    def _is_nested(self, caller: FrameType) -> bool:
        # A step that raised never came here, so the depth alone may be wrong for ever: ask the stack.
        code: CodeType = caller.f_code
        frame = caller.f_back
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back
        self._depth = 0
        return False

    def _first_has_changed(self, optimizer: Any) -> int:
        """Count the mini-batches by the first optimizer seen; when it is gone, by the next."""
        if self._first() is not None:
            return 0
        self._first = weakref.ref(optimizer)
        self._rank.begin_at(None if self._rank.seq else steps_before(optimizer))
        return 1


def steps_before(optimizer: Any) -> Optional[int]:
    """Return the steps that an optimizer counts, all but the one it has just done; None where none are known.

    It has its count from what its script has loaded. A job that was started again and counts from 0 has begun
    anew, or has not saved its optimizer: which, nobody knows. A count on a device is left alone.
    """
    try:
        counts = [state["step"] for state in optimizer.state.values() if "step" in state]
        counts = [int(count) for count in counts if str(getattr(count, "device", "cpu")) == "cpu"]
    except Exception:  # another's object
        return None
    before = max(counts, default=0) - 1
    return before if before > 0 or (before == 0 and not start.restart_count()) else None
