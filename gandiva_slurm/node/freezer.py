"""The freezer: nothing of a job that holds no GPU runs, whatever it has started, whatever continues it.

A job's tasks are in a control group that only root may take them out of: Slurm's own where it has one
(`task/cgroup` of version 2, `proctrack/cgroup` of version 1), else one of gandivad's, which a task enters
before its program begins. Where no group can be frozen, processes are sent SIGSTOP (`watch` sends it again).
The kernel alone remembers what is frozen: a gandivad that is started anew looks there.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import cgroups
from gandiva_slurm.node.members import ROUNDS

if TYPE_CHECKING:
    from gandiva_slurm.node.jobs import Resident

log = logging.getLogger(__name__)


class Freezer:
    """Freezes and thaws the jobs of one node. `name` is the node's own group, kept over restarts."""

    def __init__(self, root: Path | None, name: str) -> None:
        self.name = name
        self._base = None if root is None else root / cgroups.OURS / name

    def admit(self, resident: Resident, pid: int) -> None:
        """Take a task in: it, and whatever it starts, is in its job's group from now on."""
        if self._base is None or resident.is_trusted or slurms_groups(resident.processes.cgroups):
            return
        group = self._own(resident.key)
        # A second try: a gandivad that starts beside this one may have swept the group while it was empty.
        for _ in range(2):
            if group is not None and cgroups.make(group.parent, group.name) and cgroups.enter(group, pid):
                resident.processes.own = group
                return

    def groups(self, resident: Resident) -> list[Path]:
        """Return what is frozen when this job is; nothing where it has no group."""
        own = resident.processes.own
        return [own] if own is not None else slurms_groups(resident.processes.cgroups)

    def shut(self, resident: Resident) -> bool:
        """Freeze all of a job; False where it has no group for that."""
        frozen = [cgroups.freeze(group, True) for group in self.groups(resident)]
        resident.is_shut = bool(frozen) and all(frozen)
        return resident.is_shut

    def open(self, resident: Resident) -> None:
        """Let it run."""
        resident.is_shut = False
        for group in self.groups(resident):
            cgroups.freeze(group, False)

    def stands_still(self, resident: Resident) -> bool:
        """True when a job that was frozen has arrived there."""
        return resident.is_shut and all(map(cgroups.is_frozen, self.groups(resident)))

    def adopt(self, resident: Resident) -> None:
        """Find the group of a job that another gandivad has left here, and how it stands."""
        group = self._own(resident.key)
        if group is not None and group.is_dir() and not resident.is_trusted and not self.groups(resident):
            resident.processes.own = group
        elif not self.groups(resident):
            self._enclose(resident)
        resident.is_shut = any(map(cgroups.is_asked, self.groups(resident)))

    def set_trust(self, resident: Resident, is_trusted: bool) -> None:
        """Take the plan's word on whether a job is frozen while it is parked; one that was caught is.

        What has come to a job while it was trusted is taken into its group when it is so no more.
        """
        was_trusted, resident.is_trusted = resident.is_trusted, is_trusted and not resident.is_caught
        if was_trusted and not resident.is_trusted:
            self.adopt(resident)

    def _enclose(self, resident: Resident) -> None:
        """Take in a job whose tasks came before this version did; what it forks meanwhile is found anew."""
        for _ in range(ROUNDS):
            inside = set(cgroups.pids(self.groups(resident)))
            resident.processes.own = None
            outside = [proc.pid for proc in resident.processes.members() if proc.pid not in inside]
            for pid in outside:
                self.admit(resident, pid)
            if not outside or not self.groups(resident):
                return

    def forget(self, resident: Resident) -> None:
        """Its last process is gone."""
        # Slurm's outlive a slurmstepd that was killed: the job's next start would be born frozen in them.
        self.open(resident)
        own = resident.processes.own
        if own is None:
            return
        if not cgroups.remove(own):
            log.warning("job %s: %s is not empty, and stays", resident.key, own)
        with contextlib.suppress(OSError):  # it goes with the last of the node's jobs
            own.parent.rmdir()

    def sweep(self) -> None:
        """Remove what gandivads that are gone have left of theirs."""
        if self._base is not None:
            cgroups.sweep(self._base.parent)

    def _own(self, key: JobKey) -> Path | None:
        return None if self._base is None else self._base / f"job_{key.job_id}_{key.restart}"


def slurms_groups(directories: set[str]) -> list[Path]:
    """Return the groups of a job's steps that Slurm made, without those that its slurmstepds are in.

    Version 2 has a step's processes in `job_N/step_M/user`, its slurmstepd in `job_N/step_M/slurm`; in the
    freezer of version 1 the slurmstepds are in `job_N` itself.
    """
    found: list[Path] = []
    for directory in sorted(directories):
        path = Path(directory)
        pattern = "step_*" if path.is_relative_to("/sys/fs/cgroup/freezer") else "step_*/user"
        found += filter(cgroups.can_freeze, cgroups.found(path, pattern))
    return found


def thaw_all(root: Path | None, name: str, jobs: list[set[str]]) -> int:
    """Thaw what a gandivad has left frozen, its own groups and Slurm's of these jobs; return how many."""
    ours = [] if root is None else (root / cgroups.OURS / name).glob("job_*")
    groups = [*ours, *(group for directories in jobs for group in slurms_groups(directories))]
    return sum(cgroups.is_asked(group) and cgroups.freeze(group, False) for group in groups)
