"""Who uses this node's GPUs, by NVML: what each job takes, and processes on a GPU not given to their job.

Where devices are not closed (`devices`), a script that sets CUDA_VISIBLE_DEVICES itself can take a GPU that
others hold. Such a process is told of, and its job charged; where the site says so, it is stopped, if it is
of a job that lives here, or came by ssh to one that is planned here. What belongs to no job of ours is never
touched. A job that uses a GPU while it holds none (`parked: trust`) is charged, frozen until its next turn,
and trusted no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node import nvml, procs
from gandiva_slurm.node.charging import charge_elsewhere, charge_ran
from gandiva_slurm.node.context import Node, Stranger
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import Membership, has_come_by_ssh, membership
from gandiva_slurm.node.nvml import Use
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.usage import Usage

LOOK_S = 5.0
#: When somebody waits for it, it looks as often as this.
SOON_S = 0.2
#: The driver hangs when NVML has not answered by then: that is said.
ANSWER_S = 30.0
#: A stranger is stopped when it is there in so many looks in a row.
STOP_LOOKS = 2
#: The driver's samples of how busy a process kept a GPU are so old at most.
SAMPLE_NS = 1_000_000_000
#: A job that tells of mini-batches while its GPUs are idle in so many looks in a row is doubted.
DOUBT_LOOKS = 6

log = logging.getLogger(__name__)

Find = Callable[[int], Membership | None]


class Strangers:
    """Looks at the processes on the GPUs again and again.

    `find` tells a process's job; `freeze` stops all of one that holds no GPU; `on_look` is called after a
    look that a job waited for.
    """

    def __init__(
        self,
        node: Node,
        freeze: Callable[[Resident], None],
        find: Find = membership,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._freeze, self._on_look = freeze, on_look
        self._find = find
        #: monotonic time of this look, and of the one before it
        self._now_ns = self._last_ns = node.clock.mono()
        #: in how many looks in a row each stranger was there
        self._seen: dict[tuple[ProcId, int], int] = {}

    async def run(self) -> None:
        """Load NVML, and look for ever where there is one: sooner where a job waits for what others keep."""
        node = self._node
        node.nvml = await _answer_of(nvml.load)
        while True:
            is_awaited = await self._rest()
            if node.nvml is None:
                continue
            asked_ns = node.clock.mono()
            self.take(await _answer_of(node.nvml.uses), asked_ns)
            if is_awaited:
                self._on_look()

    async def _rest(self) -> bool:
        """Wait for the next look; True when a job waits for it."""
        await asyncio.sleep(SOON_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S - SOON_S):
                await self._node.look_soon.wait()
        is_awaited = self._node.look_soon.is_set()
        self._node.look_soon.clear()
        return is_awaited

    def take(self, uses: Iterable[Use], asked_ns: int | None = None) -> None:
        """Take a picture of all GPUs, for which NVML was asked then."""
        node = self._node
        self._last_ns, self._now_ns = self._now_ns, node.clock.mono()
        asked_ns = self._now_ns if asked_ns is None else asked_ns
        found: dict[Resident, list[Use]] = {resident: [] for resident in node.residents.values()}
        strangers: dict[tuple[ProcId, int], Stranger] = {}
        for use in uses:
            member, proc = self._find(use.pid), procs.read_proc(use.pid)
            mine = [r for r in found if member is not None and r.key.job_id == member.job_id]
            owner = next((resident for resident in mine if use.gpu in resident.gpus), None)
            if owner is not None:
                found[owner].append(use)
            elif proc is not None and use.gpu < node.gpus:
                job_id = member.job_id if member is not None else 0
                strangers[(proc.id, use.gpu)] = Stranger(use.gpu, use.pid, job_id, use.memory)
        self._seen = {who: self._seen.get(who, 0) + 1 for who in strangers}
        for (proc_id, _), stranger in strangers.items():
            self._tell(proc_id, stranger)
        self._charge_strangers(strangers)
        node.strangers = tuple(strangers.values())
        for resident, own in found.items():
            _note_usage(node, resident, own, self._now_ns - self._last_ns)
            if resident.state == SUSPENDED and asked_ns > resident.since_ns:
                resident.kept = (resident.usage.memory, asked_ns)
            self._look_at_parked(resident)

    def _charge_strangers(self, strangers: dict[tuple[ProcId, int], Stranger]) -> None:
        """Charge jobs for others' GPUs that they had at the last look, too; a GPU once for all processes."""
        known = {(one.job_id, one.gpu) for key, one in strangers.items() if self._seen[key] > 1}
        for resident in self._node.residents.values():
            for gpu in sorted(gpu for job_id, gpu in known if job_id == resident.key.job_id):
                log.debug("job %s is charged for GPU %d, not given to it", resident.key, gpu)
                charge_elsewhere(self._node, resident, self._now_ns - self._last_ns)

    def _look_at_parked(self, resident: Resident) -> None:
        """Charge and freeze what has used a GPU since the last look, though it held none all that time."""
        is_off = resident.state == SUSPENDED and not resident.awake_until_ns
        if not is_off or resident.usage.percent <= 0 or self._last_ns < resident.since_ns + SAMPLE_NS:
            return
        charge_ran(self._node, resident, self._now_ns - self._last_ns)
        resident.is_caught = True
        self._node.freezer.set_trust(resident, False)
        if resident.part is None and not resident.is_frozen:
            self._node.note("loose", resident, why="it used a GPU while it was parked")
            self._freeze(resident)

    def _tell(self, proc: ProcId, stranger: Stranger) -> None:
        looks, node = self._seen[(proc, stranger.gpu)], self._node
        owner = next((r for r in node.residents.values() if r.key.job_id == stranger.job_id), None)
        key = owner.key if owner is not None else None
        fields = {"pid": stranger.pid, "gpu": stranger.gpu, "of_job": stranger.job_id}
        if looks == 1:
            node.events.write("stranger", key, **fields)
            whose = f"of job {stranger.job_id}" if stranger.job_id else "of no job"
            log.warning("process %d %s is on GPU %d, not given to it", stranger.pid, whose, stranger.gpu)
        is_to_stop = node.settings.stops_strangers and looks >= STOP_LOOKS
        if is_to_stop and self._is_users(proc, owner, stranger.job_id) and procs.send(proc, signal.SIGKILL):
            node.events.write("stranger_stopped", key, **fields)
            log.warning("process %d of job %d was stopped", stranger.pid, stranger.job_id)

    def _is_users(self, proc: ProcId, owner: Resident | None, job_id: int) -> bool:
        """True where a job's user runs it; of one of which no step is known here, by ssh."""
        if owner is not None:
            return _is_of(proc, owner)
        plan, uids = self._node.plan, procs.uids(proc.pid)
        users = {job.uid for job in plan.jobs if job.job_id == job_id} if plan is not None else set()
        return uids is not None and uids[0] in users and has_come_by_ssh(proc.pid, job_id)


