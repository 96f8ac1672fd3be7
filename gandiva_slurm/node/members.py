"""Which processes are a job's: the way up from a process to its job, and down from a job to its processes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import cgroups, procs
from gandiva_slurm.node.procs import Proc, ProcId

#: Slurm's own trees alone (v1 `/slurm[_NODE]/uid_N/job_N`, v2 `/system.slice/[NODE_]slurmstepd.scope/job_N`):
#: a user may have a cgroup delegated to him elsewhere and name it as he likes.
_CGROUP_JOB = re.compile(
    r"^(?:/slurm(?:_[^/]+)?/uid_\d+|/system\.slice/(?:[^/]+_)?slurmstepd\.scope)/job_(\d+)(?=/|$)"
)
_STEPD_TITLE = re.compile(r"slurmstepd: \[(\d+)\.([^\]]*)\]")
#: The step that Slurm begins beside the others (PrologFlags=Contain), with what pam_slurm_adopt brings.
EXTERN = "extern"
#: Rounds of a signal to a set of processes: each catches what the last one's targets had forked meanwhile.
ROUNDS = 50
#: What is read of the table of a host's unix sockets, at most.
MOST_SOCKETS = 1 << 24

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Membership:
    """The job a process belongs to, and the slurmstepd it lives under (None: known by its cgroup alone)."""

    job_id: int
    stepd: ProcId | None
    step: str
    #: the job's cgroup directories under /sys/fs/cgroup
    cgroups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stepd:
    """A step's slurmstepd on this node; `step` as in its title: a number, or batch, interactive, extern."""

    proc: ProcId
    job_id: int
    step: str


def stepds() -> list[Stepd]:
    """Return the slurmstepds on this node, by a look at root's processes, without those of extern steps."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            is_roots = name.isdigit() and os.stat(f"/proc/{name}").st_uid == 0
            match = _STEPD_TITLE.match(procs.title(int(name))) if is_roots else None
            proc = procs.read_proc(int(name)) if match else None
            if match and proc is not None and match[2] != EXTERN and procs.uids(proc.pid) == (0, 0):
                found.append(Stepd(proc.id, int(match[1]), match[2]))
    return found


def node_of(stepd: Stepd) -> str | None:
    """Return the node that a slurmstepd serves: a host may have several. None: it has no socket that says so.

    Its socket is called SlurmdSpoolDir/NODE_JOB.STEP.
    """
    pid, sockets = stepd.proc.pid, set[str]()
    with contextlib.suppress(OSError):
        sockets = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    for line in procs.read_text(pid, "net/unix", MOST_SOCKETS).splitlines():
        # Num: RefCount Protocol Flags Type St Inode Path (proc_pid_net(5))
        words = line.split(maxsplit=7)
        if len(words) == 8 and f"socket:[{words[6]}]" in sockets:
            node, _, rest = words[7].rpartition("/")[2].rpartition("_")
            if rest.startswith(f"{stepd.job_id}."):
                return node
    return None


def is_stepds_title(title: str) -> bool:
    """True for what a slurmstepd calls itself; a task is called so, too, until it becomes its program."""
    return _STEPD_TITLE.match(title) is not None


def batch_job_above(pid: int) -> int | None:
    """Return the job whose batch step's slurmstepd has just forked a process; None: it is another's child.

    While it starts tasks a slurmstepd has its user's effective uid: `membership` may not know it then.
    """
    proc = procs.read_proc(pid)
    match = _STEPD_TITLE.match(procs.title(proc.parent)) if proc is not None else None
    owner = procs.uids(proc.parent) if proc is not None and match else None
    return int(match[1]) if match and match[2] == "batch" and owner is not None and owner[0] == 0 else None


def has_come_by_ssh(pid: int, job_id: int) -> bool:
    """True for what pam_slurm_adopt has put into a job's extern step, and what that has started."""
    # In version 1 the step's own group may have them.
    pattern = rf"/job_{job_id}/step_{EXTERN}(?:/|$)"
    return re.search(pattern, procs.read_text(pid, "cgroup"), re.MULTILINE) is not None


