"""Watching: processes that end, a beat to every page each second, rates, what got loose while parked."""

from __future__ import annotations

import asyncio
import logging
import os

from gandiva_slurm.model.job import RESUMING, RUNNING, SUSPENDED, SUSPENDING
from gandiva_slurm.node import procs, returning, sharing
from gandiva_slurm.node.charging import charge_ran
from gandiva_slurm.node.context import Final, Node
from gandiva_slurm.node.jobs import FIRST_STEPS, Resident
from gandiva_slurm.node.park import beat
from gandiva_slurm.node.part import held_time, notice
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.rest import Rest
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.wire import page as wire

BEAT_S = 1.0
#: A frozen job that runs is about to end (Slurm continues what it cancels), or was continued by its owner:
#: it is given so many beats to end, then it is stopped again.
LOOSE_BEATS = 3
#: A parked rank goes on by itself only when it has heard no beat for 30 s, and then within 10 s. If this
#: daemon was that silent, its strays are believed for so long after; else a rank that runs was not told to.
_SILENT_NS, _STRAY_NS = 25_000_000_000, 20_000_000_000
#: Between two rounds of SIGKILL to what a job has left behind; the second when it does not go.
_REAP_S, _SLOW_REAP_S = 0.02, 0.5

log = logging.getLogger(__name__)


