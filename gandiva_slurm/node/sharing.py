"""What the ranks of two packed jobs are told while both hold their GPU: memory caps, and a duty.

Each gets its peak and half of what is left of the GPU's memory: neither can take what the other needs.
An opportunistic job beside a guaranteed one runs a part of the time only, as `policy.packing.duty` finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.model.job import RUNNING
from gandiva_slurm.node.charging import sharer
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import FIRST_STEPS, Resident
from gandiva_slurm.node.memory import card_bytes, memory_of
from gandiva_slurm.policy.packing.duty import FULL, next_duty
from gandiva_slurm.policy.packing.room import caps, room
from gandiva_slurm.wire import page as wire

#: A duty is judged by so long a time and so many mini-batches of the guaranteed job, at the least.
LEAST_NS, LEAST_STEPS = 2_000_000_000, 20


@dataclass(frozen=True)
class Terms:
    """How a job may use a GPU it shares: its duty in percent; a cap for each rank in bytes, 0 for none."""

    duty: int
    cap: int = 0


def tell(node: Node) -> None:
    """Bring all pages in line with who shares a GPU now; repeating it changes nothing."""
    for resident in node.residents.values():
        terms = terms_of(node, resident)
        for rank in resident.ranks:
            words = rank.look()
            duty, cap = (terms.duty, terms.cap) if terms is not None else (_ask(words), 0)
            spill = node.settings.spill_bytes if cap and resident.is_opportunistic else 0
            orders = ((wire.W_SPILL, spill), (wire.W_MEM_CAP, cap), (wire.W_THROTTLE, duty))
            if rank.is_alive and any(words[index] != value for index, value in orders):
                rank.page.write(orders)


def _ask(words: tuple[int, ...]) -> int:
    """Return the THROTTLE of a rank that is alone: one that has never told its memory is asked for it so."""
    return FULL if not words[wire.W_PEAK] and words[wire.W_SEQ] >= FIRST_STEPS else 0


def terms_of(node: Node, resident: Resident) -> Terms | None:
    """Return how it may use its GPU; None when it has it alone."""
    mate = sharer(node, resident)
    if mate is None:
        return None
    peaks = [memory_of(one).peak for one in (resident, mate)]
    card = card_bytes(node, resident)
    shares = caps(room(card, _held(node, resident, mate)), peaks) if card and all(peaks) else []
    return Terms(duty_of(node, resident), shares[0] // max(1, len(resident.ranks)) if shares else 0)


def duty_of(node: Node, resident: Resident) -> int:
    """Return the percent of the time it may run now."""
    mate = sharer(node, resident)
    return FULL if mate is None or not _is_paced(resident, mate) else resident.pacing.percent


def pace(node: Node, now: int) -> None:
    """Judge how the guaranteed ones do beside opportunistic ones, and change the duty of these."""
    for resident in node.residents.values():
        mate = sharer(node, resident)
        if mate is None or not _is_paced(resident, mate):
            continue
        if resident.state != RUNNING or mate.state != RUNNING:
            resident.pacing.since_ns = 0
        else:
            _judge(node, resident, mate, now)


def _judge(node: Node, resident: Resident, mate: Resident, now: int) -> None:
    pacing, steps, alone = resident.pacing, mate.steps(), mate.gauge.alone.rate
    ran, done = now - pacing.since_ns, steps - pacing.steps
    if not pacing.since_ns:
        pacing.steps, pacing.since_ns = steps, now
    elif alone and ran >= LEAST_NS and (done >= LEAST_STEPS or ran * alone >= 2e9 * LEAST_STEPS):
        percent = next_duty(pacing.percent, done * 1e9 / ran / alone)
        if percent != pacing.percent:
            fields = {"mate": mate.key.job_id, "kept": round(done * 1e9 / ran / alone, 4)}
            node.note("duty", resident, now, duty=percent, was=pacing.percent, **fields)
        pacing.percent, pacing.steps, pacing.since_ns = percent, steps, now


def _is_paced(resident: Resident, mate: Resident) -> bool:
    return resident.is_opportunistic and not mate.is_opportunistic


def _held(node: Node, *pair: Resident) -> list[int]:
    """What others keep on the GPU of a pair while they are parked."""
    gpus = set(pair[0].gpus)
    others = [other for other in node.residents.values() if other not in pair and other.ranks]
    return [memory_of(other).held for other in others if not gpus.isdisjoint(other.gpus)]
