"""From one record of `sinfo --json` (22.05) or `scontrol show nodes --json` to the node of the model."""

from __future__ import annotations

from gandiva_slurm.model.snapshot import SlurmNode
from gandiva_slurm.slurm import gres, states
from gandiva_slurm.slurm.fields import Fields


def read_node(record: Fields) -> SlurmNode:
    """Return the node; SlurmUnreachable names a field that is missing or of another form.

    Slots of several GPU types on a node count together, under the first type; `gandiva check` refuses that.
    """
    slots = gres.gpus(record.text("gres"))
    return SlurmNode(
        name=record.text("name"),
        # Base state and flags are one list since 23.02.
        state=states.node_state([*record.words("state"), *_flags(record)]),
        gpu_type=slots[0][0] if slots else "",
        slots=sum(count for _, count in slots),
        slots_used=sum(count for _, count in gres.gpus(record.text("gres_used"))),
        cpus=record.number("cpus"),
        memory_mib=record.number("real_memory"),
        address=record.text("address"),
        partitions=record.words("partitions"),
        reason=record.text("reason"),
    )


def _flags(record: Fields) -> tuple[str, ...]:
    return record.words("state_flags") if record.is_text("state") else ()
