"""Restores that are under way, and jobs that go on from their images elsewhere (ADR 0071)."""

from __future__ import annotations

import logging
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gandiva_slurm.model.errors import PeerBusy
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import images, kept_images, procs
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.saved import restoring_in
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.spares import SPARE_NS

#: What a task is told whose job is to go on elsewhere.
ELSEWHERE = "its image cannot be restored here, and it is to go on from it elsewhere"
#: What is told of a job whose gandivad was ended meanwhile.
STARTED_ANEW = "gandivad was started anew before it was restored"
#: The task of a restore that a former gandivad had begun.
NO_TASK = ProcId(0, 0)

log = logging.getLogger(__name__)


class Elsewhere(PeerBusy):
    """The task waits here until its job is requeued."""


class Restoring(PeerBusy):
    """Its image is fetched, or its processes are restored: how long that may take goes with the image."""


@dataclass
class Restore:
    """One that is under way."""

    old: JobKey
    #: the image, claimed
    place: Path
    #: process 1 of what is restored, and the task that waits for it
    first: ProcId
    task: ProcId
    #: of this gandivad's own: the program that restores it, how long that may take, and what the image tells
    call: subprocess.Popen[str] | None = None
    until_s: float = 0.0
    manifest: dict[str, Any] = field(default_factory=dict)
    #: why it has failed; "": it has not
    why: str = ""
    is_damaged: bool = False

    def is_over(self) -> bool:
        """End what there is of it; True when nothing is: the kernel ends a namespace with its process 1."""
        if self.call is not None:
            self.call.kill()
        procs.send(self.first, signal.SIGKILL)
        return not procs.is_alive(self.first)

    def to_json(self) -> list[Any]:
        """What a gandivad that is started anew must know of it."""
        return [str(self.old), str(self.place), self.first]

    @classmethod
    def from_json(cls, row: list[Any]) -> Restore:
        """One that a former gandivad had begun, and whose task is told nothing of it."""
        old, place, first = row
        return cls(JobKey.parse(old), Path(place), ProcId(*first), NO_TASK)


def of_ended(node: Node) -> dict[JobKey, Restore]:
    """Return what a former gandivad was restoring for jobs that have ended: their next starts want it."""
    saved = node.saved if node.saved is not None and node.is_same_boot else {"jobs": []}
    rows = restoring_in(saved).items()
    return {key: Restore.from_json(row) for key, row in rows if key not in node.residents}


def in_use(node: Node) -> set[Path]:
    """Return the images that a former gandivad had claimed, and that are still wanted."""
    rows = [resident.image.restoring for resident in node.residents.values()]
    return {Path(row[1]) for row in rows if row} | {running.place for running in of_ended(node).values()}


def give_back(node: Node, running: Restore) -> str:
    """Put its image back, for another start; say why that cannot be done, "" when it is."""
    root = node.settings.image_dir
    assert root is not None
    try:
        images.give_back(root, running.place, running.old)
    except OSError as err:
        images.remove(running.place)
        return f"its image is lost: {err.strerror}"
    if node.settings.are_images_fetched:
        node.images.add(running.old)
    return ""


def keep(node: Node, resident: Resident, running: Restore) -> None:
    """Where images are kept it has one from the first: this node may be lost, too. Else a spare one."""
    root, is_spare = node.settings.image_dir, not node.settings.image_parked
    assert root is not None
    try:
        images.pass_on(root, running.place, running.old, resident.key, is_spare)
        resident.image.spare_until_ns = node.clock.mono() + SPARE_NS
        if not is_spare:
            resident.image.kept_steps = kept_images.done(resident)
    except (OSError, ValueError) as err:
        log.error("job %s: the image that it goes on from is not kept: %s", resident.key, err)


def send_elsewhere(node: Node, slicer: Slicer, resident: Resident, why: str) -> None:
    """Have a job give its GPUs up, and say that it is to be started elsewhere: it has not begun here."""
    resident.image.unfit, resident.image.unfit_ns = why, node.clock.mono()
    resident.has_begun = False
    node.note("unrestored", resident, why=why, anew=False)
    log.error("job %s: not restored, its image is kept for another node: %s", resident.key, why)
    drop_ranks(resident)
    node.save()
    slicer.fill()


def drop_ranks(resident: Resident) -> None:
    """Forget ranks that were restored, and have ended."""
    for rank in resident.ranks:
        rank.is_alive = False
    resident.forget_dead()
