"""Where a policy of the controller decides which gangs hold GPUs (ADR 0037), this node obeys.

The plan says of each job whether it is on. While the controller is heard of, gangs that are not on have no
turn; when it is not, the node's own stride over all that live here goes on, as if no plan had said anything.
"""

from __future__ import annotations

from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.model.span import lease_ns
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.leaving import has_left


def is_led(node: Node) -> bool:
    """True while the controller's word on which gangs are on counts."""
    return node.clock.mono() - node.contact_ns < lease_ns(node.local.quantum_ns)


def is_out(node: Node, resident: Resident) -> bool:
    """True for a gang that is to have no turn: it is planned off, and has not to save itself."""
    return resident.is_on is False and not resident.leave.is_told and is_led(node)


def must_save(node: Node, resident: Resident) -> bool:
    """True for a parked gang that needs a turn now, to save itself and leave."""
    is_asked = resident.is_on is not None and resident.leave.is_told and not resident.leave.rest_quanta
    return is_asked and resident.state == SUSPENDED and not has_left(resident) and is_led(node)


def must_go(node: Node, resident: Resident) -> bool:
    """True for a gang that holds GPUs it is not to have any more."""
    return resident.state == RUNNING and is_out(node, resident)
