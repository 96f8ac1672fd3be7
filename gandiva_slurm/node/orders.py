"""The order to train, as a gang needs it that may be anywhere in a park."""

from __future__ import annotations

from gandiva_slurm.node.ranks import RankSet
from gandiva_slurm.wire import page as wire

#: States of a rank that goes on only when it is told to.
_WAITING = (wire.HOLD, wire.RELEASING, wire.PARKED)


def order_run(group: RankSet, now: int, was_frozen: bool) -> None:
    """Let the ranks of a gang train, whatever they were told last."""
    gang = group.form()
    if gang.phase == "running" and any(view[wire.W_STATE] in _WAITING for view in group.views()):
        # Formed anew while some of its ranks were parked: one of them died, and its successor said hello.
        group.apply(gang.adopt(group.views(), now))
    if gang.phase in ("running", "resuming"):
        return
    if was_frozen and gang.phase == "committing":
        # A lone rank that was frozen before it came to the boundary: its order can be taken back.
        group.apply(gang.adopt(group.views(), now))
    if gang.phase != "resuming":
        group.apply(gang.resume(group.views(), now))
