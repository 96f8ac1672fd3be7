"""Leaving by a process image: parked as ever, made, kept still; deleted before it may run again."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node import guard, images, leaving, members, procs, restorer
from gandiva_slurm.node.binding import Peer
from gandiva_slurm.node.imager import Imager
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.restoring import has_rights
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.wire import page as wire
from tests.node_bench import QUANTUM_NS
from tests.unit.test_images import sealed, take
from tests.unit.test_node_leaving import Floor

S = 1_000_000_000
MAKER = ProcId(4194303, 1)


@pytest.fixture
async def floor(tmp_path: Path):
    made = Floor(tmp_path)
    yield made


def hooked(floor: Floor, job_id: int = 1):
    """A job that trains, is not attached, and of which an image can be made."""
    resident = floor.train(job_id, kind=wire.KIND_HOOK)
    resident.image.why_not = ""
    return resident


async def test_it_is_movable_by_an_image_and_says_so(floor):
    resident = floor.train(1, kind=wire.KIND_HOOK)
    assert not floor.told(1).is_movable
    resident.image.why_not = "it has a socket of the network open (tcp)"
    assert "no image of its processes can be made: it has a socket" in floor.told(1).unmoved
    resident.image.why_not = ""
    told = floor.told(1)
    assert (told.is_movable, told.framework, told.unmoved) == (True, leaving.IMAGE, "")


@pytest.mark.parametrize(
    ("is_planned", "is_told", "ends"), [(False, True, True), (True, True, False), (False, False, False)]
)
async def test_what_goes_on_elsewhere_is_ended_when_slurm_says_so(
    floor, monkeypatch, is_planned, is_told, ends
):
    """Not upon SIGTERM alone, which its user may send: its requeue is seen, and no plan has it any more."""
    resident = hooked(floor)
    floor.plan(1, is_leaving=True)
    resident.image.is_whole, resident.leave.is_told = True, not is_planned
    blocks = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {15}); print('', flush=True)"
    task = subprocess.Popen([sys.executable, "-c", f"{blocks}; time.sleep(60)"], stdout=subprocess.PIPE)
    task.stdout.readline()
    try:
        if is_told:
            task.terminate()
        proc = procs.read_proc(task.pid)
        monkeypatch.setattr(resident.processes, "members", lambda: [proc])
        monkeypatch.setattr(resident.processes, "stepds", {MAKER})
        monkeypatch.setattr(leaving.procs, "children", lambda pid: [task.pid])
        opened = []
        monkeypatch.setattr(floor.node.freezer, "open", opened.append)
        making = Imager(floor.node, floor.slicer)
        monkeypatch.setattr(making, "_is_planned", lambda resident: is_planned)
        monkeypatch.setattr(making, "_drop", lambda resident: None)
        making._look_at(resident, "")
        assert opened == [resident] * ends
        assert (task.wait(10) == -signal.SIGKILL) if ends else task.poll() is None
    finally:
        task.kill()
        task.communicate()


async def test_an_attached_one_keeps_its_own_way(floor):
    resident = floor.train(1, kind=wire.KIND_RUN)
    resident.image.why_not = ""
    assert not leaving.is_imageable(resident) and floor.told(1).framework == ""


async def test_it_is_parked_as_ever_and_leaves_when_its_image_is_whole(floor):
    resident = hooked(floor)
    floor.plan(1, is_leaving=True)
    assert floor.tier(resident) == wire.TIER_HOLD, "its ranks are not asked to save anything"
    floor.park(resident)
    assert resident.state == SUSPENDED and not floor.told(1).has_left
    resident.image.maker = MAKER
    assert not floor.told(1).has_left and "being made" in leaving.told(resident)
    resident.image.maker, resident.image.is_whole = None, True
    assert floor.told(1).has_left and "is made" in leaving.told(resident)


async def test_with_an_image_it_has_no_turn_whoever_is_silent(floor):
    resident = hooked(floor)
    floor.plan(1, is_leaving=True)
    floor.park(resident)
    resident.image.is_whole = True
    floor.plan(1, is_leaving=False)
    floor.clock_ns = getattr(floor, "clock_ns", 0)
    for _ in range(5):
        floor.slicer.quantum()
        floor.settle()
    assert resident.state == SUSPENDED
    resident.image.is_whole = False
    floor.slicer.fill()
    floor.settle()
    assert resident.holds


async def test_one_that_stays_has_its_image_deleted_first(floor, tmp_path):
    resident = hooked(floor)
    object.__setattr__(floor.node.settings, "image_dir", tmp_path / "images")
    images.prepare(tmp_path / "images")
    images.place_of(tmp_path / "images", resident.key).mkdir()
    imager = Imager(floor.node, floor.slicer)
    floor.plan(1, is_leaving=True)
    floor.park(resident)
    resident.image.is_whole = True
    imager._look_at(resident, "")
    assert images.has_any(tmp_path / "images", 1), "it still leaves"
    floor.plan(1, is_leaving=False)
    imager._look_at(resident, "")
    floor.settle()
    assert not images.has_any(tmp_path / "images", 1) and resident.holds


async def test_one_that_was_requeued_keeps_its_image_until_it_has_ended_here(floor, tmp_path):
    """A gandivad that was started anew may hear of the plan without it before it sees the job end."""
    resident = hooked(floor)
    object.__setattr__(floor.node.settings, "image_dir", tmp_path / "images")
    images.prepare(tmp_path / "images")
    images.place_of(tmp_path / "images", resident.key).mkdir()
    floor.plan(1, is_leaving=True)
    floor.park(resident)
    resident.image.is_whole = True
    floor.forget(1)
    Imager(floor.node, floor.slicer)._look_at(resident, "")
    assert images.has_any(tmp_path / "images", 1) and resident.image.is_whole


@pytest.mark.parametrize("is_restored", [False, True])
async def test_a_restore_that_ended_with_its_gandivad_is_told(floor, is_restored, monkeypatch):
    """The next one finds what was claimed; a job that was through with it has lost nothing."""
    resident, told = hooked(floor), []
    resident.image.is_restored = is_restored
    monkeypatch.setattr(
        floor.node, "note", lambda event, one, **facts: told.append((event, one.key, facts["anew"]))
    )
    Imager(floor.node, floor.slicer)._note_lost({JobKey(1, 0), JobKey(99, 0)})
    assert told == ([] if is_restored else [("unrestored", resident.key, True)])


async def test_what_failed_is_told_and_it_has_its_turns_again(floor, tmp_path):
    resident = hooked(floor)
    object.__setattr__(floor.node.settings, "image_dir", tmp_path)
    imager = Imager(floor.node, floor.slicer)
    floor.plan(1, is_leaving=True)
    floor.park(resident)
    imager._fail(resident, "criu did not make it: half of a stream")
    floor.settle()
    assert resident.holds and "half of a stream" in leaving.told(resident)


async def test_an_image_and_its_maker_outlive_gandivad(floor):
    resident = hooked(floor)
    resident.image.is_whole, resident.image.maker = True, MAKER
    row = next(row for row in state_of(floor.node)["jobs"] if row["key"] == "1.0")
    again, _ = read_job(row, "n1")
    assert (again.image.is_whole, again.image.maker) == (True, MAKER) and again.image.keeps_still


async def test_a_page_is_of_its_ranks_clock():
    page = Page.make(JobKey(1, 0), 0, 1, 100 * S, shift_ns=40 * S)
    try:
        raw = os.pread(page.fd, wire.PAGE_BYTES, 0)
        beat = int.from_bytes(raw[wire.W_BEAT * 8 : wire.W_BEAT * 8 + 8], "little")
        assert beat == 140 * S and page.read()[wire.W_BEAT] == 100 * S
        page.write([(wire.W_SEQ, 3), (wire.W_WAKE_BY, 0)])
        assert page.read()[wire.W_SEQ] == 3 and page.read()[wire.W_WAKE_BY] == 0
    finally:
        page.close()


async def _never(*_) -> str:
    raise AssertionError("an image is asked for at another node")


async def test_a_site_without_them_does_nothing_more(floor, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a system call more")

    for module, name in ((restorer, "batch_job_above"), (images, "has_any"), (procs, "clock_shift_ns")):
        monkeypatch.setattr(module, name, never)
    monkeypatch.setattr(os, "fchown", never)
    assert floor.node.settings.image_dir is None
    asked = restorer.Restorer(floor.node, floor.slicer, floor.watcher, never)
    assert await asked.offers(Peer(ProcId(1, 1), 0)) is False
    running = asyncio.get_running_loop().create_task(Imager(floor.node, floor.slicer).run())
    await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    Page.make(JobKey(1, 0), 0, 1, 0).close()
    resident = floor.train(1, kind=wire.KIND_HOOK)
    assert resident.state == RUNNING and not leaving.is_imageable(resident)
    assert QUANTUM_NS


async def test_one_whose_target_was_lost_goes_on_from_the_newest_image_before(floor, tmp_path):
    """The incarnations between were lost before they had claimed it; of later ones it takes none."""
    object.__setattr__(floor.node.settings, "image_dir", tmp_path / "images")
    images.prepare(tmp_path / "images")
    for restart in (0, 1, 4):
        sealed(tmp_path / "images", JobKey(1, restart))
    key = JobKey(1, 3)
    floor.node.plan = SimpleNamespace(jobs=[SimpleNamespace(key=key, job_id=1, uid=os.getuid(), name="job")])
    asked = restorer.Restorer(floor.node, floor.slicer, floor.watcher, _never)
    assert asked._find(key, os.getuid())[0] == JobKey(1, 1)
    take(tmp_path / "images", JobKey(1, 1), floor.node.images_by)
    assert asked._find(key, os.getuid())[0] == JobKey(1, 0)
    assert asked._find(JobKey(1, 0), os.getuid()) is None
    assert asked._find(JobKey(1, 4), os.getuid())[0] == JobKey(1, 4), "Slurm has started it before any plan"


def test_rights_are_seen_in_any_set():
    none = "".join(f"{name}:\t0000000000000000\n" for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"))
    assert not has_rights(none) and has_rights("")
    assert has_rights(none.replace("CapInh:\t0", "CapInh:\t8"))


def left_row(maker: ProcId | None, is_whole: bool) -> dict[str, Any]:
    """Of a job whose slurmstepd is this process."""
    me = procs.read_proc(os.getpid())
    assert me is not None
    here = {"uid": os.getuid(), "stepds": [me.id], "cgroups": []}
    return {"key": "1.0", "image": [maker, is_whole], **here}


def test_the_guard_takes_an_image_out_of_use_before_it_thaws(tmp_path: Path) -> None:
    images.prepare(tmp_path)
    images.place_of(tmp_path, JobKey(1, 0)).mkdir()
    assert guard._take_image(left_row(None, True), str(tmp_path), "n1")
    assert not images.has_any(tmp_path, 1)
    assert guard._take_image(left_row(None, True), str(tmp_path), "n1"), "there is none any more"
    assert guard._take_image(left_row(None, False), "", "n1"), "a site without images"


def test_the_guard_leaves_the_image_of_a_job_that_has_ended_here(tmp_path: Path) -> None:
    """Slurm has requeued it while no gandivad was there: it goes on from that elsewhere."""
    images.prepare(tmp_path)
    images.place_of(tmp_path, JobKey(1, 0)).mkdir()
    assert guard._take_image(left_row(None, True) | {"stepds": [[4194303, 1]]}, str(tmp_path), "n1")
    assert images.has_any(tmp_path, 1)


def test_where_it_cannot_the_job_stays_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(root: Path, key: JobKey) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(images, "put_away", fail)
    assert not guard._take_image(left_row(MAKER, False), str(tmp_path), "n1")


@pytest.mark.parametrize(
    "title, owner, job",
    [
        ("slurmstepd: [7.batch]", (0, 0), 7),
        ("slurmstepd: [7.batch]", (0, 5001), 7),  # as it starts its tasks
        ("slurmstepd: [7.batch]", (5001, 0), None),  # a user's set-uid program
        ("slurmstepd: [7.0]", (0, 0), None),
        ("bash", (0, 0), None),
    ],
)
def test_a_batch_tasks_job_is_told_by_roots_slurmstepd_alone(
    monkeypatch: pytest.MonkeyPatch, title: str, owner: tuple[int, int], job: int | None
) -> None:
    monkeypatch.setattr(procs, "title", lambda pid: title if pid == os.getppid() else "")
    monkeypatch.setattr(procs, "uids", lambda pid: owner)
    assert members.batch_job_above(os.getpid()) == job
