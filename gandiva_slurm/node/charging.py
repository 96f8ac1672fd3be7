"""What a gang that holds its GPUs is charged for, and how long others have borne that it does not park."""

from __future__ import annotations

from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.leaving import is_out

#: A park's bound is kept by deciding this much before it, or a tenth of the bound when that is less.
LEAD_NS = 1_000_000_000


def charge(node: Node, resident: Resident, now: int) -> None:
    """Charge what a gang has held since it was charged last; what is past its quantum's end, as overrun.

    Whenever its mate comes or goes it is charged first: in between it shares its GPUs throughout or not.
    """
    held = now - resident.charged_ns
    if held > 0:
        _count_refused(node, resident, now)
        start = resident.overrun_from_ns
        over = 0 if start is None else now - max(start, resident.charged_ns)
        is_shared = sharer(node, resident) is not None
        node.local.charge(resident.key, held, over, is_shared)
        resident.charged_ns = now
        resident.counts.held_ns += held
        resident.counts.shared_ns += held * is_shared
        resident.counts.over_ns += max(0, over)
        resident.counts.blind_ns = 0 if resident.has_client() else resident.counts.blind_ns + held
        resident.give_up_waiting(node.settings.client_wait_ns)
    look_at_refusal(node, resident, now)


def charge_awake(node: Node, resident: Resident, now: int) -> None:
    """Charge what a gang has run without its GPUs, as if it had held them past its turn."""
    if resident.awake_until_ns:
        resident.counts.written_ns += resident.is_writing * (now - resident.awake_from_ns)
        charge_ran(node, resident, now - resident.awake_from_ns)
        resident.awake_from_ns = now


def charge_ran(node: Node, resident: Resident, ran_ns: int) -> None:
    """Charge a gang that holds no GPU for so much time in which it was seen to run."""
    counts = resident.counts
    node.local.charge(resident.key, ran_ns, ran_ns)
    counts.held_ns += ran_ns
    counts.over_ns += ran_ns
    counts.awake_ns += ran_ns


def charge_elsewhere(node: Node, resident: Resident, used_ns: int) -> None:
    """Charge a gang for so much time on one GPU that was not given to it."""
    node.local.charge_work(resident.key, resident.user, used_ns, used_ns, resident.vc)
    # Of each of its GPUs, as all that is counted as held.
    each_ns = used_ns // len(resident.gpus)
    resident.counts.held_ns += each_ns
    resident.counts.over_ns += each_ns


def own_ns(node: Node, resident: Resident, now: int) -> int:
    """Return how long a gang has held its GPUs here by now; of a time in which it shared them half."""
    counts = resident.counts
    since = max(0, now - resident.charged_ns) if resident.holds else 0
    shared = counts.shared_ns + (since if since and sharer(node, resident) is not None else 0)
    return counts.held_ns + since - shared // 2


def sharer(node: Node, resident: Resident) -> Resident | None:
    """Return who holds the same GPUs at this moment, by the books."""
    hold = node.ledger.open.get(resident.key)
    if hold is None or not hold.shared_with:
        return None
    others = (node.residents.get(key) for key in node.ledger.open if key.job_id == hold.shared_with)
    return next(filter(None, others), None)


def look_at_refusal(node: Node, resident: Resident, now: int) -> None:
    """Decide whether others have borne a gang's failed parks for too long; of a span the controller does."""
    waiting = _waiting(node, resident) if resident.refusal.asked and resident.part is None else []
    # One that is stopped before it has begun is in nobody's way for longer.
    is_pressed = any(other.is_frozen and due_ns(node, other) <= now for other in waiting)
    bound_ns = node.settings.refusal_bound_ns if waiting else 0
    resident.is_refusing = resident.refusal.is_over(bound_ns, is_pressed=is_pressed)


def due_ns(node: Node, resident: Resident) -> int:
    """When to decide about a parked gang, so that it is back before its bound is over."""
    settings = node.settings
    bound_ns = resident.bound_ns(settings.max_park_ns, settings.freeze_bound_ns, settings.quantum_ns)
    return bound_ns - min(LEAD_NS, (bound_ns - resident.since_ns) // 10)


def _count_refused(node: Node, resident: Resident, now: int) -> None:
    """Count what it has held since it was charged last; nothing of it is refused while nobody waited."""
    refusal, refused_ns = resident.refusal, 0
    waiting = _waiting(node, resident) if refusal.failures else []
    if waiting:
        since_ns = min(other.since_ns for other in waiting)
        refused_ns = max(0, now - max(resident.charged_ns, refusal.since_ns, since_ns))
    refusal.hold(now - resident.charged_ns, refused_ns)


def _waiting(node: Node, resident: Resident) -> list[Resident]:
    """Return those that want GPUs which this one has."""
    others = [other for other in node.residents.values() if not other.holds and other.may_have_turns]
    others = [other for other in others if other.key != node.local.mate_of(resident.key)]
    others = [other for other in others if not set(other.gpus).isdisjoint(resident.gpus)]
    return [other for other in others if not is_out(node, other)]
