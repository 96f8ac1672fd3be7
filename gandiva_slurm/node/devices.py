"""Only its own GPUs: the devices of the others are closed to a job before its first program begins.

Slurm isolates no GPU on slot nodes (ADR 0002). A job's tasks are in a control group that only root may take
them out of, Slurm's own or one of gandivad's; to that group the files of the node's other GPUs are closed
(ADR 0044): by a program in the kernel where the group is of version 2, by `devices.deny` in version 1. As a
job's GPUs do not change while it lives here, that is done once, and lasts until the group is gone. Slurm's
may outlive its job's slurmstepds, and be the next incarnation's on other GPUs: then it is done anew, and what
was done before is undone.
CUDA numbers the GPUs that it can open: a confined task has the numbers that its GPUs have in its job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gandiva_slurm.model.errors import PeerBusy
from gandiva_slurm.node import bpf, cgroups
from gandiva_slurm.node.bpf import Device

if TYPE_CHECKING:
    from gandiva_slurm.node.jobs import Resident

#: A directory for each GPU, named by its PCI address; Linux gives NVIDIA's devices this major number.
_DRIVER, _MAJOR = Path("/proc/driver/nvidia/gpus"), 195
_MINOR = re.compile(r"^Device Minor:\s*(\d+)$", re.MULTILINE)

log = logging.getLogger(__name__)


def of_driver(directory: Path = _DRIVER) -> tuple[Device, ...]:
    """Return NVIDIA's GPUs in PCI order, as nvidia-smi counts them; none where the driver is not loaded."""
    with contextlib.suppress(OSError):
        found = [_MINOR.search((gpu / "information").read_text()) for gpu in sorted(directory.iterdir())]
        minors = [int(match[1]) for match in found if match]
        return tuple(Device(_MAJOR, minor) for minor in minors) if len(minors) == len(found) else ()
    return ()


def of_files(prefix: str) -> tuple[Device, ...]:
    """Return the GPUs whose device files are this prefix and 0, 1, 2 and so on."""
    found: list[Device] = []
    with contextlib.suppress(OSError):
        while stat.S_ISCHR((status := os.stat(f"{prefix}{len(found)}")).st_mode):
            found.append(Device(os.major(status.st_rdev), os.minor(status.st_rdev)))
    return tuple(found)


class Closing(NamedTuple):
    """What was closed to a group: which one that was, and by which program (-1: version 1)."""

    inode: int
    closed: tuple[Device, ...]
    loaded: int


