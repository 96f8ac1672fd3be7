"""Acts on jobs: start, hold, requeue, resize, and splitting tasks off an array.

A start is three steps in two calls: ReqNodeList and StartTime=now (a requeued job would else wait for
AuthInfo=cred_expire), then release. Nothing of the job's user is in an argument: job ids are numbers
and node names are checked.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gandiva_slurm.model.errors import SlurmBusy, SlurmRefused
from gandiva_slurm.slurm.run import Commands

T = TypeVar("T")

log = logging.getLogger(__name__)

#: How often a call that Slurm answers with "try again" is made, and the pause between; all of them together
#: take no longer than INSIST_S, but for the last. A job just started refuses updates until slurmdbd has given
#: its record a number, mostly within a second (scontrol itself waits 5 s for that).
TRIES, PAUSE_S, INSIST_S = 8, 0.25, 2.0

#: Slurm's words for that, and what is to be done where they stay (22.05.8: slurmctld, killed while it asked
#: slurmdbd for the number, comes back with a job that it numbers no more and of which it takes no change).
NUMBERING = "DB index is being set"
FOR_GOOD = "where this stays, slurmctld was killed while it numbered the job: cancel it and submit it again"

#: What squeue is asked about the size of a job.
ASKED = "NumTasks:12,NumCPUs:12,tres-per-node:100,tres-per-job:100,tres-per-task:100,tres-per-socket:100"
#: And of one that may have another number of nodes.
ASKED_NODES = f"{ASKED},NumNodes:12,MinCpus:12"
_GPUS = re.compile(r"(?:gres[:/])?gpu(?P<kind>:[A-Za-z]\w*)?(?::(?P<count>\d+))?")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Control:
    """Acts through scontrol. Jobs go by the names Slurm's commands take: 12, or 7_3 for a task."""

    def __init__(self, commands: Commands, timeout_s: float) -> None:
        self._commands = commands
        self._timeout_s = timeout_s

    async def place(self, name: str, nodes: Sequence[str]) -> None:
        """Name the nodes where a held job may start, from now on: as many as it asks for."""
        check_nodes(name, nodes)
        wanted = f"ReqNodeList={','.join(nodes)}"
        await self._act("scontrol", "update", f"JobId={name}", wanted, "StartTime=now")

    async def release(self, names: Sequence[str]) -> None:
        """Let Slurm start these jobs."""
        await self._act("scontrol", "release", ",".join(names))

    async def start(self, name: str, nodes: Sequence[str]) -> None:
        """Start a held job on these nodes."""
        log.info("start: job %s on %s", name, ",".join(nodes))
        await self.place(name, nodes)
        await self.release([name])

    async def start_many(self, places: Mapping[str, Sequence[str]]) -> dict[str, SlurmRefused]:
        """Start many jobs, with one release for all; return the refusals by job."""
        log.info("start: %s", "; ".join(f"job {name} on {','.join(nodes)}" for name, nodes in places.items()))
        refused = await self._each(places, self.place)
        placed = [name for name in places if name not in refused]
        if not placed:
            return refused
        try:
            await self.release(placed)
        except SlurmRefused:
            # One bad job spoils the joint answer; a second release of a released job changes nothing.
            refused |= await self._each(dict.fromkeys(placed, ()), lambda name, _: self.release([name]))
        return refused

    async def hold(self, name: str) -> None:
        """Hold a job that waits."""
        log.info("hold: job %s", name)
        await self._act("scontrol", "hold", name)

    async def requeue(self, name: str) -> None:
        """Requeue a job, if it runs: without that word one that was cancelled meanwhile would run again."""
        log.info("requeue: job %s", name)
        await self._act("scontrol", "requeue", "incomplete", name)

    async def requeue_ended(self, name: str) -> None:
        """Requeue a job that has ended."""
        log.info("requeue: job %s, which has ended", name)
        await self._act("scontrol", "requeue", name)

    async def signal(self, name: str, signal: str, to_batch: bool) -> None:
        """Send a signal to the batch shell alone, or to the steps alone; once, whatever the answer."""
        log.info("signal: job %s, SIG%s to its %s", name, signal, "batch shell" if to_batch else "steps")
        batch = ("--batch",) if to_batch else ()
        await self._commands.output(("scancel", f"--signal={signal}", *batch, name), self._timeout_s)

    async def resize(self, name: str, gpus: int, nodes: int = 0) -> None:
        """Have a held job ask for GPUs, and nodes (0: it has one for good), by number, with its tasks."""
        asked = ("squeue", "--noheader", "-j", name, f"--Format={ASKED_NODES if nodes else ASKED}")
        told = await self._commands.output(asked, self._timeout_s)
        words = spread(name, told, gpus, nodes) if nodes else resized(name, told, gpus)
        if words:
            log.info("resize: job %s to %d GPUs: %s", name, gpus, " ".join(words))
            await self._act("scontrol", "update", f"JobId={name}", *words)

    async def split(self, array_job_id: int, tasks: Sequence[int]) -> None:
        """Give these pending tasks of an array records of their own; they stay held."""
        log.info("split: %d tasks off array %d", len(tasks), array_job_id)
        await self._act("scontrol", "hold", f"{array_job_id}_[{','.join(map(str, tasks))}]")

    async def _each(
        self, places: Mapping[str, Sequence[str]], act: Callable[[str, Sequence[str]], Awaitable[None]]
    ) -> dict[str, SlurmRefused]:
        acts = (act(name, nodes) for name, nodes in places.items())
        outcomes = await asyncio.gather(*acts, return_exceptions=True)
        refused = {}
        for name, outcome in zip(places, outcomes, strict=True):
            if isinstance(outcome, SlurmRefused):
                refused[name] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
        return refused

    async def _act(self, *argv: str) -> None:
        await insist(lambda: self._commands.output(argv, self._timeout_s))


