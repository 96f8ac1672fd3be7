"""Admission: tasks that Slurm starts become residents with GPUs, processes that train become ranks.

Whoever speaks is known by his socket (pid, uid) and by the job his process is in, never by what he says.
"""

from __future__ import annotations

import logging
import pwd
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gandiva_slurm.model.errors import PeerBusy, PeerError
from gandiva_slurm.node import mps, procs
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.hello import Bind, Hello
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses, Membership, Stepd, membership
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.part import Part
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.watch import Watcher
from gandiva_slurm.wire.messages import PlannedJob

#: Tickets of a job no plan names, where no planned job gives a measure.
_TICKETS = 1_000_000

#: Stands in the table for a GPU whose slot nobody has named.
_NO_SLOT = -1
#: Steps that there are before a batch script has run; only the first runs something of the job's.
_BEFORE_STEPS = ("batch", "extern")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Peer:
    """Who is at the other end of a connection: by SO_PEERCRED, or a task's user by root's word."""

    proc: ProcId
    uid: int


class Admission:
    """Takes in tasks and ranks; refuses what is of no job of this node, or of a past incarnation."""

    def __init__(
        self,
        node: Node,
        slicer: Slicer,
        watcher: Watcher,
        find: Callable[[int], Membership | None] = membership,
    ) -> None:
        self._node = node
        self._slicer = slicer
        self._watcher = watcher
        self._find = find

    def bind(self, peer: Peer, bind: Bind) -> dict[str, str]:
        """Register a task and return its environment; PeerError says why not.

        A task of a job that does not hold its GPUs now is stopped before this returns.
        """
        member = self._member(peer, bind.key.job_id)
        bind = self._with_true_restart(bind, peer)
        self._refuse_stale(bind, member, peer)
        resident = self._node.residents.get(bind.key)
        is_new = resident is None or (resident.part is not None and not resident.part.has_begun)
        if resident is None:
            resident = self._register(peer, bind, member)
            resident.has_begun = False
        self._check_uid(resident, peer)
        self._begin_part(resident, bind.step)
        if resident.is_ending:
            self._watcher.revive(resident)
        self._adopt_step(resident, member)
        self._node.freezer.admit(resident, peer.proc.pid)
        self._node.devices.confine(resident, [peer.proc.pid])
        learn_slots(resident, bind)
        if bind.is_numbered_step and bind.has_gpus and member.stepd is not None:
            resident.tasks.setdefault(member.stepd, set()).add(peer.proc)
            self._watcher.watch(resident, peer.proc)
        is_stopped = resident.is_at_rest and bind.has_gpus
        begins = bind.step not in _BEFORE_STEPS or (bind.step == "batch" and not is_stopped)
        resident.has_begun |= begins and not resident.image.unfit
        if is_new:
            self._node.note("register", resident, step=bind.step, planned=resident.is_planned)
            self._slicer.fill()
        # The batch script of a span must run to start its tasks, and uses no GPU by itself.
        is_starter = resident.part is not None and not bind.is_numbered_step
        if resident.is_at_rest and bind.has_gpus and not is_starter:
            self._slicer.switcher.stop_processes(resident, [peer.proc])
            if (resident.part is None or resident.is_shut) and not resident.image.is_in_hand:
                self._node.freezer.shut(resident)
        self._node.save()
        gpus = gpus_of_task(resident, bind.step_slots) if bind.has_gpus else ()
        environment = {
            "CUDA_VISIBLE_DEVICES": ",".join(str(number) for number in _numbers(resident, gpus)),
            "GANDIVA_JOB": str(bind.key.job_id),
            "GANDIVA_RESTART": str(bind.key.restart),
            "GANDIVA_NODE": self._node.settings.node,
        }
        if resident.is_opportunistic:
            settings, cards = self._node.settings, [self._node.card_bytes(gpu) for gpu in resident.gpus]
            environment |= mps.environment(settings.mps_percent, settings.mps_memory_percent, cards)
        directory = self._node.settings.checkpoint_dir.replace("%u", resident.user)
        return environment | ({"GANDIVA_CHECKPOINT_DIR": directory} if directory else {})

    def take_lost(self, job: PlannedJob, stepds: Sequence[Stepd]) -> None:
        """Register a planned job that runs under these slurmstepds, though none of its tasks was bound."""
        node = self._node
        node.know(job.key)
        resident = node.residents.get(job.key) or self._enroll(job, is_planned=True)
        for stepd in stepds:
            self._begin_part(resident, stepd.step)
            member = next(filter(None, map(self._find, procs.children(stepd.proc.pid))), None)
            groups = member.cgroups if member is not None else ()
            self._adopt_step(resident, Membership(job.job_id, stepd.proc, stepd.step, groups))
        node.freezer.adopt(resident)
        if resident.is_confined is None:
            node.devices.confine(resident, [proc.pid for proc in resident.processes.members()])
        node.note("register", resident, step=stepds[0].step, planned=True, lost=True)
        self._slicer.fill()
        if resident.is_at_rest:
            self._slicer.switcher.shut(resident)
        node.save()

    def greet(self, peer: Peer, hello: Hello) -> tuple[Resident, Rank]:
        """Return a new rank with its page; `seat` makes it part of its job. PeerError says why not."""
        member = self._member(peer, None)
        resident = self._resident_of(member)
        self._check_uid(resident, peer)
        resident.check_room(peer.proc)
        self._adopt_step(resident, member)
        owner, shift_ns = None, 0
        if self._node.settings.image_dir is not None:
            owner = peer.uid, pwd.getpwuid(peer.uid).pw_gid
            shift_ns = procs.clock_shift_ns(peer.proc.pid)
        now = self._node.clock.mono()
        page = Page.make(resident.key, hello.rank, hello.world, now, shift_ns, owner)
        return resident, Rank(peer.proc, hello.rank, page, member.stepd)

    def seat(self, resident: Resident, rank: Rank, hello: Hello, remote_fd: int) -> None:
        """The rank has its page, under this descriptor of its own; it is stopped if its job waits."""
        if self._node.residents.get(resident.key) is not resident:
            raise PeerError(f"job {resident.key} has ended")
        rank.remote_fd = remote_fd
        group = resident.join(rank, hello.world, hello.master)
        group.set_mark(self._node.clock.mono())
        self._watcher.watch(resident, rank.proc)
        self._node.note(
            "rank",
            resident,
            rank=hello.rank,
            world=hello.world,
            pid=rank.proc.pid,
            backend=hello.backend,
            torch=hello.torch,
            kind=hello.kind,
        )
        if resident.is_at_rest:
            self._slicer.switcher.stop_processes(resident, [rank.proc])
        self._node.save()

    def answer(self) -> dict[str, object]:
        """Return what a rank is told with its page."""
        settings = self._node.settings
        bounds = {"wake_grace_s": settings.wake_grace_s, "park_deadline_s": settings.park_deadline_ns / 1e9}
        return {"ok": True, **bounds, "confirms": True}

    def _member(self, peer: Peer, claimed: int | None) -> Membership:
        member = self._find(peer.proc.pid)
        if member is None or not procs.is_alive(peer.proc):
            raise PeerError(f"process {peer.proc.pid} belongs to no Slurm job on this node")
        if claimed is not None and claimed != member.job_id:
            raise PeerError(f"process {peer.proc.pid} belongs to job {member.job_id}, not to {claimed}")
        return member

    def _with_true_restart(self, bind: Bind, peer: Peer) -> Bind:
        """Slurm tells a task its restart count only by the environment: where more is known, that counts.

        srun may not pass the variable on, and a job may have it from the job that submitted it. A batch
        script's is believed where it says that it is too late, or that it follows one that is or was here.
        """
        job_id = bind.key.job_id
        mine = [r for key, r in self._node.residents.items() if key.job_id == job_id and not r.is_ending]
        here = [r.key for r in mine if r.part is None or r.part.has_begun]
        planned = self._planned_of(peer, job_id)
        known = max([*here, *(job.key for job in planned)], default=bind.key)
        if bind.step == "batch" and (here or bind.key < known or any(map(self._is_over, planned))):
            return bind
        return replace(bind, key=known)

    def _refuse_stale(self, bind: Bind, member: Membership, peer: Peer) -> None:
        """At most one incarnation of a job runs: an older one is killed, a newer one kills the older."""
        node, key = self._node, bind.key
        others = [r for r in node.residents.values() if r.key.job_id == key.job_id and r.key != key]
        if any(member.stepd is not None and member.stepd in other.processes.stepds for other in others):
            raise PeerError(f"job {key}: this step was registered with another restart count")
        present = node.residents.get(key)
        is_peers = any(job.key == key and job.uid == peer.uid for job in self._jobs())
        if is_peers and present is not None and present.processes.uid != peer.uid:
            raise PeerBusy(f"job {key} waits for the end of another user's, which had its number")
        if node.is_stale(key) or (present is not None and present.is_fenced):
            stepds = {member.stepd} if member.stepd is not None else set()
            stale = JobProcesses(key, peer.uid, node.settings.node, stepds, set())
            node.events.write("fence", key, why="stale incarnation", killed=stale.kill())
            raise PeerError(f"job {key} is not the newest incarnation of its job; its processes are stopped")
        promised, until_ns = node.promised.get(key.job_id, (key.restart, 0))
        if promised < key.restart and node.clock.mono() < until_ns:
            raise PeerBusy(f"job {key} waits: another node may still work on {key.job_id}.{promised}")
        node.know(key)
        for other in others:
            self._watcher.fence(other, f"{key} has started")

    def _register(self, peer: Peer, bind: Bind, member: Membership) -> Resident:
        planned = next((job for job in self._jobs() if job.key == bind.key), None)
        is_planned = planned is not None
        if planned is None:
            planned = self._in_its_place(peer, bind) or self._place(peer, bind)
        elif planned.uid != peer.uid:
            raise PeerError(f"job {bind.key} is uid {planned.uid}'s, not uid {peer.uid}'s")
        return self._enroll(planned, is_planned)

    def _enroll(self, planned: PlannedJob, is_planned: bool) -> Resident:
        clock = self._node.clock
        resident = Resident(
            key=planned.key,
            user=planned.user,
            gpus=tuple(sorted(planned.gpus)),
            tickets=planned.tickets,
            mate=planned.mate,
            is_opportunistic=planned.is_opportunistic,
            vc=planned.vc,
            is_on=planned.is_on,
            submitted_ns=planned.submitted_ns,
            processes=JobProcesses(planned.key, planned.uid, self._node.settings.node, set(), set()),
            registered_real_ns=clock.real(),
            registered_ns=clock.mono(),
            name=planned.name,
            is_planned=is_planned,
            is_trusted=planned.is_trusted,
            is_requeueable=planned.is_requeueable,
            since_ns=clock.mono(),
            part=Part(planned.span) if planned.span else None,
        )
        self._node.welcome(resident)
        self._node.set_gangs()
        return resident

    def _begin_part(self, resident: Resident, step: str) -> None:
        """A process of a planned part has come."""
        part = resident.part
        if part is None:
            return
        if not part.has_begun:
            resident.registered_real_ns = self._node.clock.real()
            resident.registered_ns = self._node.clock.mono()
            resident.since_ns = resident.since_ns if resident.holds else self._node.clock.mono()
            resident.slots = ()
        part.has_begun = part.has_processes = True
        part.has_script = part.has_script or step == "batch"

    def _planned_of(self, peer: Peer, job_id: int) -> list[PlannedJob]:
        return [job for job in self._jobs() if job.job_id == job_id and job.uid == peer.uid]

    def _is_over(self, job: PlannedJob) -> bool:
        """It has ended here: a batch script that begins is of a later one, which Slurm has started."""
        resident = self._node.residents.get(job.key)
        is_ending = resident is not None and resident.is_ending
        return not job.span and (is_ending or job.key in self._node.ended)

    def _in_its_place(self, peer: Peer, bind: Bind) -> PlannedJob | None:
        """Slurm has restarted it before gandivactld could plan it: it has the GPUs that it had (ADR 0003)."""
        over = next(filter(self._is_over, self._planned_of(peer, bind.key.job_id)), None)
        return None if over is None else replace(over, restart=bind.key.restart)

    def _place(self, peer: Peer, bind: Bind) -> PlannedJob:
        """No plan names this job: it runs all the same, on the GPUs with the least tickets."""
        node = self._node
        if not node.gpus:
            raise PeerBusy("no plan has reached this node yet, its GPUs are not known")
        count = min(max(1, len(bind.job_slots)), node.gpus)
        load = dict.fromkeys(range(node.gpus), 0)
        for resident in node.residents.values():
            for gpu in resident.gpus:
                load[gpu] += resident.tickets // len(resident.gpus)
        gpus = tuple(sorted(sorted(load, key=lambda gpu: (load[gpu], gpu))[:count]))
        known = sorted(job.tickets for job in self._jobs())
        tickets = known[len(known) // 2] if known else _TICKETS
        log.warning("job %s is in no plan; placed on GPUs %s of this node", bind.key, gpus)
        key, user = bind.key, _user_name(peer.uid)
        # Nobody has said whose it is: it goes before no virtual cluster on that one's GPUs.
        is_spare = any(job.vc and not set(job.gpus).isdisjoint(gpus) for job in self._jobs())
        times = (tickets, node.clock.real())
        return PlannedJob(*key, user, peer.uid, gpus, *times, is_opportunistic=is_spare)

    def _jobs(self) -> Sequence[PlannedJob]:
        return self._node.plan.jobs if self._node.plan is not None else ()

    def _check_uid(self, resident: Resident, peer: Peer) -> None:
        if resident.processes.uid != peer.uid:
            raise PeerError(f"job {resident.key} is uid {resident.processes.uid}'s, not uid {peer.uid}'s")

    def _adopt_step(self, resident: Resident, member: Membership) -> None:
        resident.processes.cgroups.update(member.cgroups)
        if member.stepd is not None and member.stepd not in resident.processes.stepds:
            resident.processes.stepds.add(member.stepd)
            self._watcher.watch(resident, member.stepd)

    def _resident_of(self, member: Membership) -> Resident:
        mine = [r for r in self._node.residents.values() if r.key.job_id == member.job_id and not r.is_ending]
        for resident in mine:
            if member.stepd in resident.processes.stepds:
                return resident
        if not mine:
            raise PeerError(
                f"job {member.job_id} is not registered on this node (is the SPANK plugin installed?)"
            )
        return max(mine, key=lambda resident: resident.key)


def learn_slots(resident: Resident, bind: Bind) -> None:
    """Keep which slots stand for the job's GPUs, in order.

    A batch script knows all slots of its job. In salloc and srun without a script no task does: there the
    slots that a task names first are the GPUs' of its number on the node, or else the next ones'. Slots of a
    job are its own, so there are never more than GPUs. What the environment says of the job's slots is not
    believed where it leaves out the task's own, nor from a step of a job of several nodes: it has the slots
    of the first node, from the batch script.
    """
    size = len(resident.gpus)
    is_here = resident.part is None or not bind.is_numbered_step
    is_whole = len(bind.job_slots) == size and set(bind.step_slots) <= set(bind.job_slots)
    if is_here and is_whole and not resident.slots:
        resident.slots = bind.job_slots
    new = [slot for slot in bind.step_slots if slot not in resident.slots]
    if new:
        resident.slots = _seated(resident.slots, new, bind.task * len(new), size)


def _seated(slots: tuple[int, ...], new: list[int], first: int, size: int) -> tuple[int, ...]:
    table = [*slots, *([_NO_SLOT] * size)][:size]
    places = [place for place in range(size) if table[place] == _NO_SLOT]
    own = range(first, first + len(new))
    for place, slot in zip(own if set(own) <= set(places) else places, new, strict=False):
        table[place] = slot
    return tuple(table)


def gpus_of_task(resident: Resident, step_slots: tuple[int, ...]) -> tuple[int, ...]:
    """Return the GPUs behind a task's slots: the n-th slot of the job is its n-th GPU; none named: all."""
    gpus = resident.gpus
    if not step_slots:
        return gpus
    if set(step_slots) <= set(resident.slots):
        places = [resident.slots.index(slot) for slot in step_slots]
    else:
        # Slots counted from 0 within the job (Slurm does so where it confines devices), or of another kind.
        places = [slot for slot in step_slots if slot < len(gpus)] or list(range(len(step_slots)))
    return tuple(gpus[place] for place in places if place < len(gpus)) or gpus


def _numbers(resident: Resident, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers by which CUDA knows these GPUs: it counts those that the job can open."""
    return tuple(map(resident.gpus.index, gpus)) if resident.is_confined else gpus


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
