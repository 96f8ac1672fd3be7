"""The way to Slurm: above this file Slurm is known by these calls and those of `slurm.limits` (ADR 0004).

`slurm.commands` implements it by Slurm's own commands; another back end must pass the same suite,
`tests/contract`. Every call has a deadline. SlurmUnreachable means that nobody answered (an act may
or may not have been done: the next snapshot tells); SlurmRefused carries Slurm's own sentence, and
its subclass SlurmBusy means that the same call may be granted a moment later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import Snapshot
from gandiva_slurm.slurm.accounts import Person


class SlurmPort(Protocol):
    """What the controller and `gandiva check` ask of Slurm."""

    async def snapshot(self, with_associations: bool) -> Snapshot:
        """Return one coalesced picture of our partitions.

        It holds finished jobs too, for as long as slurmctld remembers them. `associations` is None when
        they were not asked for or slurmdbd is away. SlurmUnreachable when no whole picture was had:
        the caller keeps the old one.
        """

    async def start(self, job_id: int, nodes: Sequence[str]) -> None:
        """Release a held job to start now on just these nodes; SlurmRefused, SlurmUnreachable."""

    async def hold(self, job_id: int) -> None:
        """Hold a job that waits. A running one would be held too, and lose its eligible time (ADR 0003)."""

    async def unhold(self, job_id: int) -> None:
        """Take back the hold of a job that runs: one that waits would be started by Slurm."""

    async def requeue(self, job_id: int) -> None:
        """Put a job that runs back into the queue; one that waits, ends or has ended is left as it is.

        SlurmRefused where it was submitted with --no-requeue, or Slurm does not know it.
        """

    async def requeue_ended(self, job_id: int) -> None:
        """Put a job that has ended back into the queue; SlurmRefused where Slurm has forgotten it."""

    async def signal(self, job_id: int, name: str, to_batch: bool) -> None:
        """Send a running job a signal, as its own --signal is sent: to its batch shell, or to its steps."""

    async def resize(self, job_id: int, gpus: int, nodes: int = 0) -> None:
        """Have a held job ask for this number of GPUs; as many tasks as GPUs stay as many.

        `nodes`: and for that number of nodes, with as many of the GPUs on each; 0: for the one that it has.
        Nothing is done where it asks for that already. SlurmRefused where it asked for its GPUs by another
        flag than --gres or --gpus-per-node: Slurm changes no other.
        """

    async def ping(self) -> bool | None:
        """True when a slurmctld answers; False when none does; None when it could not be asked."""

    async def hears(self, node: str) -> bool:
        """True when slurmctld answers and has heard of this node's slurmd, by its own pings; GandivaError."""

    async def shown(self, node: str) -> frozenset[JobKey]:
        """Return the incarnations that Slurm shows on a node, those that end included; GandivaError."""

    async def version(self) -> str:
        """Slurm's version, as 22.05.8."""

    async def slurm_config(self) -> Mapping[str, str]:
        """Slurm's running configuration, key to value, as `scontrol show config` prints it."""

    async def people(self) -> tuple[Person, ...]:
        """Slurm's operators and coordinators; GandivaError when slurmdbd is away."""