def membership(pid: int) -> Membership | None:
    """Find the job of a process; None when it is in none. Nothing the process says of itself is believed."""
    job_id, cgroups = _cgroup_job(pid)
    stepd, title = _stepd_above(pid)
    if stepd is not None and title is not None and (job_id is None or job_id == int(title[1])):
        return Membership(int(title[1]), stepd, title[2], cgroups)
    return None if job_id is None else Membership(job_id, None, "", cgroups)


def _cgroup_job(pid: int) -> tuple[int | None, tuple[str, ...]]:
    found = list(_cgroup_matches(procs.read_text(pid, "cgroup")))
    jobs = {int(match[1]) for _, match in found}
    if len(jobs) != 1:
        return None, ()
    return jobs.pop(), tuple(f"{mount}{match[0]}" for mount, match in found)


def _cgroup_matches(text: str) -> Iterable[tuple[str, re.Match[str]]]:
    """(mount point, job's directory below it) for each line of /proc/PID/cgroup that is in Slurm's tree."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        match = _CGROUP_JOB.match(path)
        if match:
            mount = f"/{controllers.removeprefix('name=').split(',')[0]}" if controllers else ""
            yield f"/sys/fs/cgroup{mount}", match


def _stepd_above(pid: int) -> tuple[ProcId | None, re.Match[str] | None]:
    """The nearest true slurmstepd above a process: root's, real uid included (a set-uid program's is not)."""
    chain = procs.ancestors(pid)
    next(chain, None)
    for proc in chain:
        match = _STEPD_TITLE.match(procs.title(proc.pid))
        if match and procs.uids(proc.pid) == (0, 0):
            return proc.id, match
    return None, None


@dataclass
class JobProcesses:
    """A job's way down to its processes: its slurmstepds, its cgroups, and what its environment says."""

    key: JobKey
    uid: int
    node: str
    stepds: set[ProcId]
    cgroups: set[str]
    #: the control group that gandivad has put its tasks into
    own: Path | None = None
    #: when the newest of its slurmstepds that have ended began, as in `ProcId.start`; 0: none has
    newest: int = 0

    def near(self) -> list[Proc]:
        """Return the live processes below its slurmstepds, without a look at all there are on the node."""
        roots = [stepd.pid for stepd in self.stepds if procs.is_alive(stepd)]
        below = procs.below(roots)
        return [proc for proc in below if proc.state not in procs.ENDED and self._is_users(proc.pid)]

    def members(self) -> list[Proc]:
        """Return the job's live processes, its slurmstepds left out.

        Descendants of its slurmstepds, whatever is in its cgroups, and what has left both (setsid under
        proctrack/linuxproc) but still carries the job's environment.
        """
        roots = [stepd.pid for stepd in self.stepds if procs.is_alive(stepd)]
        found = {proc.pid: proc for proc in (*procs.below(roots), *procs.each(self._in_cgroups()))}
        mine = {pid: proc for pid, proc in found.items() if self._is_users(pid) and pid not in roots}
        if not self.is_enclosed:
            others = (proc for pid, proc in procs.table().items() if pid not in found)
            mine |= {proc.pid: proc for proc in others if self._has_strayed(proc.pid)}
        return [proc for proc in mine.values() if proc.state not in procs.ENDED]

    @property
    def is_enclosed(self) -> bool:
        """True when it is in a control group that it cannot leave: no process of it is anywhere else."""
        return self.own is not None or bool(self.cgroups)

    def has_stepd(self) -> bool:
        """True while one of its slurmstepds lives: Slurm has not ended the job here."""
        return any(procs.is_alive(stepd) for stepd in self.stepds)

    def stop(self, only: Iterable[ProcId] | None = None) -> tuple[set[ProcId], set[ProcId]]:
        """SIGSTOP all members (or these); return (those we stopped, those that were stopped before)."""
        before: set[ProcId] = set()
        ours: set[ProcId] = set()
        for _ in range(ROUNDS):
            todo = [proc for proc in self._targets(only) if proc.id not in ours | before]
            for proc in todo:
                (before if proc.is_stopped else ours).add(proc.id)
            sent = [procs.send(proc.id, signal.SIGSTOP) for proc in todo if not proc.is_stopped]
            if not any(sent):
                return ours, before
        log.error("job %s: still forking after %d rounds of SIGSTOP", self.key, ROUNDS)
        return ours, before

    def stopped_by_us(self, before: Iterable[ProcId], states: str = "T") -> set[ProcId]:
        """Return those of a frozen job that are stopped and were not `before` it was.

        A gandivad may be killed between the order to stop them and the list of those that it reached.
        """
        return {proc.id for proc in self.members() if proc.state in states} - set(before)

    def kill(self, is_over: bool = False) -> int:
        """SIGKILL all members until none is left to send it to; return how many there were.

        What lives under another slurmstepd of the job is its next step, its next incarnation, or has come by
        ssh: Slurm ends that. `is_over`: the whole incarnation is, and only what began after it goes on.
        """
        killed: set[ProcId] = set()
        for _ in range(ROUNDS):
            found = [proc for proc in self.members() if proc.id not in killed]
            others = self._of_others(is_over) if found else set()
            todo = [proc.id for proc in found if proc.pid not in others]
            for proc in todo:
                procs.send(proc, signal.SIGKILL)
            killed.update(todo)
            if not todo:
                break
        return len(killed)

    def kill_unreported(self) -> int:
        """SIGKILL all members and their slurmstepds: nobody tells slurmctld of an exit code."""
        others = self._of_others(is_over=True)
        ours, before = self.stop([proc.id for proc in self.members() if proc.pid not in others])
        for proc in (*self.stepds, *ours, *before):
            procs.send(proc, signal.SIGKILL)
        return len(ours) + len(before) + self.kill(is_over=True)

    def _of_others(self, is_over: bool) -> set[int]:
        """Return the processes under other slurmstepds of the job, with these: its groups have them, too."""
        begun = [start for start in (self.newest, *(stepd.start for stepd in self.stepds)) if start]
        since = max(begun, default=sys.maxsize) if is_over else -1
        # A task is called as its slurmstepd until it becomes its program.
        roots = [stepd.pid for stepd in self.stepds if procs.is_alive(stepd)]
        mine = {*roots, *(proc.pid for proc in procs.below(roots))}
        found = [each for each in self._stepds_in_cgroups() if each.proc.pid not in mine]
        others = [each for each in found if each.proc.start > since]
        pids = {each.proc.pid for each in others}
        pids |= {proc.pid for proc in procs.below(sorted(pids))}
        if any(each.step == EXTERN for each in others):  # what has come by ssh is below no slurmstepd
            pids |= set(cgroups.pids(Path(directory, f"step_{EXTERN}") for directory in self.cgroups))
        return pids

    def _stepds_in_cgroups(self) -> Iterator[Stepd]:
        """Yield the job's slurmstepds; one that starts tasks has its user's effective uid."""
        for pid in {*self._in_cgroups()}:
            match, proc, owner = _STEPD_TITLE.match(procs.title(pid)), procs.read_proc(pid), procs.uids(pid)
            if match and proc is not None and owner is not None and owner[0] == 0:
                yield Stepd(proc.id, int(match[1]), match[2])

    def _targets(self, only: Iterable[ProcId] | None) -> list[Proc]:
        if only is None:
            return self.members()
        now = (procs.read_proc(proc.pid) for proc in only)
        wanted = set(only)
        return [proc for proc in now if proc is not None and proc.id in wanted]

    def _is_users(self, pid: int) -> bool:
        owner = procs.uids(pid)
        return owner is not None and owner[0] == self.uid

    def _in_cgroups(self) -> Iterable[int]:
        ours = [] if self.own is None else [self.own]
        return cgroups.pids([*ours, *map(Path, sorted(self.cgroups))])

    def _has_strayed(self, pid: int) -> bool:
        """True for what carries the job's environment and is in no other job (a job may submit another)."""
        if not self._is_users(pid):
            return False
        words = set(procs.read_text(pid, "environ").split("\0"))
        wanted = {
            f"GANDIVA_JOB={self.key.job_id}",
            f"GANDIVA_RESTART={self.key.restart}",
            f"GANDIVA_NODE={self.node}",
        }
        if not wanted <= words:
            return False
        home = membership(pid)
        return home is None or home.job_id == self.key.job_id
