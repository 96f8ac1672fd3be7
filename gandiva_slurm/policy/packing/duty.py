"""How much of the time an opportunistic training may run beside a guaranteed one (AntMan). Pure.

It begins small and grows for as long as the guaranteed one is not harmed. What it does to the guaranteed one
is taken to be in proportion to its duty, so that one measurement tells where the bound is.
"""

from __future__ import annotations

#: What a guaranteed training keeps at the least of its rate alone (AntMan's bound: 1.05 times its step time).
KEPT = 1 / 1.05
#: Duties in percent: at first, the least, the most.
FIRST, LEAST, FULL = 10, 5, 100
#: A measurement may cut the duty to this part at once, and aims at this part of what is allowed.
STEEPEST, AIM = 0.25, 0.75


def next_duty(percent: int, kept: float) -> int:
    """Return the next duty, after the guaranteed one has kept this part of its rate at the present one."""
    allowed, loss = 1 - KEPT, 1 - kept
    if loss > allowed:
        return max(LEAST, min(percent - 1, int(percent * max(STEEPEST, AIM * allowed / loss))))
    if loss < allowed / 2:
        return min(FULL, percent + max(1, percent // 4))
    return percent
