"""The back end of Slurm's own commands, 22.05 and later: the port of `port.py` (ADR 0004)."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gandiva_slurm.logs import Trouble, warn_once
from gandiva_slurm.model.errors import GandivaError, SlurmRefused, SlurmUnreachable
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.snapshot import UNHEARD, Association, SlurmJob, Snapshot
from gandiva_slurm.slurm import arrays
from gandiva_slurm.slurm.accounts import Person, read_associations, read_people
from gandiva_slurm.slurm.control import Control
from gandiva_slurm.slurm.reader import Picture, read_picture, release
from gandiva_slurm.slurm.run import Commands, together

log = logging.getLogger(__name__)

#: slurmdbd that did not answer is not asked again for so long: each try delays a snapshot by its deadline.
ACCOUNTS_PAUSE_S = 60.0


SHOW_NODE = ("scontrol", "--oneliner", "show", "node")
#: The first State of its answer. That the node does not answer is a star or a flag there, by release.
_STATE = re.compile(r"\bState=(\S+)")
SHOW_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")


@dataclass(frozen=True)
class Timeouts:
    """How long one command may take: a read of everything, an act on one job, a read of the associations."""

    read_s: float = 10.0
    act_s: float = 10.0
    accounts_s: float = 3.0


class CommandsPort:
    """Slurm through squeue, sinfo, scontrol and sacctmgr. Use one in one event loop."""

    def __init__(
        self,
        partitions: Collection[str],
        timeouts: Timeouts | None = None,
        commands: Commands | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._partitions = frozenset(partitions)
        self._timeouts = timeouts or Timeouts()
        self._commands = commands or Commands()
        self._control = Control(self._commands, self._timeouts.act_s)
        self._clock_ns = clock_ns
        self._task_names: dict[int, str] = {}
        self._cluster = ""
        self._version = ""
        self._accounts_again_ns = 0
        self._unread_shares = Trouble(
            log, "associations not read, the old shares stay", "associations are read"
        )

    async def snapshot(self, with_associations: bool) -> Snapshot:
        """Return one coalesced picture of our partitions; SlurmUnreachable when it was not had whole."""
        picture, associations = await together(
            self._picture(),
            self._associations(with_associations),
        )
        self._task_names = arrays.names_of_tasks(picture.jobs)
        await self._split(picture.joint, picture.jobs)
        return Snapshot(picture.jobs, picture.nodes, associations, picture.unread)

    async def start(self, job_id: int, nodes: Sequence[str]) -> None:
        """Start a held job on just these nodes; SlurmRefused with Slurm's sentence."""
        await self._control.start(self._name(job_id), nodes)

    async def start_many(self, places: Mapping[int, Sequence[str]]) -> dict[int, SlurmRefused]:
        """Start many held jobs, each on its nodes, with one release for all; return the refusals by id."""
        ids = {self._name(job_id): job_id for job_id in places}
        refused = await self._control.start_many({name: places[job_id] for name, job_id in ids.items()})
        return {ids[name]: error for name, error in refused.items()}

    async def hold(self, job_id: int) -> None:
        """Hold a job that waits."""
        await self._control.hold(self._name(job_id))

    async def unhold(self, job_id: int) -> None:
        """Take back the hold of a job that runs."""
        await self._control.release([self._name(job_id)])

    async def requeue(self, job_id: int) -> None:
        """Put a job that runs back into the queue; nothing else is done to any other."""
        await self._control.requeue(self._name(job_id))

    async def requeue_ended(self, job_id: int) -> None:
        """Put a job that has ended back into the queue."""
        await self._control.requeue_ended(self._name(job_id))

    async def signal(self, job_id: int, name: str, to_batch: bool) -> None:
        """Send a running job a signal, to its batch shell or to its steps."""
        await self._control.signal(self._name(job_id), name, to_batch)

    async def resize(self, job_id: int, gpus: int, nodes: int = 0) -> None:
        """Have a held job ask for this number of GPUs, and of nodes, with its tasks."""
        await self._control.resize(self._name(job_id), gpus, nodes)

    async def ping(self) -> bool | None:
        """True when a slurmctld answers; False when none does; None when it could not be asked."""
        try:
            answer = await self._commands.run(("scontrol", "ping"), self._timeouts.read_s)
        except GandivaError:
            return None
        if " is UP" in answer.out:
            return True
        return False if " is DOWN" in answer.out else None

    async def hears(self, node: str) -> bool:
        """True when slurmctld has heard of this node's slurmd, by its own pings."""
        text = await self._commands.output((*SHOW_NODE, node), self._timeouts.read_s)
        match = _STATE.search(text)
        if match is None:
            raise SlurmUnreachable(f"scontrol show node {node}: no State in its answer")
        is_registered = "SlurmdStartTime=None" not in text
        return is_registered and "*" not in match[1] and not UNHEARD & set(match[1].split("+"))

    async def shown(self, node: str) -> frozenset[JobKey]:
        """Return the incarnations that Slurm shows on a node, those that end included."""
        argv = ("squeue", "--noheader", f"--nodelist={node}", "--Format=JobID:20,RestartCnt:12")
        lines = (await self._commands.output(argv, self._timeouts.read_s)).splitlines()
        try:
            return frozenset(JobKey(*map(int, line.split())) for line in lines if line.strip())
        except (TypeError, ValueError) as err:
            raise SlurmUnreachable(f"squeue --nodelist={node}: not understood ({err})") from err

    async def version(self) -> str:
        """Return the version of the commands, as 22.05.8; slurm_config has slurmctld's own."""
        if not self._version:
            words = (await self._commands.output(("scontrol", "--version"), self._timeouts.read_s)).split()
            self._version = words[-1] if words else ""
        return self._version

    async def slurm_config(self) -> Mapping[str, str]:
        """Return Slurm's running configuration; (null) reads as nothing."""
        text = await self._commands.output(("scontrol", "show", "config"), self._timeouts.read_s)
        return parse_config(text)

    async def people(self) -> tuple[Person, ...]:
        """Return Slurm's operators and coordinators."""
        return await read_people(self._commands, self._timeouts.accounts_s)

    async def partitions(self) -> Mapping[str, Mapping[str, str]]:
        """Return every partition's settings by name, for `gandiva check`."""
        text = await self._commands.output(SHOW_PARTITIONS, self._timeouts.read_s)
        rows = [parse_words(line) for line in text.splitlines()]
        return {row["PartitionName"]: row for row in rows if "PartitionName" in row}

    async def close(self) -> None:
        """Let go of what a back end holds; the commands hold nothing."""

    async def _picture(self) -> Picture:
        of = release(await self.version())
        try:
            return await read_picture(self._commands, self._partitions, self._timeouts.read_s, of)
        except SlurmUnreachable:
            self._version = ""  # perhaps Slurm is being upgraded below us
            raise

    def _name(self, job_id: int) -> str:
        return self._task_names.get(job_id, str(job_id))

    async def _split(self, joint: tuple[arrays.JointTasks, ...], jobs: tuple[SlurmJob, ...]) -> None:
        for array_job_id, tasks in arrays.to_split(joint, jobs).items():
            try:
                await self._control.split(array_job_id, tasks)
            except GandivaError as err:
                warn_once(log, f"array {array_job_id} stays in one record for now: {err}")

    async def _read_associations(self, cluster: str) -> tuple[Association, ...]:
        return await read_associations(self._commands, cluster, self._timeouts.accounts_s)

    async def _associations(self, wanted: bool) -> tuple[Association, ...] | None:
        now_ns = self._clock_ns()
        if not wanted or now_ns < self._accounts_again_ns:
            return None
        try:
            self._cluster = self._cluster or (await self.slurm_config()).get("ClusterName", "")
            found = await self._read_associations(self._cluster)
        except GandivaError as err:
            self._unread_shares.begins(err)
            if self._cluster:  # it was slurmdbd that did not answer
                self._accounts_again_ns = now_ns + int(ACCOUNTS_PAUSE_S * 1e9)
            return None
        self._unread_shares.ends()
        return found


def parse_words(line: str) -> dict[str, str]:
    """Read a line of `Key=Value` words (`scontrol --oneliner`); never one with text of users."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def parse_config(text: str) -> dict[str, str]:
    """Read `Key = Value` lines; later sections (cgroup.conf's) do not override slurm.conf's keys."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip():
            cleaned = value.strip()
            values.setdefault(key.strip(), "" if cleaned in ("(null)", "N/A") else cleaned)
    return values
