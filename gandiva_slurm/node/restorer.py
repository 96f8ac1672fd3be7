"""Restores jobs from their images as their batch tasks start, and takes their ranks over.

The image is of the newest incarnation before that has one, of the same user's job of the same name: those in
between were lost before they had claimed it, or begun. Where a restore fails its image is given back, for
another node (ADR 0071); where none takes the job within a minute, or the image is damaged, the job begins
anew, if Slurm may requeue it, else it ends. Never are two there: process 1 of the restored, and all below it,
is ended first. An image is used once, but where a slurmctld that was killed has forgotten the last seconds,
ends what it had started in them, and starts the same incarnation again (`spares`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from gandiva_slurm.model.errors import PeerBusy, PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RESUMING
from gandiva_slurm.node import images, imaging, leaving, procs, restoring
from gandiva_slurm.node.binding import Peer
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.elsewhere import (
    ELSEWHERE,
    STARTED_ANEW,
    Elsewhere,
    Restore,
    Restoring,
    drop_ranks,
    give_back,
    keep,
    of_ended,
    send_elsewhere,
)
from gandiva_slurm.node.fetching import Fetch
from gandiva_slurm.node.hello import MAX_WORLD
from gandiva_slurm.node.imageable import CARDS_OFF, FIRST
from gandiva_slurm.node.jobs import MAX_RANKS, Resident
from gandiva_slurm.node.members import batch_job_above
from gandiva_slurm.node.pages import Page, incarnation
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.watch import Watcher
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import PlannedJob

#: The variable of a task's answer that names what was restored in its place: "PID:PID where it lives".
RESTORED = "GANDIVA_RESTORED"

#: How often it looks for restores whose tasks are gone.
LOOK_S = 0.1
#: How long the store may take to say whether there is an image.
STORE_S = 30

log = logging.getLogger(__name__)


class JobOver(PeerError):
    """The task must not start at all."""


class Restorer:
    """What a batch task of a job with an image is told."""

    def __init__(self, node: Node, slicer: Slicer, watcher: Watcher, fetch: Fetch) -> None:
        self._node = node
        self._fetch = fetch
        #: those whose images are being fetched: of which incarnation, and since when
        self._fetching: dict[JobKey, tuple[asyncio.Task[str], JobKey, float]] = {}
        self._slicer = slicer
        self._watcher = watcher
        self._running: dict[JobKey, Restore] = {}

    async def offers(self, peer: Peer) -> bool:
        """True when there is an image that may be of the batch task that this process becomes."""
        root = self._node.settings.image_dir
        if root is None:
            return False
        job_id = batch_job_above(peer.proc.pid)
        if job_id is None:
            return False
        if any(job.job_id == job_id and job.image_at for job in self._jobs()):
            return True
        try:
            # The store is other nodes', too: where it hangs, this daemon does not.
            async with asyncio.timeout(STORE_S):
                return await asyncio.to_thread(images.has_any, root, job_id)
        except TimeoutError:
            log.error("job %d begins anew: %s has not answered within %d s", job_id, root, STORE_S)
            return False

    def await_plan(self, key: JobKey) -> None:
        """PeerBusy while no plan names a job with an image: which incarnation it is, is not known before."""
        if all(job.job_id != key.job_id for job in self._jobs()):
            raise PeerBusy("no plan names it yet")

    def take_over(self) -> None:
        """End what a former gandivad was restoring: what it told its task is lost."""
        for resident in self._node.residents.values():
            if not resident.image.restoring:
                continue
            running = Restore.from_json(resident.image.restoring)
            running.is_over()  # before it is parked: what is frozen does not end
            if running.old == resident.key or not resident.is_requeueable:
                resident.image.restoring = []  # `Imager` tells that it begins anew
                continue
            self._running[resident.key] = running
            send_elsewhere(self._node, self._slicer, resident, STARTED_ANEW)
        self._running |= of_ended(self._node)

    def heed_unfit(self, key: JobKey) -> None:
        """PeerBusy while a job waits to be restored elsewhere; then it begins anew, or JobOver."""
        resident = self._node.residents.get(self._newest(key))
        if resident is None or not resident.image.unfit:
            return
        # A turn is what it has when no node takes it: until then it may yet be requeued.
        if leaving.is_out(self._node, resident) or not resident.holds or resident.image.restoring:
            raise Elsewhere(ELSEWHERE)
        self._delete_all(key.job_id)
        why, resident.image.unfit = resident.image.unfit, ""
        self._failed(resident, f"{why}; no other node took it")

    def keep_image(self, peer: Peer, key: JobKey) -> dict[str, str]:
        """Return what the answer has besides to a batch task whose gandivad was ended while it was asked.

        Elsewhere if nothing was restored: it has begun process 1 for that in vain, and cannot begin another.
        """
        key = self._newest(key)
        resident = self._node.residents.get(key)
        if resident is None:
            return {}
        if resident.image.is_restored:
            return {RESTORED: resident.image.root} if resident.image.root else {}
        if resident.ranks or not resident.is_requeueable:
            return {}
        found, is_there = self._find(key, peer.uid), any(j.key == key and j.image_at for j in self._jobs())
        if is_there or (found is not None and found[0] != key):
            send_elsewhere(self._node, self._slicer, resident, STARTED_ANEW)
            raise Elsewhere(ELSEWHERE)
        return {}

    def _newest(self, key: JobKey) -> JobKey:
        return max((of for of in self._node.residents if of.job_id == key.job_id), default=key)

    def ask(self, peer: Peer, key: JobKey) -> dict[str, str]:
        """Return what its answer has besides: what was restored in its place, or nothing: it begins anew.

        PeerBusy while it is restored; JobOver where that failed and the job must not begin anew.
        """
        key = self._newest(key)
        resident = self._node.residents.get(key)
        if resident is None:
            return {}
        if any(of.job_id == key.job_id and one.task != peer.proc for of, one in self._running.items()):
            raise PeerBusy("what was restored for its former task is ended")
        if key not in self._running:
            self._await_image(key, peer.uid)
            found = self._find(key, peer.uid)
            if found is None:
                self._delete_all(key.job_id)
                return {}
            resident.has_begun = True  # it goes on from its image, here
            if resident.is_at_rest:
                raise PeerBusy("it waits for its GPUs, to be restored there")
            why = self._begin(resident, peer, *found)
            if why and (found[0] == key or not resident.is_requeueable or not self._has(found[0])):
                self._delete(found[0])
                return self._failed(resident, why)
            if why:
                send_elsewhere(self._node, self._slicer, resident, why)
                raise Elsewhere(ELSEWHERE)
        return self._outcome(resident, peer, self._running[key])

    def _outcome(self, resident: Resident, peer: Peer, running: Restore) -> dict[str, str]:
        """Return what its answer has besides, as `ask` does."""
        node, key = self._node, resident.key
        assert running.call is not None
        said: dict[str, Any] | None = {"why": running.why} if running.why else imaging.answer(running.call)
        if said is None and time.monotonic() < running.until_s:
            raise Restoring("its processes are being restored")
        said = said or {"why": "it was not restored in time"}
        if "why" not in said:
            try:
                self._take_over(resident, peer, running, said)
                keep(node, resident, running)
                node.save()
            except (OSError, PeerError, KeyError, ValueError) as err:
                said = {"why": f"its ranks could not be taken over: {err}"}
        if "why" in said:
            running.why, running.is_damaged = said["why"], said.get("is_damaged") or running.is_damaged
            resident.image.is_restored, resident.image.root = False, ""
            if not running.is_over():
                raise PeerBusy("what was restored of it is ended")
            self._forget(key)
            return self._not_here(resident, running)
        self._forget(key)
        self._delete(running.old, but_whole=running.old == key)
        took_s = {name: said[name] for name in ("verify_s", "restore_s")}
        node.note("restored", resident, again=running.old == key, **took_s)
        if running.old == key:
            log.error("job %s goes on from its image once more: Slurm had forgotten its start", key)
        return {RESTORED: resident.image.root}

    def _jobs(self) -> tuple[PlannedJob, ...]:
        return self._node.plan.jobs if self._node.plan is not None else ()

    def _await_image(self, key: JobKey, uid: int) -> None:
        """PeerBusy while its image is fetched from the node that it has left."""
        root = self._node.settings.image_dir
        planned = next((job for job in self._jobs() if job.key == key and job.uid == uid), None)
        if root is None or planned is None:
            return
        if key not in self._fetching:
            of, source = JobKey(key.job_id, planned.image_restart), planned.image_at
            if not source or any(of <= here < key for here in images.keys_of(root, key.job_id)):
                return
            begun = asyncio.get_running_loop().create_task(self._fetch(of, uid, source))
            self._fetching[key] = begun, of, time.monotonic()
        fetching, old, began_s = self._fetching[key]
        if not fetching.done():
            raise Restoring("its image is fetched from the node that it has left")
        del self._fetching[key]
        resident, why, took_s = self._node.residents[key], fetching.result(), time.monotonic() - began_s
        if why:
            self._node.note("unfetched", resident, of=str(old), why=why)
            log.error("job %s begins anew: its image was not fetched: %s", key, why)
        else:
            self._node.note("fetched", resident, of=str(old), fetch_s=took_s)

    def _find(self, key: JobKey, uid: int) -> tuple[JobKey, dict[str, Any]] | None:
        """Return the newest image of an earlier incarnation, of the same user's job; None: there is none."""
        root = self._node.settings.image_dir
        # Slurm may have started it where it was before gandivactld could plan it.
        mine = [job for job in self._jobs() if job.job_id == key.job_id and job.uid == uid and job.key <= key]
        found = [of for of in images.keys_of(root, key.job_id) if of <= key] if root is not None else []
        if root is None or not mine or not found:
            return None
        old = max(found)
        try:
            manifest = images.read(root, old, uid)
        except images.BadImage as err:
            log.error("job %s begins anew: %s", key, err)
            return None
        # SubmitTime is another after each requeue (seen on 24.11).
        if manifest.get("name") != max(mine, key=lambda job: job.key).name:
            log.error("job %s begins anew: its image is of a job of another name", key)
            return None
        if manifest.get("is_spare") and old != key:
            return None  # that one was started, and knew it
        return old, manifest

    def _has(self, old: JobKey) -> bool:
        root = self._node.settings.image_dir
        return root is not None and old in images.keys_of(root, old.job_id)

    def _begin(self, resident: Resident, peer: Peer, old: JobKey, manifest: dict[str, Any]) -> str:
        """Start the program that restores it; return why it cannot, "" when it runs. PeerBusy: not yet."""
        below = [proc for proc in procs.each(procs.children(peer.proc.pid)) if procs.uids(proc.pid) == (0, 0)]
        if len(below) != 1:
            return "there is no process 1 for it"
        if procs.read_text(below[0].pid, "comm").strip() != FIRST:
            raise PeerBusy("its process 1 has just been cloned, and has not taken its name yet")
        root = self._node.settings.image_dir
        assert root is not None
        place = images.claim_place(root, old, self._node.images_by)
        running = Restore(old, place, below[0].id, peer.proc, manifest=manifest)
        # A gandivad that is killed behind the claim has written down where the image is.
        resident.image.restoring = running.to_json()
        self._node.save()
        try:
            images.claim(root, old, place)
        except (images.BadImage, OSError) as err:
            resident.image.restoring = []
            self._node.save()
            return str(err)
        task = {
            "image_dir": str(root),
            "place": str(place),
            "key": str(old),
            "by": self._node.images_by,
            "uid": peer.uid,
            "first": below[0].pid,
            "task": peer.proc.pid,
            "gpus": list(resident.gpus),
            "node": self._node.settings.node,
            "cards": "" if self._node.settings.image_cards else CARDS_OFF,
        }
        try:
            running.call = imaging.start("restoring", task)
        except OSError as err:
            resident.image.restoring = []
            return give_back(self._node, running) or f"its program cannot be started: {err.strerror}"
        running.until_s = time.monotonic() + restoring.most_s(images.size_of(manifest))
        self._running[resident.key] = running
        self._node.note("restore", resident, of=str(old))
        return ""

    def _take_over(self, resident: Resident, peer: Peer, running: Restore, said: dict[str, Any]) -> None:
        """Make its ranks the job's, and let it go on: it holds its GPUs."""
        node, now = self._node, self._node.clock.mono()
        stepd = next(iter(resident.processes.stepds), None)
        found = {int(inner): ProcId(*proc) for inner, proc in said["procs"].items()}
        shift_ns = procs.clock_shift_ns(ProcId(*said["root"]).pid)
        for row in running.manifest["ranks"][:MAX_RANKS]:
            rank, world, proc = int(row["rank"]), int(row["world"]), found[int(row["inner"])]
            if not 0 <= rank < world <= MAX_WORLD:
                raise PeerError(f"rank {rank} of {world} is impossible")
            of = images.pages_of(running.manifest, running.old)
            page = Page.take_back(proc, int(row["fd"]), of, shift_ns)
            if page is None:
                raise PeerError(f"rank {rank} has no page")
            page.write([(wire.W_INCARNATION, incarnation(resident.key))])
            group = resident.join(Rank(proc, rank, page, stepd, int(row["fd"])), world, str(row["master"]))
            group.set_mark(now)
            self._watcher.watch(resident, proc)
        if not running.manifest["ranks"]:  # it had no client, and none is waited for
            resident.counts.blind_ns = node.settings.client_wait_ns
        for group in resident.sets:
            group.apply(group.form().adopt(group.views(), now))
        # The next gandivad must not end what this one's state says lives.
        image, root = resident.image, ProcId(*said["root"])
        image.left = running.manifest.get("left", {})
        image.restoring, image.root = [], f"{root.pid}:{running.manifest['inner']}"
        image.is_restored, image.from_steps = True, resident.steps()
        image.has_card = bool(running.manifest.get("card"))
        resident.image.spent_ns = int(running.manifest.get("spent_ns", 0))
        if resident.holds:
            node.ledger.cancel_park(resident.key)
            resident.state, resident.ordered_ns = RESUMING, now
        # Written down before it runs: the next gandivad would restore it once more, and repeat steps.
        node.save()
        if resident.holds:
            self._slicer.switcher.go(resident)

    async def run(self) -> None:
        """Keep images that were being restored for tasks that are gone: their jobs' next starts want them."""
        if self._node.settings.image_dir is None:
            await asyncio.Event().wait()
        self.take_over()
        while True:
            for key, running in [*self._running.items()]:
                if not procs.is_alive(running.task) and running.is_over():
                    then = give_back(self._node, running) or "its image is kept"
                    self._forget(key)
                    log.warning("job %s: its task ended while it was restored: %s", key, then)
            await asyncio.sleep(LOOK_S)

    def _forget(self, key: JobKey) -> None:
        del self._running[key]
        if key in self._node.residents:
            self._node.residents[key].image.restoring = []
            self._node.save()

    def _not_here(self, resident: Resident, running: Restore) -> dict[str, str]:
        """It goes on from its image elsewhere, where that is whole and Slurm can start it there."""
        why = running.why
        # Slurm, which has forgotten a start, will start that one nowhere else.
        if running.is_damaged or not resident.is_requeueable or running.old == resident.key:
            self._delete(running.old)
            return self._failed(resident, why)
        lost = give_back(self._node, running)
        if lost:
            return self._failed(resident, f"{why}; {lost}")
        send_elsewhere(self._node, self._slicer, resident, why)
        raise Elsewhere(ELSEWHERE)

    def _failed(self, resident: Resident, why: str) -> dict[str, str]:
        self._node.note("unrestored", resident, why=why, anew=resident.is_requeueable)
        log.error("job %s: not restored from its image: %s", resident.key, why)
        drop_ranks(resident)
        if not resident.is_requeueable:
            raise JobOver(f"it could not be restored ({why}), and Slurm may not start it anew (--no-requeue)")
        return {}

    def _delete_all(self, job_id: int) -> None:
        """The job begins anew: whatever there is of it here is of the past."""
        root = self._node.settings.image_dir
        assert root is not None
        for key in images.keys_of(root, job_id):
            self._delete(key, by=self._node.images_by)

    def _delete(self, old: JobKey, but_whole: bool = False, by: str = "") -> None:
        """It is used once, whatever came of it; that takes time which the daemon has not."""
        root = self._node.settings.image_dir
        assert root is not None
        whole = [] if but_whole else images.put_away(root, old)
        for gone in (*whole, *images.rests(root, old, by)):
            asyncio.get_running_loop().run_in_executor(None, images.remove, gone)
