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
        state=states.node_state([*record.words("state"), *_flags(record), *_unregistered(record)]),
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


def _unregistered(record: Fields) -> tuple[str, ...]:
    """UNKNOWN of a node whose slurmd slurmctld has not heard since it started itself, some four seconds long.

    Slurm 22.05 calls it IDLE all the same as soon as a job on it ends, and gives the next job none of its
    GPUs: that job's srun then fails with "Invalid generic resource (gres) specification". pyslurm, which is
    of later releases, does not tell the time.
    """
    is_told = record.has("slurmd_start_time")
    return ("UNKNOWN",) if is_told and not record.number("slurmd_start_time") else ()