async def _answer_of(question: Callable[[], Any]) -> Any:
    """Ask NVML in a thread that neither gandivad's other work nor its end waits for: the driver may hang."""
    answer: Future[Any] = Future()

    def ask() -> None:
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result(question())
        except Exception as err:
            answer.set_exception(err)

    threading.Thread(target=ask, name="nvml", daemon=True).start()
    awaited = asyncio.wrap_future(answer)
    done, _ = await asyncio.wait([awaited], timeout=ANSWER_S)
    if not done:
        log.warning("NVML has not answered within %g s; until it does, GPUs are not looked at", ANSWER_S)
    return await awaited


def _is_of(proc: ProcId, owner: Resident) -> bool:
    """True when the job's user runs it; slurmstepd and what root does beside it stay."""
    uids = procs.uids(proc.pid)
    return uids is not None and uids[0] == owner.processes.uid and proc not in owner.processes.stepds


def _note_usage(node: Node, resident: Resident, uses: list[Use], since_ns: int) -> None:
    """Keep what its processes take; doubt what it says of its progress when they leave the GPU idle.

    `since_ns`: how long ago the last look was. Where NVML tells of no process how busy it is, none is idle.
    """
    known = [use.percent for use in uses if use.percent >= 0]
    last, steps = resident.usage, resident.steps()
    is_odd = resident.state == RUNNING and bool(known) and not any(known) and steps > last.steps > 0
    idle = last.idle_looks + 1 if is_odd else 0
    percent = min(100, sum(known)) if known else -1
    ran_ns = min(since_ns, node.clock.mono() - resident.since_ns) if resident.state == RUNNING else 0
    is_still = all(use.percent == 0 or use.is_quiet for use in uses)
    idle_ns = 0 if any(known) else last.idle_ns + (ran_ns if is_still else 0)
    resident.usage = Usage(sum(use.memory for use in uses), percent, steps, idle, idle_ns)
    if idle == DOUBT_LOOKS:
        node.note("doubt", resident, steps=steps, rate=round(resident.counts.rate, 3))
        log.warning("job %s reports mini-batches, but NVML sees it leave its GPUs idle", resident.key)
