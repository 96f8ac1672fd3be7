"""Images of parked jobs that are to be moved and know no other way: made, kept until the requeue, deleted.

A job is let go for the moment in which criu takes hold of it, and pays for that as for any time that it runs
without a GPU. criu leaves it stopped; from then on it never runs here again unless its image was deleted
before. What failed is told, and the job takes its turns again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node import (
    criu,
    image_cards,
    image_task,
    imageable,
    images,
    imaging,
    kept_images,
    leaving,
    procs,
    spares,
)
from gandiva_slurm.node.charging import charge_awake
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.elsewhere import in_use
from gandiva_slurm.node.image_state import OFF
from gandiva_slurm.node.jobs import Leave, Resident
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.unmade import Unmade, put_away

#: How often it looks at what is to leave, at what may leave, and into the store.
LOOK_S, CHECK_S, SWEEP_S = 0.1, 5.0, 600.0

log = logging.getLogger(__name__)


class Imager:
    """Makes images for all jobs of a node where the site wants them."""

    def __init__(self, node: Node, slicer: Slicer) -> None:
        self._node = node
        self._slicer = slicer
        self._makers: set[asyncio.Task[None]] = set()
        self._checked_s, self._swept_s = -CHECK_S, time.monotonic()
        #: residents of which the store has an image that is kept, and whether other nodes see the store
        self._kept: dict[JobKey, Resident] = {}
        self._is_shared: bool | None = None
        self._spares = spares.Spares(self._drop_spare)
        self._unmade = Unmade(node, slicer.switcher, self._fail)
        #: why GPU programs cannot be in an image here
        self._cards = imageable.CARDS_OFF
        #: what former gandivads of this node had begun is removed
        self._is_cleared = False

    async def run(self) -> None:
        """Look for ever."""
        root = self._node.settings.image_dir
        if root is None:
            await self._give_up()
            await asyncio.Event().wait()
            return
        await self._unmade.take_over("gandivad was started anew while it was made")
        # The store is other nodes', too: where it hangs, this daemon does not.
        fault = await asyncio.to_thread(_prepare, root)
        if fault:
            log.error("node.process_images is on, and no image can be made here: %s", fault)
        self._unmade.look(root)
        if not fault:
            self._note_whole(*await asyncio.to_thread(images.all_keys, root))
        while True:
            now_s = time.monotonic()
            if now_s - self._checked_s >= CHECK_S:
                self._checked_s = now_s
                fault = fault and await asyncio.to_thread(_prepare, root)
                if self._node.settings.image_parked and not fault and not self._is_shared:
                    self._note_shared(await asyncio.to_thread(_is_shared, root, self._node.settings.node))
                self._cards = await asyncio.to_thread(image_cards.why_not, root, self._node)
                for resident in list(self._node.residents.values()):
                    resident.image.why_not = fault or image_task.why_not(self._node, resident, self._cards)
            if not fault and not self._is_cleared:
                self._is_cleared = True
                by, kept = self._node.images_by, in_use(self._node)
                self._note_lost(await asyncio.to_thread(_clear, root, by, kept))
            if now_s - self._swept_s >= SWEEP_S and not fault:
                self._swept_s = now_s
                untold_s = images.OWN_UNTOLD_S if self._node.settings.are_images_fetched else images.UNTOLD_S
                await asyncio.to_thread(images.sweep, root, self._live(), untold_s)
                self._node.images &= await asyncio.to_thread(images.all_keys, root)
            for resident in list(self._node.residents.values()):
                try:
                    self._look_at(resident, fault)
                except OSError as err:  # it stays as it is, and is looked at again
                    log.error("job %s: the image of its processes: %s", resident.key, err)
            self._unmade.look(root)
            self._drop_ended()
            self._spares.look(self._node.residents, self._live(), self._node.clock.mono())
            await asyncio.sleep(LOOK_S)

    async def _give_up(self) -> None:
        """The site wants none any more: what stands still for one that was begun, or made, has its turns."""
        node = self._node
        root = Path(node.former_images) if node.former_images else None
        await self._unmade.take_over(OFF)
        while self._unmade or any(each.image.is_whole for each in node.residents.values()):
            for resident in [each for each in node.residents.values() if each.key not in self._unmade]:
                try:
                    self._give_one_up(resident)
                except OSError as err:
                    log.error("job %s: its image: %s", resident.key, err)
            with contextlib.suppress(OSError):  # a store that hangs hangs here; what it refuses `look` says
                await asyncio.to_thread(os.stat, root or "/")
            self._unmade.look(root)
            await asyncio.sleep(LOOK_S)
        node.former_images = ""
        node.save()

    def _give_one_up(self, resident: Resident) -> None:
        image = resident.image
        if image.is_whole and not self._is_planned(resident):
            leaving.end(self._node, resident)  # it has been requeued, and goes on from its image
        elif image.is_whole and not resident.is_ending and not resident.is_fenced:
            self._unmade.add(resident, OFF)

    def _note_lost(self, used: Collection[JobKey]) -> None:
        """Tell of the jobs that a former gandivad was restoring from these incarnations' images."""
        for old in used:
            newest = max((key for key in self._node.residents if key.job_id == old.job_id), default=None)
            if newest is not None and not self._node.residents[newest].image.is_restored:
                resident, why = self._node.residents[newest], "gandivad was killed while it was restored"
                self._node.note("unrestored", resident, why=why, anew=resident.is_requeueable)
                log.error("job %s begins anew: %s", newest, why)

    def _live(self) -> set[int] | None:
        """The jobs whose images are kept, as far as this node is to say; None: it cannot."""
        plan, silent_ns = self._node.plan, self._node.clock.mono() - self._node.contact_ns
        if plan is None or silent_ns > leaving.HEARD_NS:
            return None
        return {*plan.images, *(key.job_id for key in self._node.residents)}

    def _note_whole(self, *keys: JobKey) -> None:
        """Where nodes fetch images, others are to know of these."""
        if self._node.settings.are_images_fetched:
            self._node.images.update(keys)

    def _note_shared(self, is_shared: bool) -> None:
        if is_shared != self._is_shared and not is_shared:
            log.warning("node.image_parked: none are kept: no other node's mark is in node.image_dir yet")
        self._is_shared = is_shared

    @property
    def _may_keep(self) -> bool:
        """One at a time is made to be kept, where other nodes see it."""
        return bool(self._is_shared) and not self._makers

    def _look_at(self, resident: Resident, fault: str) -> None:
        image, leave = resident.image, resident.leave
        is_wanted = leaving.is_heard_to_leave(self._node, resident) and not leave.own_save_s
        if image.is_whole and not is_wanted and not resident.is_ending and self._is_planned(resident):
            self._drop(resident)
        elif image.is_whole and not self._is_planned(resident):
            leaving.end(self._node, resident)
        if image.kept_steps >= 0:
            self._kept[resident.key] = resident
        if fault or not kept_images.is_ready(resident):
            return
        if is_wanted:
            if not leave.rest_quanta:
                self._begin(resident)
        elif self._may_keep and kept_images.is_due(resident, self._node.clock.mono()):
            self._begin(resident, is_kept=True)

    def _is_planned(self, resident: Resident) -> bool:
        """False for one that no plan names any more: it has been requeued, and ends here."""
        plan = self._node.plan
        return plan is None or any(job.key == resident.key for job in plan.jobs)

    def _drop_ended(self) -> None:
        """What has ended here does not go on elsewhere, but for what leaves and what was stopped for that.

        What was restored a moment ago may be started again by a Slurm that has forgotten its start.
        """
        residents, root = self._node.residents, self._node.settings.image_dir
        assert root is not None
        for key in [key for key, kept in self._kept.items() if residents.get(key) is not kept]:
            kept = self._kept.pop(key)
            if kept.is_fenced or kept.image.is_whole:
                continue
            try:
                if kept.image.spare_until_ns:
                    spares.make(root, key)
                else:
                    self._put_away(kept)
            except OSError as err:
                log.error("job %s: the image that was kept of it is still there: %s", key, err)

    def _drop(self, resident: Resident) -> None:
        """It does not leave: it may only run when its image is gone."""
        self._put_away(resident)
        resident.image.is_whole = False
        self._node.note("image_dropped", resident)
        self._slicer.fill()
        self._node.save()

    def _drop_spare(self, key: JobKey) -> None:
        root = self._node.settings.image_dir
        assert root is not None
        self._node.images.discard(key)
        asyncio.get_running_loop().run_in_executor(None, spares.drop, root, key)

    def _put_away(self, resident: Resident) -> None:
        root = self._node.settings.image_dir
        assert root is not None
        put_away(self._node, root, resident)

    def _begin(self, resident: Resident, is_kept: bool = False) -> None:
        node = self._node
        resident.image.is_kept = is_kept
        try:
            subject = image_task.subject_of(resident, self._cards)
        except imageable.NoImage as err:
            resident.image.why_not = str(err)
            self._fail(resident, str(err))
            return
        tree, task = subject.tree, image_task.task_of(node, resident, subject)
        # What is on its cards is moved into its memory first.
        cards = sum(map(node.card_bytes, resident.gpus)) if subject.has_card else 0
        most_s = imaging.most_s(min(imaging.need_of(task["pids"]) + cards, node.settings.image_most))
        try:
            call = imaging.start("imaging", task)
        except OSError as err:
            self._fail(resident, f"its program cannot be started: {err.strerror}")
            return
        maker = procs.read_proc(call.pid)
        resident.image.maker = maker.id if maker else ProcId(call.pid, 0)
        node.note("image", resident, processes=len(tree.procs), kept=is_kept)
        if subject.has_card:
            image_cards.note_asked(resident)
        # The next gandivad must find it written before the job is let go.
        node.save()
        now = node.clock.mono()
        resident.awake_from_ns, resident.awake_until_ns = now, now + round(most_s * 1e9)
        self._slicer.switcher.wake(resident)
        following = asyncio.get_running_loop().create_task(self._follow(resident, tree, call, most_s))
        self._makers.add(following)
        following.add_done_callback(self._makers.discard)

    @staticmethod
    def _why_over(resident: Resident) -> str:
        if resident.is_ending:
            return "its job is over"
        return "" if resident.image.is_kept or resident.leave.is_told else "it is not to leave any more"

    async def _follow(
        self, resident: Resident, tree: imageable.Tree, call: subprocess.Popen[str], most_s: float
    ) -> None:
        began_s, said, steps, over = time.monotonic(), None, kept_images.done(resident), ""
        until_s, is_kept = began_s + most_s, resident.image.is_kept
        # gandivactld may have given the move up meanwhile (moves.deadline_s).
        while said is None and time.monotonic() < until_s and not (over := self._why_over(resident)):
            await asyncio.sleep(0.02)
            said = imaging.answer(call)
            charge_awake(self._node, resident, self._node.clock.mono())
            if said is not None and call.returncode:  # it was killed: its criu may go on without it
                over, said = str(said["why"]), None
                break
        if said is None:
            took_ns = round((time.monotonic() - began_s) * 1e9)
            await self._unmade.end(resident, over or "it was not made in time", took_ns)
            return
        resident.image.maker = None
        image_cards.note_answer(resident, said.pop("card", None))
        if "why" in said:
            self._fail(resident, said["why"], round((time.monotonic() - began_s) * 1e9))
            return
        took_ns = round((said["dump_s"] + said["seal_s"]) * 1e9)
        self._node.note("imaged", resident, kept=is_kept, **said)
        if is_kept:
            kept_images.note_made(resident, self._node.clock.mono(), took_ns, steps)
            self._go_on(resident)
            return
        # criu left it stopped: that is not the user's doing, and is undone when it may run.
        resident.stopped |= {proc.id for proc in tree.procs}
        resident.image.is_whole = True
        self._note_whole(resident.key)
        resident.leave.save_ns = took_ns
        self._slicer.switcher.shut(resident)
        self._node.save()

    def _fail(self, resident: Resident, why: str, took_ns: int = 0) -> None:
        """It goes on where it is, and is tried again in a later turn."""
        if resident.image.is_kept:
            kept_images.note_failed(resident, self._node.clock.mono(), took_ns)
        else:
            leave = resident.leave
            resident.leave = Leave(
                leave.is_told, rest_quanta=leaving.REST_QUANTA, error=why, own_save_s=leave.own_save_s
            )
        root = self._node.settings.image_dir
        with contextlib.suppress(OSError):  # it is swept later
            for rest in images.begun(root, resident.key, self._node.images_by) if root else ():
                asyncio.get_running_loop().run_in_executor(None, images.remove, rest)
        if resident.key not in self._node.residents or resident.is_ending:
            return
        self._let_go(resident)
        self._node.note("unimaged", resident, why=why, kept=resident.image.is_kept)
        log.warning("job %s: no image of its processes: %s", resident.key, why)
        self._go_on(resident)

    @staticmethod
    def _let_go(resident: Resident) -> None:
        """Continue what criu has left stopped; in a frozen group it may show another state."""
        for proc in resident.processes.members():
            if proc.state in "TtD" and proc.id not in resident.left_stopped:
                procs.send(proc.id, signal.SIGCONT)

    def _go_on(self, resident: Resident) -> None:
        """It is parked as it was, and has its turns."""
        resident.image.is_kept = False
        if resident.key in self._node.residents and resident.state == SUSPENDED and not resident.is_ending:
            self._slicer.switcher.shut(resident)
            if resident.is_frozen:
                self._slicer.switcher.keep_still(resident)
        self._slicer.fill()
        self._node.save()


def _prepare(root: Path) -> str:
    """Make the store ready; say why it cannot be used, "" when it can."""
    why = criu.unfit() or images.why_not(root)
    if not why:
        try:
            images.prepare(root)
        except OSError as err:
            why = f"node.image_dir: {root}: {err.strerror}"
    return why


def _clear(root: Path, by: str, kept: Collection[Path] = ()) -> set[JobKey]:
    """Remove what a killed gandivad had begun, and had claimed, but `kept`; return whose it had claimed."""
    claimed = set()
    try:
        for place in [place for place in images.left_behind(root, by) if place not in kept]:
            log.info("node.image_dir: %s was left by a former gandivad, and is removed", place.name)
            claimed |= images.claimed(place)
            images.remove(place)
    except OSError as err:  # it is swept later
        log.error("node.image_dir: %s: %s", root, err.strerror)
    return claimed


def _is_shared(root: Path, node: str) -> bool:
    try:
        return images.is_shared(root, node)
    except OSError as err:
        log.error("node.image_dir: %s: %s", root, err.strerror)
        return False
