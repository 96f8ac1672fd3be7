"""Until when an incarnation may work on a node that may be cut off, so that no two ever do (ADR 0048).

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

    #: Slurm hears this node and shows this incarnation there (or cannot be asked)
    heard: int
    #: all other nodes answered, none had heard of Slurm since it could have given this one up, and none
    #: begins a newer incarnation meanwhile
    together: int
    #: Slurm shows this incarnation on this node
    shown: int


def may_work(told: Told, bounds: Bounds, now: int) -> bool:
    """False when it must stand still: another incarnation may work."""
    ends = (told.heard + bounds.silence, told.together + bounds.kept_back, told.shown + bounds.kept_back)
    return now < max(ends)


def was_not_given_up(heard: int, bounds: Bounds, now: int) -> bool:
    """True when Slurm cannot have given the node up since it was heard last: it has not waited for so long.

    Else that it is heard again says nothing of its jobs: Slurm has to show them there.
    """
    return now - heard < bounds.silence // 2


def is_nobodys(heard: int, bounds: Bounds, last_heard: int) -> bool:
    """True when no node has heard of Slurm, or of its controller, since it could have given this one up.

    `last_heard`: when any of all nodes did last.
    """
    return last_heard < heard + bounds.silence
