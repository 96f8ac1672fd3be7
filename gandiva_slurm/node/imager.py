"""Images of parked jobs that are to be moved and know no other way: made, kept until the requeue, deleted.

A job is let go for the moment in which criu takes hold of it, and pays for that as for any time that it runs
without a GPU. criu leaves it stopped; from then on it never runs here again unless its image was deleted
before. What failed is told, and the job takes its turns again.
"""

from __future__ import annotations

import asyncio
import logging
import pwd
import signal
import subprocess
import time
from pathlib import Path

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node import criu, imageable, images, imaging, leaving, procs
from gandiva_slurm.node.charging import charge_awake
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.image_state import OFF
from gandiva_slurm.node.jobs import Leave, Resident
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.slicer import Slicer

#: Directories of sockets that are made on the target.
MOST_DIRECTORIES = 16
#: How often it looks at what is to leave, at what may leave, and into the store.
LOOK_S, CHECK_S, SWEEP_S = 0.1, 5.0, 3600.0

log = logging.getLogger(__name__)


class Imager:
    """Makes images for all jobs of a node where the site wants them."""

    def __init__(self, node: Node, slicer: Slicer) -> None:
        self._node = node
        self._slicer = slicer
        self._makers: set[asyncio.Task[None]] = set()
        self._checked_s = self._swept_s = -SWEEP_S

    async def run(self) -> None:
        """Look for ever."""
        root = self._node.settings.image_dir
        if root is None:
            await asyncio.Event().wait()
            return
        # The store is other nodes', too: where it hangs, this daemon does not.
        fault = await asyncio.to_thread(_prepare, root)
        if fault:
            log.error("node.process_images is on, and no image can be made here: %s", fault)
        self._take_over()
        while True:
            now_s = time.monotonic()
            if now_s - self._checked_s >= CHECK_S:
                self._checked_s = now_s
                fault = fault and await asyncio.to_thread(_prepare, root)
                for resident in list(self._node.residents.values()):
                    resident.image.why_not = fault or _why_not(resident)
            if now_s - self._swept_s >= SWEEP_S and not fault:
                self._swept_s = now_s
                await asyncio.to_thread(images.sweep, root)
            for resident in list(self._node.residents.values()):
                try:
                    self._look_at(resident, fault)
                except OSError as err:  # it stays as it is, and is looked at again
                    log.error("job %s: the image of its processes: %s", resident.key, err)
            await asyncio.sleep(LOOK_S)

    def _take_over(self) -> None:
        """What a former gandivad had begun is ended; what it had made is kept."""
        for resident in self._node.residents.values():
            if resident.image.maker is not None:
                imaging.end(resident.image.maker)
                resident.image.maker = None
                self._put_away(resident)
                self._fail(resident, "gandivad was started anew while it was made")

    def _look_at(self, resident: Resident, fault: str) -> None:
        image = resident.image
        is_wanted = leaving.is_heard_to_leave(self._node, resident) and not resident.leave.own_save_s
        if image.is_whole and not is_wanted and not resident.is_ending:
            self._drop(resident)
        is_ready = is_wanted and resident.state == SUSPENDED and not resident.is_frozen
        is_ready = is_ready and resident.counts.suspends > 0 and resident.may_have_turns
        if fault or not is_ready or image.keeps_still or resident.leave.rest_quanta:
            return
        if leaving.is_imageable(resident) and resident.part is None:
            self._begin(resident)

    def _drop(self, resident: Resident) -> None:
        """It does not leave: it may only run when its image is gone."""
        self._put_away(resident)
        resident.image.is_whole = False
        self._node.note("image_dropped", resident)
        self._slicer.fill()
        self._node.save()

    def _put_away(self, resident: Resident) -> None:
        root = self._node.settings.image_dir
        assert root is not None
        gone = images.put_away(root, resident.key)
        if gone is not None:
            asyncio.get_running_loop().run_in_executor(None, images.remove, gone)

    def _begin(self, resident: Resident) -> None:
        node, settings = self._node, self._node.settings
        try:
            tree = imageable.find_tree(resident.processes.stepds, resident.processes.uid)
            imageable.check(tree, _gid(resident))
            _check_all_are_in(tree, resident)
        except imageable.NoImage as err:
            resident.image.why_not = str(err)
            self._fail(resident, str(err))
            return
        task = {
            "image_dir": str(settings.image_dir),
            "most": settings.image_most,
            "key": str(resident.key),
            "uid": resident.processes.uid,
            "root": tree.root,
            "inner": tree.inner,
            "first": tree.first.pid if tree.first else 0,
            "pids": [proc.pid for proc in tree.procs],
            "facts": {
                "node": settings.node,
                "name": resident.name,
                "script": imageable.script_of(tree),
                "directories": imageable.socket_directories(tree)[:MOST_DIRECTORIES],
                "ranks": _ranks(resident),
                "steps": resident.steps(),
            },
        }
        try:
            call = imaging.start("imaging", task)
        except OSError as err:
            self._fail(resident, f"its program cannot be started: {err.strerror}")
            return
        maker = procs.read_proc(call.pid)
        resident.image.maker = maker.id if maker else ProcId(call.pid, 0)
        node.note("image", resident, processes=len(tree.procs))
        # The next gandivad must find it written before the job is let go.
        node.save()
        now = node.clock.mono()
        resident.awake_from_ns, resident.awake_until_ns = now, now + round(imaging.MOST_S * 1e9)
        self._slicer.switcher.wake(resident)
        following = asyncio.get_running_loop().create_task(self._follow(resident, tree, call))
        self._makers.add(following)
        following.add_done_callback(self._makers.discard)

    async def _follow(self, resident: Resident, tree: imageable.Tree, call: subprocess.Popen[str]) -> None:
        until_s, said = time.monotonic() + imaging.MOST_S, None
        while said is None and time.monotonic() < until_s and not resident.is_ending:
            await asyncio.sleep(0.02)
            said = imaging.answer(call)
            charge_awake(self._node, resident, self._node.clock.mono())
        if said is None:
            if resident.image.maker is not None:
                imaging.end(resident.image.maker)
            self._put_away(resident)
            said = {"why": "its job is over" if resident.is_ending else "it was not made in time"}
        resident.image.maker = None
        if "why" in said:
            self._fail(resident, said["why"])
            return
        # criu left it stopped: that is not the user's doing, and is undone when it may run.
        resident.stopped |= {proc.id for proc in tree.procs}
        resident.image.is_whole = True
        resident.leave.save_ns = round((said["dump_s"] + said["seal_s"]) * 1e9)
        self._slicer.switcher.shut(resident)
        self._node.note("imaged", resident, **said)
        self._node.save()

    def _fail(self, resident: Resident, why: str) -> None:
        """It goes on where it is, and is tried again in a later turn."""
        leave = resident.leave
        resident.leave = Leave(
            leave.is_told, rest_quanta=leaving.REST_QUANTA, error=why, own_save_s=leave.own_save_s
        )
        root = self._node.settings.image_dir
        assert root is not None
        for rest in images.rests(root, resident.key):
            asyncio.get_running_loop().run_in_executor(None, images.remove, rest)
        if resident.key not in self._node.residents or resident.is_ending:
            return
        for proc in resident.processes.members():
            if proc.state in "Tt" and proc.id not in resident.left_stopped:
                procs.send(proc.id, signal.SIGCONT)
        if resident.state == SUSPENDED:
            self._slicer.switcher.shut(resident)
        self._node.note("unimaged", resident, why=why)
        log.warning("job %s: no image of its processes: %s", resident.key, why)
        self._slicer.fill()
        self._node.save()


