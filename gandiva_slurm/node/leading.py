"""Where a policy of the controller decides which gangs hold GPUs (ADR 0037), this node obeys.

The plan says of each job whether it is on. While the controller is heard of, gangs that are not on have no
turn; when it is not, the node's own stride over all that live here goes on, as if no plan had said anything.
So it does for a quantum where a turn is over and the next one has not come in time. It goes on from where the
policy's passes stood: users and jobs have then what they would have had.
"""

from __future__ import annotations

import logging

from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.model.span import lease_ns
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.leaving import has_left
from gandiva_slurm.node.memory import lack
from gandiva_slurm.wire.messages import NodePlan

MS = 1_000_000
#: A turn that is over is waited out for this part of a quantum, and for no less than this time.
LATE_PART = 10
LATE_NS = 500_000_000

log = logging.getLogger(__name__)


def is_led(node: Node) -> bool:
    """True while the controller's word on which gangs are on counts."""
    now, led = node.clock.mono(), node.led
    is_alone = led.missed == led.turn or now < led.alone_until_ns
    return now - node.contact_ns < lease_ns(node.local.quantum_ns) and not is_alone


def hear(node: Node, plan: NodePlan) -> None:
    """Take what a plan says of its turn."""
    led, turn = node.led, (plan.epoch_ns, plan.turn_ns)
    if plan.turn_left_ms is not None:
        led.end_ns = node.clock.mono() + plan.turn_left_ms * MS
    if turn != led.turn:
        led.turn = turn
        led.end_ns = None if plan.turn_left_ms is None else led.end_ns
        node.local.adopt({job_id: (of_user, of_job) for job_id, of_user, of_job in plan.ahead})


def late_ns(node: Node) -> int | None:
    """When the node no longer waits for the next turn; None: it does not wait for any."""
    led = node.led
    is_waiting = led.end_ns is not None and led.missed != led.turn and is_led(node)
    if not is_waiting or all(resident.is_on is None for resident in node.residents.values()):
        return None
    assert led.end_ns is not None
    return led.end_ns + max(LATE_NS, node.local.quantum_ns // LATE_PART)


def look(node: Node, now: int) -> None:
    """Go by the own stride for a quantum where the next turn is late."""
    late = late_ns(node)
    if late is not None and late <= now:
        node.led.missed, node.led.alone_until_ns = node.led.turn, now + node.local.quantum_ns
        log.info("the controller's next turn is late: this node goes by its own stride for a quantum")


def is_out(node: Node, resident: Resident) -> bool:
    """True for a gang that is to have no turn: it is planned off, and has not to save itself.

    Where one that is planned on does not fit in beside what others keep of a GPU's memory, these go on.
    """
    is_off = resident.is_on is False and not resident.leave.is_told and is_led(node)
    return is_off and not _is_left_over(node, resident)


def _is_left_over(node: Node, resident: Resident) -> bool:
    gpus = {*resident.gpus}
    planned = [other for other in node.residents.values() if other.is_on and not gpus.isdisjoint(other.gpus)]
    return any(not other.holds and lack(node, other) for other in planned)


def must_save(node: Node, resident: Resident) -> bool:
    """True for a parked gang that needs a turn now, to save itself and leave."""
    is_asked = resident.is_on is not None and resident.leave.is_told and not resident.leave.rest_quanta
    return is_asked and resident.state == SUSPENDED and not has_left(resident) and is_led(node)


def must_go(node: Node, resident: Resident) -> bool:
    """True for a gang that holds GPUs it is not to have any more."""
    return resident.state == RUNNING and is_out(node, resident)
