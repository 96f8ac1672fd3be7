"""The back end of pyslurm: the port of `port.py`, on slurmctld's own messages instead of commands.

Read and done by pyslurm: the picture, the associations, starts (one request each), holds. Left to the
commands this inherits, with the reason:

- acts on array tasks (start, hold, splitting them off): pyslurm names jobs by number only, and the last task
  of an array has the array's number, which means all of its tasks;
- requeues: pyslurm cannot say that a job which has ended meanwhile is to be left alone, and Slurm runs such a
  one again, though its user cancelled it;
- slurmctld's configuration and the partitions' settings, for `gandiva check`: pyslurm has them under names
  and in forms of its own, and they are read once;
- `ping`: pyslurm's raises at the first slurmctld that is down, though the backup answers;
- exit codes and dependencies of the few jobs `pyslurm_fields.is_unsure` names: pyslurm loses parts of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gandiva_slurm.model.errors import GandivaError, SlurmBusy, SlurmRefused, SlurmUnreachable
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.slurm import pyslurm_fields as fields
from gandiva_slurm.slurm.accounts import DEFAULT_SHARES, one_each
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.slurm.control import check_nodes, insist
from gandiva_slurm.slurm.pyslurm_fields import Told
from gandiva_slurm.slurm.pyslurm_link import Worker
from gandiva_slurm.slurm.reader import Picture, Unread, pick_jobs, pick_nodes
from gandiva_slurm.slurm.run import Commands, error_of

log = logging.getLogger(__name__)

#: Shares of an association that says "parent".
PARENTS_SHARES = 0x7FFFFFFF
#: Most jobs named in one squeue.
MAX_ASKED = 500
#: Widths of the columns asked of squeue.
COLUMNS = {"JobID": 12, "exit_code": 12, "Dependency": 1000}


class PyslurmPort(CommandsPort):
    """Slurm through pyslurm. Use one in one event loop."""

    def __init__(
        self,
        partitions: Collection[str],
        timeouts: Timeouts | None = None,
        commands: Commands | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        make_worker: Callable[[Commands], Worker] = Worker,
    ) -> None:
        super().__init__(partitions, timeouts, commands, clock_ns)
        self._slurmctld = make_worker(self._commands)
        #: slurmdbd has its own: it may hang while slurmctld answers
        self._slurmdbd = make_worker(self._commands)
        self._told: dict[tuple[object, ...], Told] = {}

    async def versions(self) -> tuple[str, str]:
        """Return the versions of pyslurm and of slurmctld."""
        told = await self._slurmctld.call("versions", timeout_s=self._timeouts.read_s)
        return str(told[0]), str(told[1])

    async def start(self, job_id: int, nodes: Sequence[str]) -> None:
        """Start a held job on just these nodes; SlurmRefused with Slurm's sentence."""
        if job_id in self._task_names:
            await super().start(job_id, nodes)
            return
        refused = await self.start_many({job_id: nodes})
        for error in refused.values():
            raise error

    async def start_many(self, places: Mapping[int, Sequence[str]]) -> dict[int, SlurmRefused]:
        """Start many held jobs, each on its nodes; return the refusals by id."""
        tasks = {job_id: nodes for job_id, nodes in places.items() if job_id in self._task_names}
        refused = await super().start_many(tasks) if tasks else {}
        wanted = [(job_id, nodes) for job_id, nodes in places.items() if job_id not in tasks]
        for job_id, nodes in list(wanted):
            try:
                check_nodes(str(job_id), nodes)
            except SlurmRefused as error:
                refused[job_id] = error
        return refused | await self._start([item for item in wanted if item[0] not in refused])

    async def hold(self, job_id: int) -> None:
        """Hold a job that waits."""
        if job_id in self._task_names:
            await super().hold(job_id)
            return
        log.info("hold: job %d", job_id)
        await insist(lambda: self._slurmctld.call("hold", job_id, timeout_s=self._timeouts.act_s))

    async def close(self) -> None:
        """End the workers."""
        await asyncio.gather(self._slurmctld.close(), self._slurmdbd.close())

    async def _start(self, wanted: Sequence[tuple[int, Sequence[str]]]) -> dict[int, SlurmRefused]:
        """Start jobs with one call to the worker; one that Slurm is too busy for is tried again by itself."""
        if not wanted:
            return {}
        log.info("start: %s", "; ".join(f"job {job_id} on {','.join(nodes)}" for job_id, nodes in wanted))
        sentences = await self._slurmctld.call("start", wanted, timeout_s=self._timeouts.act_s)
        refused = {}
        for (job_id, nodes), sentence in zip(wanted, sentences, strict=True):
            try:
                if sentence and isinstance(_refusal(job_id, sentence), SlurmBusy):
                    await insist(partial(self._start_one, job_id, nodes))
                elif sentence:
                    raise _refusal(job_id, sentence)
            except SlurmRefused as error:
                refused[job_id] = error
        return refused

    async def _start_one(self, job_id: int, nodes: Sequence[str]) -> None:
        (sentence,) = await self._slurmctld.call("start", [(job_id, nodes)], timeout_s=self._timeouts.act_s)
        if sentence:
            raise _refusal(job_id, sentence)

    async def _picture(self) -> Picture:
        raw = await self._slurmctld.call("picture", timeout_s=self._timeouts.read_s)
        try:
            unsure = [job for job in raw["jobs"] if fields.is_unsure(job, self._partitions)]
            told = await self._ask_squeue(unsure)
            records = fields.job_records(raw["jobs"], told), fields.node_records(raw["nodes"])
        except (KeyError, TypeError, ValueError) as err:
            raise SlurmUnreachable(f"pyslurm's answer has another form than 25.11.2's: {err!r}") from err
        unread: Unread = {}
        jobs, joint = pick_jobs(records[0], self._partitions, unread)
        return Picture(jobs, pick_nodes(records[1], self._partitions), joint, unread)

    async def _ask_squeue(self, unsure: Sequence[Mapping[str, Any]]) -> dict[int, Told]:
        """Return what squeue knows better of these jobs; what it said is kept while nothing changes."""
        keys = {job["id"]: fields.unsure_key(job) for job in unsure}
        known = {job_id: self._told[key] for job_id, key in keys.items() if key in self._told}
        asked = [job_id for job_id in keys if job_id not in known]
        for at in range(0, len(asked), MAX_ASKED):
            known |= await self._squeue(asked[at : at + MAX_ASKED])
        self._told = {key: known[job_id] for job_id, key in keys.items() if key and job_id in known}
        return known

    async def _squeue(self, job_ids: Iterable[int]) -> dict[int, Told]:
        columns = ",".join(f"{name}:{width}" for name, width in COLUMNS.items())
        listed = ",".join(map(str, job_ids))
        argv = ("squeue", "--all", "--states=all", "--noheader", f"--jobs={listed}", f"--Format={columns}")
        try:
            return parse_told(await self._commands.output(argv, self._timeouts.read_s))
        except SlurmRefused as err:  # all of them forgotten meanwhile
            log.info("%s", err)
            return {}

    async def _read_associations(self, cluster: str) -> tuple[Association, ...]:
        rows = await self._slurmdbd.call("associations", timeout_s=self._timeouts.accounts_s)
        return one_each(
            (_association(row), row["partition"] or "") for row in rows if row["cluster"] in (cluster, None)
        )


def parse_told(text: str) -> dict[int, Told]:
    """Read squeue's three columns; a dependency that may have been cut is left to pyslurm's own form."""
    known = {}
    for line in text.splitlines():
        job_id, code, dependency = (*line.split(None, 2), "", "")[:3]
        if job_id.isdecimal():
            whole = None if len(dependency.rstrip()) >= COLUMNS["Dependency"] else dependency.strip()
            known[int(job_id)] = Told(code, "" if whole == "(null)" else whole)
    return known


def _refusal(job_id: int, sentence: str) -> GandivaError:
    return error_of(f"pyslurm start {job_id}", sentence)


def _association(row: Mapping[str, Any]) -> Association:
    shares = row["shares"]
    number = DEFAULT_SHARES if shares in (None, PARENTS_SHARES) else int(shares)
    return Association(row["account"] or "", row["user"] or "", row["parent_account"] or "", number)
