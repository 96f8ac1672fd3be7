"""Which back end serves the port: pyslurm where it works with this slurmctld, else Slurm's own commands.

pyslurm follows the layout of one release's structures, and Debian's libslurm has no version in its name:
one built for other headers may read rubbish and not say so. So it is believed only when its release and
slurmctld's fit, and when its first picture agrees with that of the commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.model.errors import GandivaError, SlurmUnreachable
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import Snapshot
from gandiva_slurm.slurm.accounts import Person
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.slurm.pyslurm_port import PyslurmPort
from gandiva_slurm.slurm.reader import release
from gandiva_slurm.slurm.run import Commands

log = logging.getLogger(__name__)

AUTO, PYSLURM, COMMANDS = "auto", "pyslurm", "commands"
#: Releases of pyslurm that were tried on another release of Slurm, built as docs/pyslurm.md tells.
TRIED = frozenset({((25, 11), (26, 5))})
#: After so many pictures in a row that were not had, the choice is made anew.
PATIENCE = 3
#: What does not change between two looks at a job or a node.
STEADY_OF_JOB = ("user", "uid", "account", "name", "submit_s", "array_job_id", "array_task_id", "batch")
STEADY_OF_NODE = ("gpu_type", "slots", "cpus", "memory_mib", "address")


@dataclass(frozen=True)
class Choice:
    """The back end in use. `slurm` is slurmctld's version, `why` why it is not pyslurm."""

    back_end: str
    slurm: str
    commands: str
    pyslurm: str = ""
    why: str = ""

    @property
    def sentence(self) -> str:
        """Name the back end and the versions, for a log and for `gandiva check`."""
        if self.back_end == PYSLURM:
            return f"Slurm {self.slurm}, through pyslurm {self.pyslurm}"
        return f"Slurm {self.slurm}, through its commands {self.commands} ({self.why})"


async def choose(
    wanted: str, partitions: Collection[str], commands: Commands, timeouts: Timeouts
) -> tuple[CommandsPort, Choice]:
    """Return the port and why it is that one; SlurmUnreachable while Slurm does not answer.

    SlurmUnreachable also when pyslurm is wanted by the configuration and does not do.
    """
    plain = CommandsPort(partitions, timeouts, commands)
    config = await plain.slurm_config()
    slurm, client = config.get("SLURM_VERSION", ""), await plain.version()
    if wanted == COMMANDS:
        return plain, Choice(COMMANDS, slurm, client, why="slurm.backend is commands")
    port = PyslurmPort(partitions, timeouts, commands)
    try:
        pyslurm = (await port.versions())[0]
        why = _misfit(pyslurm, slurm, client, config) or await _disagreement(plain, port)
    except GandivaError as err:
        pyslurm, why = "", _reason(str(err))
    if not why:
        return port, Choice(PYSLURM, slurm, client, pyslurm)
    await port.close()
    if wanted == PYSLURM:
        raise SlurmUnreachable(f"slurm.backend is pyslurm, but {why}; mend it, or write auto")
    return plain, Choice(COMMANDS, slurm, client, pyslurm, why)


