"""Leaving: a gang that is to be moved saves itself in a turn of its own, then stays parked until it is ended.

The controller says so in each plan, and may take it back. To save is to park with one word more on the ranks'
pages (W_TIER); what they have done stands there too (W_TIER_USED), so that a gandivad that is started anew
finds it. A save that fails costs the gang nothing but its time: it trains on, its next park is a plain one,
and in a later turn it is asked again. A gang that has left is in nobody's way and is not woken, unless no
controller is heard of for so long that nobody might ever requeue it.
"""

from __future__ import annotations

import signal

from gandiva_slurm.model.job import RUNNING, SUSPENDED, SUSPENDING
from gandiva_slurm.node import procs
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.image_state import OFF
from gandiva_slurm.node.jobs import Leave, Resident
from gandiva_slurm.node.pages import error_text, unmoved_text
from gandiva_slurm.node.ranks import have_saved
from gandiva_slurm.wire import page as wire

#: Without a plan for so long nobody leaves: those that have go back to taking turns.
HEARD_NS = 60_000_000_000
NS_PER_S = 1_000_000_000
#: How a job moves that goes on from an image of its processes, in a word.
IMAGE = "image"
#: And one that has not begun: it is started elsewhere, as if it had been put there first.
ANEW = "anew"
#: How long a job whose image cannot be restored here waits to be started elsewhere.
UNFIT_NS = 60_000_000_000
#: Quanta without another try after a save that failed: so the next park, if others wait, does without one.
REST_QUANTA = 2
#: The shortest time that a rank is given to come to its boundary.
LEAST_OVERRUN_NS = 1_000_000_000
#: Where ranks stand that have come to the boundary they were to save themselves at.
_CAME = (wire.RELEASING, wire.PARKED, wire.FAILED)


def tell(resident: Resident, is_leaving: bool, own_save_s: int = 0) -> None:
    """Take the plan's word."""
    leave = resident.leave
    if (leave.is_told, leave.own_save_s) != (is_leaving, own_save_s):
        resident.leave = Leave(is_leaving, is_saving=leave.is_saving, own_save_s=own_save_s)


def has_floor(node: Node, resident: Resident) -> bool:
    """True while it holds its GPUs to save itself upon a signal of its own: it is not asked to park.

    Where no controller is heard of this ends, as all leaving does, when its time is over as well.
    """
    leave, silent_ns = resident.leave, node.clock.mono() - node.contact_ns
    may_keep = leave.is_told and leave.own_save_s > 0 and resident.state == RUNNING
    return may_keep and silent_ns <= HEARD_NS + leave.own_save_s * NS_PER_S


def is_movable(resident: Resident) -> bool:
    """True when it, or its part here, can save itself and go on elsewhere: all its ranks are attached."""
    return resident.has_client() and all(rank.look()[wire.W_KIND] == wire.KIND_RUN for rank in resident.ranks)


def is_untouched(resident: Resident) -> bool:
    """True when it may begin elsewhere as well: nothing of its batch script has run, and no other step came.

    Not so of a gang over nodes, whose batch script runs to start its tasks.
    """
    is_still = resident.part is None and not resident.image.restoring
    return not resident.has_begun and resident.state == SUSPENDED and is_still


def is_unfit(node: Node, resident: Resident) -> bool:
    """True while a job that this node could not restore waits to be started elsewhere (ADR 0071)."""
    image = resident.image
    return bool(image.unfit) and node.clock.mono() - image.unfit_ns < UNFIT_NS


def is_imageable(resident: Resident) -> bool:
    """True when it goes on elsewhere from an image of its processes, for it cannot save itself (ADR 0054)."""
    image = resident.image
    return not image.why_not and (resident.has_client() or image.is_blind) and not is_movable(resident)


def unmoved(resident: Resident) -> str:
    """Say why it cannot be moved, by its ranks' own word; "" when it can, or none of them tells."""
    if is_movable(resident) or is_imageable(resident) or is_untouched(resident):
        return ""
    told = next((text for rank in resident.ranks if (text := unmoved_text(rank.look()))), "")
    why = resident.image.why_not
    no_image = f"no image of its processes can be made: {why}" if why and why != OFF else ""
    return "; ".join(filter(None, (told, no_image)))


def framework(resident: Resident) -> str:
    """Return the framework that saves it, by its ranks' word; "" where its script does, or they differ."""
    if is_untouched(resident):
        return ANEW
    if is_imageable(resident):
        return IMAGE
    told = {rank.look()[wire.W_FRAMEWORK] for rank in resident.ranks} if is_movable(resident) else {0}
    number = told.pop()
    return wire.FRAMEWORKS[number] if not told and number < len(wire.FRAMEWORKS) else ""


def is_elastic(resident: Resident) -> bool:
    """True when what it saves, or has saved to leave, can be loaded by another number of ranks."""
    return is_movable(resident) and all(rank.look()[wire.W_ELASTIC] == 1 for rank in resident.ranks)


def saved_s(node: Node, resident: Resident) -> int:
    """Return when the newest file of its own checkpoints was written, by its ranks' word; 0: not known."""
    told = max((rank.look()[wire.W_FILE_S] for rank in resident.ranks), default=0)
    return told if told <= node.clock.real(node.clock.mono()) // NS_PER_S else 0


def has_left(resident: Resident) -> bool:
    """True when it was told to leave, is parked, and every rank of it has saved itself; or has not begun."""
    if not resident.leave.is_told or resident.state != SUSPENDED:
        return False
    if is_untouched(resident):
        return True
    if resident.image.is_whole or resident.is_frozen:
        return resident.image.is_whole
    return is_movable(resident) and have_saved(resident.ranks)