class Watcher:
    """Knows when a process ends, without asking, and ends jobs."""

    def __init__(self, node: Node, slicer: Slicer) -> None:
        self._node = node
        self._slicer = slicer
        self._watched: dict[tuple[Resident, ProcId], int] = {}
        self._reapers: set[asyncio.Task[None]] = set()
        self._loose: dict[Resident, int] = {}
        self._rest = Rest(node, slicer.switcher)
        self._beat_ns = node.clock.mono()
        #: when this daemon last came back from a silence that lets parked ranks go on
        self._silent_ns = -_STRAY_NS

    async def run(self) -> None:
        """Beat once a second, for ever."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_S)

    def watch(self, resident: Resident, proc: ProcId) -> None:
        """Learn of this process's end."""
        if (resident, proc) in self._watched:
            return
        loop = asyncio.get_running_loop()
        pidfd = procs.open_pidfd(proc)
        if pidfd is None:
            loop.call_soon(self._gone, resident, proc)
            return
        self._watched[(resident, proc)] = pidfd
        loop.add_reader(pidfd, self._gone, resident, proc)

    def fence(self, resident: Resident, why: str) -> None:
        """Kill every process of this incarnation now, whatever Slurm thinks of it."""
        resident.is_fenced = True
        self._node.note("fence", resident, why=why, killed=resident.processes.kill(is_over=True))
        log.warning("job %s: stopped: %s", resident.key, why)
        self._end(resident)

    def abandon(self, resident: Resident, why: str) -> None:
        """Kill this incarnation with its slurmstepds: Slurm is to requeue it, and hears of no failure.

        A slurmstepd that cannot reach slurmctld tells of its tasks' death when it can again: Slurm would take
        the job for failed, or end its next incarnation here together with that slurmstepd.
        """
        resident.is_fenced = True
        self._node.note("fence", resident, why=why, killed=resident.processes.kill_unreported())
        log.warning("job %s: stopped: %s", resident.key, why)
        self._end(resident)

    def dismiss(self, resident: Resident) -> None:
        """A part of a span that has no process here is over, or never was."""
        resident.is_ending = True
        self._finish(resident)

    def beat(self) -> None:
        """Tell every rank that its node lives; look at every page once."""
        node, now = self._node, self._node.clock.mono()
        if step_ns := node.clock.correct():
            node.events.write("clock_step", step_s=round(step_ns / 1e9, 3))
            node.ledger.redate(node.clock.real() - step_ns, node.clock.real())
            node.save()
        if now - self._beat_ns > _SILENT_NS:
            self._silent_ns = now
        self._beat_ns = now
        sharing.pace(node, now)
        sharing.tell(node)
        self._rest.begin_beat()
        for resident in list(node.residents.values()):
            for rank in resident.ranks:
                if rank.is_alive:
                    rank.page.write(beat(now))
            if resident.is_ending:
                continue
            if resident.halted_ns and not resident.holds:
                self._slicer.switcher.keep_still(resident)
            elif resident.state == RUNNING:
                self._look_at_running(resident, now)
            elif resident.state == SUSPENDED and not self._rest.look_at(resident, now):
                self._look_at_suspended(resident, now)
            if returning.is_rested(resident, now):
                self._slicer.fill()
            is_awaited = resident.part is not None and not resident.part.has_processes
            if not is_awaited and not any(procs.is_alive(stepd) for stepd in resident.processes.stepds):
                self._look_for_members(resident)

    def _look_at_running(self, resident: Resident, now: int) -> None:
        resident.look_at_rate(now)
        counts = resident.counts
        if not counts.first_ns and resident.pulse[0] >= FIRST_STEPS:
            counts.first_ns = self._node.clock.real(now)
        for group in resident.sets:
            if group.is_complete() and group.form().phase == "running":
                # Teaches the coordinator the gang's pace: it asks for nothing.
                group.apply(group.form().tick(group.views(), group.alive(), now))

    def _look_at_suspended(self, resident: Resident, now: int) -> None:
        is_whole = resident.is_frozen or _is_headless(resident)
        # What somebody else had stopped before us may be continued by him while the job is frozen.
        runs = runs_unasked(resident)
        if runs:  # whoever has continued it: what it may have done since the last look is charged
            charge_ran(self._node, resident, min(now - resident.since_ns, round(BEAT_S * 1e9)))
        self._stop_newcomers(resident)
        beats = self._loose.pop(resident, 0) + 1
        if (runs or _is_headless(resident)) and beats < LOOSE_BEATS:
            self._loose[resident] = beats
        elif runs or _is_headless(resident):
            why = "continued by somebody else" if runs else "its parked ranks are dead, its script is not"
            self._node.note("loose", resident, why=why)
            self._slicer.switcher.stop_processes(resident, None if is_whole else list(resident.stopped))
        elif not resident.is_frozen and self._has_left_park(resident):
            self._take_leaver(resident, now)

    def _stop_newcomers(self, resident: Resident) -> None:
        """Where nothing freezes a parked job as a whole, what it has started since is stopped one by one."""
        is_parked = resident.counts.suspends and not resident.is_frozen and resident.part is None
        if resident.is_trusted or not is_parked:
            return
        known = resident.stopped | resident.left_stopped
        new = [proc.id for proc in resident.processes.near() if proc.id not in known]
        if new:
            self._slicer.switcher.stop_processes(resident, new)

    def _take_leaver(self, resident: Resident, now: int) -> None:
        """A parked rank says that it runs: it holds its GPUs if it had to go on, else it is frozen whole."""
        if now - self._silent_ns < _STRAY_NS:
            self._slicer.take_back(resident)
            return
        self._node.note("loose", resident, why="a parked rank went on unasked")
        self._slicer.switcher.stop_processes(resident)

    def _has_left_park(self, resident: Resident) -> bool:
        ranks = [rank for rank in resident.ranks if rank.is_alive and rank.proc not in resident.stopped]
        return any(rank.look()[wire.W_STATE] != wire.PARKED for rank in ranks)

    def _look_for_members(self, resident: Resident) -> None:
        """A job known by its cgroup alone ends when nothing is left in there."""
        if not resident.processes.members():
            self._end(resident)

    def _gone(self, resident: Resident, proc: ProcId) -> None:
        self._unwatch(resident, proc)
        if self._node.residents.get(resident.key) is not resident:
            return  # its job was over first
        for rank in resident.ranks:
            if rank.proc == proc:
                rank.look()
                rank.is_alive = False
                self._node.note("rank_ended", resident, rank=rank.rank, pid=proc.pid)
        for tasks in resident.tasks.values():
            tasks.discard(proc)
        if resident.state == RUNNING:
            resident.forget_dead()
        if proc in resident.processes.stepds:
            resident.processes.stepds.discard(proc)
            resident.processes.newest = max(resident.processes.newest, proc.start)
            resident.tasks.pop(proc, None)
            if not resident.processes.has_stepd():
                self._end(resident)

    def _unwatch(self, resident: Resident, proc: ProcId) -> None:
        pidfd = self._watched.pop((resident, proc), None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def _end(self, resident: Resident) -> None:
        """Slurm has ended it here, or we have: see its last process out, then give its GPUs on."""
        if resident.is_ending:
            return
        resident.is_ending = True
        task = asyncio.get_running_loop().create_task(self._reap(resident))
        self._reapers.add(task)
        task.add_done_callback(self._reapers.discard)

    async def _reap(self, resident: Resident) -> None:
        rounds = 0
        while resident.is_ending and resident.processes.kill(is_over=resident.is_fenced):
            rounds += 1
            if rounds == 100:
                log.warning("job %s: processes still there after SIGKILL; its GPUs stay taken", resident.key)
            # What is frozen in a group of version 1 hears SIGKILL when it is thawed, and has run.
            self._node.freezer.open(resident)
            await asyncio.sleep(_REAP_S)
            self._shut_next(resident)
            await asyncio.sleep(0 if rounds < 100 else _SLOW_REAP_S)
        if not resident.is_ending:
            return
        if self._is_awaited_again(resident):
            self._await_again(resident)
        else:
            self._finish(resident)

    def _shut_next(self, resident: Resident) -> None:
        """Freeze the next incarnation again, where it is: it may be in the same groups of Slurm's."""
        for other in self._node.residents.values():
            if other.key.job_id == resident.key.job_id and other is not resident and other.is_shut:
                self._node.freezer.shut(other)

    def _is_awaited_again(self, resident: Resident) -> bool:
        """A step of a span has ended: only where its batch script ran, or by a plan, does the job end."""
        part, plan = resident.part, self._node.plan
        if part is None or part.has_script or resident.is_fenced or plan is None:
            return False
        return any(job.key == resident.key for job in plan.jobs)

    def _await_again(self, resident: Resident) -> None:
        """Its next step may come: until then its part stays as it is, on if it was on."""
        node, now = self._node, self._node.clock.mono()
        part = resident.part
        assert part is not None
        resident.is_ending, part.has_processes = False, False
        for rank in resident.ranks:
            rank.look()
            rank.is_alive = False
        resident.forget_dead()
        resident.tasks.clear()
        resident.stopped, resident.left_stopped = set(), set()
        resident.is_frozen = resident.is_frozen and resident.holds
        node.note("awaited", resident, now)
        if resident.state == SUSPENDING and not part.is_released:
            self._slicer.switcher.call_back(resident, "its ranks have ended")
        elif resident.holds:
            self._slicer.switcher.follow(resident)
        notice(resident, now)
        node.save()

    def revive(self, resident: Resident) -> None:
        """Slurm starts another step of a job whose last step has just ended: it is not over."""
        resident.is_ending = False
        if resident.state in (SUSPENDING, RESUMING):
            self._slicer.switcher.follow(resident)

    def _finish(self, resident: Resident) -> None:
        node, now = self._node, self._node.clock.mono()
        self._slicer.switcher.forget(resident)
        self._loose.pop(resident, None)
        if resident.holds:
            self._slicer.switcher.release(resident, now)
        fields = {
            "steps": resident.steps(),
            "suspends": resident.counts.suspends,
            "fenced": resident.is_fenced,
        }
        final = Final(*resident.stand(), node.clock.real(now))
        node.note("ended", resident, now, **fields)
        for proc in [proc for owner, proc in self._watched if owner is resident]:
            self._unwatch(resident, proc)
        node.past[resident.key] = (held_time(resident, node.settings, now), now)
        for rank in resident.ranks:
            rank.page.close()
        node.freezer.forget(resident)
        self._shut_next(resident)
        node.devices.forget(resident)
        del node.residents[resident.key]
        if resident.part is not None:
            resident.part.leave()
            resident.part.news.set()
        if resident.part is None or resident.part.has_begun:
            node.ended[resident.key] = 0
            node.finals[resident.key] = final
        node.set_gangs()
        self._slicer.fill()
        node.save()


def runs_unasked(resident: Resident) -> bool:
    """True when what was stopped of it runs; where no group of it is frozen, that it has begun is noted."""
    runs = any(not _is_at_rest(proc) for proc in resident.stopped | resident.left_stopped)
    resident.has_begun |= runs and not resident.is_shut
    return runs


def _is_headless(resident: Resident) -> bool:
    """True when the ranks it was parked by are gone: what its script does next would run unasked."""
    return not resident.is_frozen and bool(resident.ranks) and not any(r.is_alive for r in resident.ranks)


def _is_at_rest(proc: ProcId) -> bool:
    now = procs.read_proc(proc.pid)
    return now is None or now.start != proc.start or now.is_stopped