class ChosenPort:
    """The port of the daemon: chooses when Slurm first answers, and again when no picture is had any more."""

    def __init__(
        self,
        wanted: str,
        partitions: Collection[str],
        timeouts: Timeouts,
        commands: Commands | None = None,
        chooser: Callable[..., Any] = choose,
    ) -> None:
        self._how = (wanted, partitions, commands or Commands(), timeouts)
        self._chooser = chooser
        self._turn = asyncio.Lock()
        self._port: CommandsPort | None = None
        self._missed = 0
        self.choice: Choice | None = None

    async def snapshot(self, with_associations: bool) -> Snapshot:
        """Return one coalesced picture."""
        port = await self._chosen()
        try:
            found = await port.snapshot(with_associations)
        except SlurmUnreachable:
            self._missed += 1
            if self._missed >= PATIENCE:
                await self.close()
            raise
        self._missed = 0
        return found

    async def start(self, job_id: int, nodes: Sequence[str]) -> None:
        """Start a held job on just these nodes."""
        await (await self._chosen()).start(job_id, nodes)

    async def hold(self, job_id: int) -> None:
        """Hold a job."""
        await (await self._chosen()).hold(job_id)

    async def unhold(self, job_id: int) -> None:
        """Take back the hold of a job that runs."""
        await (await self._chosen()).unhold(job_id)

    async def requeue(self, job_id: int) -> None:
        """Requeue a job that runs."""
        await (await self._chosen()).requeue(job_id)

    async def requeue_ended(self, job_id: int) -> None:
        """Requeue a job that has ended."""
        await (await self._chosen()).requeue_ended(job_id)

    async def signal(self, job_id: int, name: str, to_batch: bool) -> None:
        """Send a running job a signal."""
        await (await self._chosen()).signal(job_id, name, to_batch)

    async def resize(self, job_id: int, gpus: int, nodes: int = 0) -> None:
        """Have a held job ask for this number of GPUs, and of nodes."""
        await (await self._chosen()).resize(job_id, gpus, nodes)

    async def ping(self) -> bool | None:
        """True when a slurmctld answers; False when none does; None when it could not be asked."""
        try:
            return await (await self._chosen()).ping()
        except SlurmUnreachable:
            return None

    async def hears(self, node: str) -> bool:
        """True when slurmctld has heard of this node's slurmd."""
        return await (await self._chosen()).hears(node)

    async def shown(self, node: str) -> frozenset[JobKey]:
        """Return the incarnations that Slurm shows on a node."""
        return await (await self._chosen()).shown(node)

    async def version(self) -> str:
        """Return the version of Slurm's commands."""
        return await (await self._chosen()).version()

    async def slurm_config(self) -> Mapping[str, str]:
        """Return Slurm's running configuration."""
        return await (await self._chosen()).slurm_config()

    async def people(self) -> tuple[Person, ...]:
        """Return Slurm's operators and coordinators."""
        return await (await self._chosen()).people()

    async def close(self) -> None:
        """Let go of the back end; the next call chooses anew."""
        port, self._port, self._missed = self._port, None, 0
        if port is not None:
            await port.close()

    async def _chosen(self) -> CommandsPort:
        async with self._turn:
            if self._port is None:
                port, choice = await self._chooser(*self._how)
                self._port = port
                if choice != self.choice:
                    log.info("%s", choice.sentence)
                self.choice = choice
            return self._port


def _misfit(pyslurm: str, slurm: str, client: str, config: Mapping[str, str]) -> str:
    """Return why this pyslurm is not for this Slurm; "" when it is."""
    ours, theirs = release(pyslurm), release(slurm)
    if ours != theirs and (ours, theirs) not in TRIED:
        return f"pyslurm {pyslurm} is for another Slurm than slurmctld's {slurm}"
    if release(client) != theirs:
        return f"this host's Slurm is {client}, slurmctld's {slurm}"
    if "gres/gpu" not in config.get("AccountingStorageTRES", "").split(","):
        return "AccountingStorageTRES lacks gres/gpu, without which pyslurm does not see the slots in use"
    return ""


async def _disagreement(plain: CommandsPort, port: PyslurmPort) -> str:
    """Return the first thing the two back ends see differently; "" when they agree."""
    ours, theirs = await port.snapshot(False), await plain.snapshot(False)
    return next(_differences(ours, theirs), "")


def _differences(ours: Snapshot, theirs: Snapshot) -> Iterator[str]:
    jobs = {job.job_id: job for job in theirs.jobs}
    for job in ours.jobs:
        if job.job_id in jobs:
            yield from _unequal(f"job {job.job_id}", job, jobs[job.job_id], STEADY_OF_JOB)
    nodes = {node.name: node for node in theirs.nodes}
    if nodes.keys() != {node.name for node in ours.nodes}:
        yield "pyslurm shows other nodes than scontrol"
        return
    for node in ours.nodes:
        yield from _unequal(f"node {node.name}", node, nodes[node.name], STEADY_OF_NODE)


def _unequal(what: str, ours: object, theirs: object, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        one, other = getattr(ours, name), getattr(theirs, name)
        if one != other:
            seen = f"of {what} pyslurm shows {name}={one!r:.60}, the commands {other!r:.60}"
            yield f"{seen}: was it built for other headers?"


def _reason(text: str) -> str:
    return "pyslurm is not installed" if "No module named 'pyslurm'" in text else text