def _prepare(root: Path) -> str:
    """Make the store ready; say why it cannot be used, "" when it can."""
    why = criu.missing() or images.why_not(root)
    if not why:
        try:
            images.prepare(root)
        except OSError as err:
            why = f"node.image_dir: {root}: {err.strerror}"
    return why


def _why_not(resident: Resident) -> str:
    """Say why no image of a job could be made now."""
    if resident.part is not None:
        return "it runs on several nodes"
    if not resident.ranks:
        return resident.image.why_not if resident.image.why_not != OFF else "no rank has registered"
    try:
        tree = imageable.find_tree(resident.processes.stepds, resident.processes.uid)
        imageable.check(tree, _gid(resident))
    except imageable.NoImage as err:
        return str(err)
    return ""


def _gid(resident: Resident) -> int:
    try:
        return pwd.getpwuid(resident.processes.uid).pw_gid
    except KeyError:
        raise imageable.NoImage("this node does not know its user") from None


def _check_all_are_in(tree: imageable.Tree, resident: Resident) -> None:
    """NoImage when a process of the job is not below its root: it would be left behind."""
    inside = {proc.pid for proc in tree.procs}
    outside = [proc.pid for proc in resident.processes.members() if proc.pid not in inside]
    heads = {pid for stepd in resident.processes.stepds for pid in procs.children(stepd.pid)}
    if set(outside) - heads:
        raise imageable.NoImage("one of its processes has left its tree")


def _ranks(resident: Resident) -> list[dict[str, object]]:
    return [
        {
            "rank": rank.rank,
            "world": group.world,
            "master": group.master,
            "inner": imageable.inner_pid(rank.proc.pid),
            "fd": rank.remote_fd,
        }
        for group in resident.sets
        for rank in group.in_order()
        if rank.is_alive
    ]