class Devices:
    """Closes other jobs' GPUs. `files` is `auto`, `none` or a prefix; `name` the node's own group's."""

    def __init__(self, files: str, root: Path | None, name: str) -> None:
        self._files = files
        self._root, self._base = root, None if root is None else root / cgroups.OURS / name
        #: why they could not be closed to the newest job; "": they could, or nobody asked for it
        self.fault = ""
        self._told = ""
        self._closings: dict[Path, Closing] = {}

    def confine(self, resident: Resident, pids: Iterable[int]) -> None:
        """Close the other GPUs to these processes of a job, before they begin.

        What could not be had for a job's first task is not tried for its others: their numbers of GPUs are
        those of the whole node. PeerBusy when it was had, and cannot be for these.
        """
        if resident.is_confined is None:
            resident.is_confined = self._confine_first(resident, list(pids))
        elif resident.is_confined and not self._enter(self._group(resident), pids):
            raise PeerBusy(f"job {resident.key}: the GPUs of others cannot be closed to its new task")

    def forget(self, resident: Resident) -> None:
        """Its last process is gone."""
        own = self._own(resident)
        if own is not None and own.is_dir() and cgroups.remove(own):
            with contextlib.suppress(OSError):  # it goes with the last of the node's jobs
                own.parent.rmdir()
        for group in [group for group in self._closings if not group.exists()]:
            _let_go(self._closings.pop(group))

    def sweep(self) -> None:
        """Remove what gandivads that are gone have left of theirs."""
        if self._base is not None:
            cgroups.sweep(self._base.parent)

    def _confine_first(self, resident: Resident, pids: list[int]) -> bool:
        cards = self._cards()
        if not cards:
            return False
        if max(resident.gpus) >= len(cards):
            return self._tell(f"of GPU {max(resident.gpus)} no device is known ({len(cards)} are)")
        group = self._group(resident)
        others = [card for gpu, card in enumerate(cards) if gpu not in resident.gpus]
        try:
            if group is None or not self._enter(group, pids):
                return self._tell("there is no control group for it")
            self._close_instead(group, tuple(others))
        except OSError as err:
            return self._tell(f"{err.strerror}", f"{group}: {err.strerror}")
        self.fault = ""
        return True

    def _close_instead(self, group: Path, others: tuple[Device, ...]) -> None:
        """Close these to a group, and open what an incarnation before had closed to it."""
        inode, before = group.stat().st_ino, self._closings.get(group)
        if before is not None and before.inode == inode and before.closed == others:
            return
        self._closings[group] = Closing(inode, others, _close(group, others))
        if before is not None and before.inode == inode:
            _reopen(group, before, others)
        elif before is not None:
            _let_go(before)

    def _cards(self) -> tuple[Device, ...]:
        if self._files == "none":
            return ()
        return of_driver() if self._files == "auto" else of_files(self._files)

    def _group(self, resident: Resident) -> Path | None:
        """Return where a job's devices are closed: in Slurm's group that has all of it, else in ours.

        Version 1 is for nodes without version 2: its group of Slurm's is one that a task must not leave.
        """
        slurms = [Path(directory) for directory in sorted(resident.processes.cgroups)]
        is_v2 = self._root is not None and (self._root / "cgroup.controllers").exists()
        file = "cgroup.freeze" if is_v2 else "devices.deny"
        return next((group for group in slurms if (group / file).exists()), self._own(resident))

    def _own(self, resident: Resident) -> Path | None:
        key = resident.key
        return None if self._base is None else self._base / f"job_{key.job_id}_{key.restart}"

    def _enter(self, group: Path | None, pids: Iterable[int]) -> bool:
        """See to it that these processes are in the job's group; Slurm has put them into its own."""
        if group is None or self._base is None or not group.is_relative_to(self._base):
            return group is not None
        with contextlib.suppress(OSError):  # then none of them can enter it
            group.mkdir(parents=True, exist_ok=True)
        return all(cgroups.enter(group, pid) for pid in pids)

    def _tell(self, why: str, where: str = "") -> bool:
        """Say why they cannot be closed: the log has the place, too, which names a job."""
        self.fault, told = why, where or why
        if told != self._told:
            log.warning("the GPUs of others are not closed to jobs: %s; next: docs/setup.md", told)
        self._told = told
        return False


def _close(group: Path, others: Sequence[Device]) -> int:
    """Refuse these devices to a group; OSError says why that cannot be had."""
    if not (group / "devices.deny").exists():
        return bpf.close(group, others)
    _tell_version_1(group / "devices.deny", others)
    return -1


def _tell_version_1(file: Path, devices: Sequence[Device]) -> None:
    for device in devices:
        file.write_text(f"c {device.major}:{device.minor} rwm")


def _reopen(group: Path, before: Closing, closed: Sequence[Device]) -> None:
    """Undo what was done to a group, but for what is `closed` to it now."""
    if before.loaded >= 0:
        bpf.take_off(group, before.loaded)
        return
    again = [device for device in before.closed if device not in closed]
    _tell_version_1(group / "devices.allow", again)
    # What is denied is denied to the groups below at once; what is allowed is not.
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):  # Slurm may remove it meanwhile
            _tell_version_1(Path(directory, "devices.allow"), again)


def _let_go(closing: Closing) -> None:
    if closing.loaded >= 0:
        os.close(closing.loaded)