def end(node: Node, resident: Resident) -> None:
    """End what Slurm has told to end, and goes on elsewhere: what is frozen would wait for SIGKILL.

    That comes when KillWait is over, and in a control group of version 1 it ends nothing that is frozen.
    """
    tasks = [pid for stepd in resident.processes.stepds for pid in procs.children(stepd.pid)]
    if any(map(procs.is_told_to_end, tasks)):
        for proc in resident.processes.members():
            procs.send(proc.id, signal.SIGKILL)
        node.freezer.open(resident)


def is_out(node: Node, resident: Resident) -> bool:
    """True when it is to have no turn now: it is to save itself, does so, or has left."""
    leave = resident.leave
    if resident.image.keeps_still or is_unfit(node, resident):
        return True
    if not is_heard_to_leave(node, resident):
        return False
    if resident.state == RUNNING:
        can = is_movable(resident) or is_imageable(resident)
        return not leave.own_save_s and not leave.rest_quanta and can
    if is_untouched(resident):
        return not leave.own_save_s
    if is_imageable(resident):
        return not leave.own_save_s and not leave.rest_quanta
    if resident.state == SUSPENDING:
        return leave.is_saving
    # Slurm may be ending its ranks one by one: those that are left must not train on.
    return resident.state == SUSPENDED and not resident.is_frozen and have_saved(resident.ranks)


def is_heard_to_leave(node: Node, resident: Resident) -> bool:
    """True while a controller that is heard of has it leave."""
    return resident.leave.is_told and node.clock.mono() - node.contact_ns <= HEARD_NS


def order_tier(resident: Resident, is_saving: bool, is_writing: bool = False) -> None:
    """Write what the park that is about to be ordered asks of the ranks besides.

    `is_saving`: to save themselves, for they are to leave; `is_writing`: to write themselves, parked.
    """
    resident.leave.is_saving = is_saving and is_movable(resident)
    resident.is_writing = is_writing and not resident.leave.is_saving
    tier = wire.TIER_BEHIND if resident.is_writing else wire.TIER_HOLD
    tier = wire.TIER_REQUEUE if resident.leave.is_saving else tier
    for rank in resident.ranks:
        if rank.is_alive:
            rank.page.write([(wire.W_TIER, tier)])


def park_deadline_ns(node: Node, resident: Resident) -> int:
    """How long a park may take: a save has time of its own."""
    settings = node.settings
    return settings.park_deadline_ns + resident.leave.is_saving * settings.save_deadline_ns


def is_late(node: Node, resident: Resident, now: int) -> bool:
    """True when a park has taken too long; those of parts are timed where their orders come from."""
    bound_ns = park_deadline_ns(node, resident)
    if resident.is_solo and not resident.leave.is_saving and not _is_releasing(resident):
        bound_ns = min(bound_ns, overrun_ns(node, resident))
    return resident.part is None and now - resident.ordered_ns > bound_ns


def overrun_ns(node: Node, resident: Resident) -> int:
    """How long a lone rank may take to its next boundary, whatever its page says, before it is frozen.

    Twice what its mini-batches have taken in this turn, by this node's clock; half a quantum at the least.
    """
    step_ns = max((group.observed_step_ns(resident.ordered_ns) for group in resident.sets), default=0)
    return max(LEAST_OVERRUN_NS, node.local.quantum_ns // 2, 2 * step_ns)


def _is_releasing(resident: Resident) -> bool:
    """True while it gives its memory back, by its own word: that counts until it once had to be frozen."""
    releasing = [rank for rank in resident.ranks if rank.look()[wire.W_STATE] == wire.RELEASING]
    return bool(releasing) and not resident.counts.off_boundary


def take_failure(node: Node, resident: Resident, why: str) -> bool:
    """Note that a save failed; False when it was the park that did, which is another matter."""
    leave = resident.leave
    pages = [rank.look() for rank in resident.ranks if rank.is_alive]
    if not leave.is_saving or not any(page[wire.W_STATE] in _CAME for page in pages):
        leave.error = ""  # the last failure is another one
        return False
    errors = {error_text(page) for page in pages if page[wire.W_STATE] == wire.FAILED}
    why = "; ".join(sorted(filter(None, errors))) or why
    resident.leave = Leave(leave.is_told, rest_quanta=REST_QUANTA, error=why, own_save_s=leave.own_save_s)
    node.note("unsaved", resident, why=why)
    return True


def arrive(node: Node, resident: Resident, park_ns: int) -> None:
    """It has parked, which took so long: if it was to save itself, all of it must have."""
    if not resident.leave.is_saving:
        return
    if have_saved(resident.ranks):
        resident.leave = Leave(resident.leave.is_told, save_ns=park_ns)
        node.note("saved", resident)
    else:
        take_failure(node, resident, "a rank parked and did not save itself")


def told(resident: Resident) -> str:
    """Say how its leaving stands, "" when there is nothing to say."""
    leave = resident.leave
    if leave.error and leave.is_told:
        return f"save failed: {leave.error}; tried again in its next turn"
    if leave.is_told and leave.own_save_s and resident.state == RUNNING:
        return "keeps its turn, to save itself upon its signal"
    if resident.state == SUSPENDING and leave.is_saving:
        return "saves itself, to be moved"
    if resident.image.unfit:
        return f"its image cannot be restored here: {resident.image.unfit}"
    if resident.image.keeps_still:
        is_whole = resident.image.is_whole
        if resident.image.is_kept:
            return "an image of its processes is being made, in case its node is lost"
        return f"an image of its processes is {'made' if is_whole else 'being made'}, to be moved"
    if not has_left(resident):
        return ""
    if is_untouched(resident):
        return "has not begun, and is started elsewhere"
    return "has saved itself, to be moved"