def resized(job: str, told: str, gpus: int) -> list[str]:
    """What is to be changed of a job of one node of which squeue told this; SlurmRefused: it cannot be."""
    asked = _asked(job, told)
    if asked.gpus == gpus:
        return []
    return [f"Gres=gpu{asked.kind}:{gpus}", *_tasks_for(asked, asked.gpus, gpus)]


def spread(job: str, told: str, gpus: int, nodes: int) -> list[str]:
    """The same where its number of nodes may change, too, to `nodes` with as many of the GPUs on each.

    Both bounds on its nodes are set: where they differ Slurm gives as many nodes as there are. Tasks lie on
    nodes as CPUs do, which Slurm would take unevenly (four as three and one) but for a least number on each.
    """
    *words, had_nodes, least_cpus = told.split() or ("", "")
    asked = _asked(job, " ".join(words))
    if not (had_nodes.isdecimal() and least_cpus.isdecimal()):
        raise SlurmRefused(f"job {job}: squeue tells no number of its nodes: {told[:80]!r}")
    each, had = gpus // nodes, asked.gpus * int(had_nodes)
    if (asked.gpus, int(had_nodes)) == (each, nodes):
        return []
    changed = [f"Gres=gpu{asked.kind}:{each}"] if each != asked.gpus else []
    changed += [f"NumNodes={nodes}-{nodes}"] if nodes != int(had_nodes) else []
    tasks = _tasks_for(asked, had, gpus)
    cpus = int(tasks[1].partition("=")[2]) // nodes if tasks else 0
    is_bound = nodes > 1 or int(least_cpus) > cpus
    return [*changed, *tasks, *([f"MinCPUsNode={cpus}"] if cpus and is_bound else [])]


class _Asked(NamedTuple):
    """What a job asks for: its GPUs on each node, their type behind a colon, its tasks and CPUs in all."""

    gpus: int
    kind: str
    tasks: int
    cpus: int


def _asked(job: str, told: str) -> _Asked:
    """Read squeue's words; SlurmRefused where its GPUs were not asked for by --gres."""
    tasks, cpus, wanted, *others = (*told.split(), "", "", "")
    match, is_counted = _GPUS.fullmatch(wanted), tasks.isdecimal() and cpus.isdecimal()
    if match is None or not is_counted or any("gpu" in other for other in others):
        raise SlurmRefused(f"job {job}: the GPUs of a job are changed only where --gres=gpu:N asked for them")
    return _Asked(int(match["count"] or 1), match["kind"] or "", int(tasks), int(cpus))


def _tasks_for(asked: _Asked, had: int, gpus: int) -> list[str]:
    """Tasks and CPUs for `gpus` GPUs in all, where it has as many tasks as GPUs, or a multiple."""
    if asked.tasks % had:
        return []
    count = asked.tasks // had * gpus
    return [f"NumTasks={count}", f"NumCPUs={count * max(1, asked.cpus // asked.tasks)}"]


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """Act again for as long as Slurm answers "try again"; SlurmRefused where that may never end."""
    end_s, tries = time.monotonic() + INSIST_S, 0
    while True:
        tries += 1
        try:
            return await act()
        except SlurmBusy as busy:
            is_last = tries == TRIES or time.monotonic() > end_s
            if is_last and NUMBERING in str(busy):
                raise SlurmRefused(f"{busy}; {FOR_GOOD}") from busy
            if is_last:
                raise
        await asyncio.sleep(PAUSE_S)


def check_nodes(job: str, nodes: Sequence[str]) -> None:
    """SlurmRefused unless each of these is one node's name: Slurm would take a range, too."""
    if not nodes:
        raise SlurmRefused(f"job {job}: no node is named")
    for node in nodes:
        if not _NODE_NAME.fullmatch(node):
            raise SlurmRefused(f"job {job}: {node!r} is no node name; is NodeName in slurm.conf right?")
