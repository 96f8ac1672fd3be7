"""Until when an incarnation may work on a node that may be cut off, so that no two ever do (ADR 0047).

Slurm gives a node up that it has not heard for SlurmdTimeout, and requeues what ran there; it keeps a
requeued job back for some time, and gandivactld starts it elsewhere. All times here are of the node's own
clock, and those of answers are when the question was asked: one that was long under way renews nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """`silence`: how long after it was heard last a node works on; Slurm waits longer to give it up.

    `kept_back`: for how long Slurm at least keeps a job back that it has requeued.
    """

    silence: int
    kept_back: int


class Told(NamedTuple):
    """What a node was told last, on which its right to let a job work rests."""

    #: Slurm hears this node (or it cannot be found out whether anybody hears it)
    heard: int
    #: all other nodes answered, none had heard of Slurm since it could have given this one up, and none
    #: begins a newer incarnation for as long as it is kept back
    together: int
    #: Slurm shows this incarnation on this node
    shown: int
    #: since when it stands still; 0: it does not
    halted: int = 0


def ends(told: Told, bounds: Bounds) -> int:
    """Return when an incarnation must stand still."""
    return max(told.heard + bounds.silence, told.together + bounds.kept_back, told.shown + bounds.kept_back)


def must_halt(told: Told, bounds: Bounds, now: int) -> bool:
    """True when it works and may not any more: another incarnation may."""
    return not told.halted and now >= ends(told, bounds)


def may_go_on(told: Told, bounds: Bounds, now: int) -> bool:
    """True when it stands still and need not: since it does, Slurm was seen to show it here.

    That the node is heard again is not enough: it may have been given up in between.
    """
    return 0 < told.halted < told.shown and now < ends(told, bounds)


def is_not_given_up(told: Told, bounds: Bounds, last_heard: int) -> bool:
    """True when nobody has heard of Slurm, or of its controller, since it could have given this node up.

    `last_heard`: when any of all nodes did last.
    """
    return not told.halted and last_heard < told.heard + bounds.silence
