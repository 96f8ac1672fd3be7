"""Images that are kept in case a node is lost: one is always whole, and the job goes on where it is."""

from __future__ import annotations

import asyncio
import errno
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node import guard, image_task, imager, images, imaging, kept_images, leaving, spares
from gandiva_slurm.node.image_state import OFF
from gandiva_slurm.node.imager import Imager
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.spares import SPARE_NS
from tests.unit.test_images import BY, KEY, ME, MOST, left, sealed, take
from tests.unit.test_node_images import Floor, hooked, left_row

S = 1_000_000_000
MAKER = ProcId(4194303, 1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    images.prepare(root)
    return root


def there(store: Path) -> list[str]:
    return sorted(place.name for place in (store / "whole").iterdir())


def pages(store: Path) -> bytes:
    return (images.place_of(store, KEY) / "pages").read_bytes()


def test_a_newer_one_takes_its_place_and_one_is_left(store: Path) -> None:
    sealed(store, pages=b"old")
    sealed(store, pages=b"new")
    assert pages(store) == b"new" and there(store) == ["7.1"]
    assert images.keys_of(store, 7) == [KEY]


def test_a_full_disk_in_the_midst_of_a_newer_one_leaves_the_older(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed(store, pages=b"old")

    def full(*args: object) -> tuple[int, str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(images, "_copy", full)
    with pytest.raises(OSError, match="No space"):
        sealed(store, pages=b"new")
    assert pages(store) == b"old" and there(store) == ["7.1"]


@pytest.mark.parametrize("calls", range(4))
def test_killed_anywhere_in_the_exchange_one_is_whole(
    store: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    sealed(store, pages=b"old")
    renames, real = 0, Path.rename

    class Killed(BaseException):
        pass

    def rename(self: Path, target: Path) -> Path:
        nonlocal renames
        if renames == calls:
            raise Killed
        renames += 1
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        try:
            sealed(store, pages=b"new")
        except Killed:
            assert calls < 3
    assert pages(store) == (b"old" if calls == 0 else b"new")
    assert images.keys_of(store, 7) == [KEY]
    images.read(store, KEY, ME)
    sealed(store, pages=b"newest")
    assert pages(store) == b"newest" and [name for name in there(store) if name[0] != "."] == ["7.1"]
    for gone in images.put_away(store, KEY):
        images.remove(gone)
    assert not images.has_any(store, 7)


def test_it_is_claimed_once_and_passed_on_to_what_goes_on_from_it(store: Path) -> None:
    sealed(store, pages=b"pages")
    manifest = images.read(store, KEY, ME)
    used = take(store, KEY, BY)
    assert not images.has_any(store, 7) and images.read(store, KEY, ME, used) == manifest
    with pytest.raises(images.BadImage, match="any more"):
        take(store, KEY, BY)
    assert used in images.rests(store, KEY)
    images.pass_on(store, used, KEY, after := JobKey(7, 2))
    images.verify(images.place_of(store, after), after, images.read(store, after, ME))
    assert there(store) == ["7.2"]
    with pytest.raises(images.BadImage):
        images.read(store, KEY, ME)
    assert images.pages_of(images.read(store, after, ME), after) == KEY, "nobody has written on its pages"
    images.pass_on(store, take(store, after, BY), after, again := JobKey(7, 3))
    assert images.pages_of(images.read(store, again, ME), again) == KEY
    spares.drop(store, again)
    assert there(store) == ["7.3"], "it is kept"


def test_a_spare_one_is_dropped_and_what_was_made_since_is_not(store: Path) -> None:
    for is_newer in (False, True):
        sealed(store)
        images.pass_on(store, take(store, KEY, BY), KEY, after := JobKey(7, 2), is_spare=True)
        assert images.read(store, after, ME)["is_spare"]
        if is_newer:
            sealed(store, key=after)
            assert images.pages_of(images.read(store, after, ME), after) == after
        spares.drop(store, after)
        assert there(store) == ["7.2"] * is_newer


def test_a_store_that_no_other_node_sees_is_not_shared(store: Path) -> None:
    assert not images.is_shared(store, "n1") and not images.is_shared(store, "n1")
    assert images.is_shared(store, "n2") and images.is_shared(store, "n1")


@pytest.fixture
async def floor(tmp_path: Path) -> Any:
    made = Floor(tmp_path)
    for name, value in (("image_dir", tmp_path / "images"), ("image_parked", True)):
        object.__setattr__(made.node.settings, name, value)
    images.prepare(tmp_path / "images")
    yield made


def parked(floor: Any) -> Any:
    """A job that has trained and is parked, and another that has its turn."""
    resident, other = hooked(floor), hooked(floor, 2)
    floor.next_quantum()
    floor.park(resident)
    assert other.holds and resident.state == SUSPENDED
    resident.counts.held_ns = kept_images.LEAST_HELD_NS
    return resident


async def test_it_is_made_of_a_parked_job_that_has_trained_since_the_last(floor: Any) -> None:
    resident = parked(floor)
    now = floor.node.clock.mono()
    assert kept_images.is_ready(resident) and kept_images.is_due(resident, now)
    kept_images.note_made(resident, now, 2 * S, resident.steps())
    later = now + kept_images.PART * 2 * S
    assert not kept_images.is_due(resident, later), "it has done nothing since"
    resident.image.kept_steps -= 1
    assert not kept_images.is_due(resident, later - 1) and kept_images.is_due(resident, later)
    kept_images.note_failed(resident, later, 0)
    assert not kept_images.is_due(resident, later + kept_images.FAILED_REST_NS - 1)
    resident.is_requeueable = False
    assert not kept_images.is_due(resident, later + kept_images.FAILED_REST_NS)
    resident.image.maker, resident.image.is_kept = MAKER, True
    assert not kept_images.is_ready(resident) and "in case its node is lost" in leaving.told(resident)


class Call:
    """A program that makes an image, as a test has it answer."""

    pid = 4194302

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said


@pytest.fixture
def making(floor: Any, monkeypatch: pytest.MonkeyPatch) -> Imager:
    """An imager whose programs answer what `said` is."""
    tree = type("Tree", (), {"root": MAKER, "inner": 9, "first": None, "procs": ()})()
    monkeypatch.setattr(imager.imageable, "find_tree", lambda stepds, uid: tree)
    monkeypatch.setattr(imager.imageable, "check", lambda tree, gid, **how: False)
    monkeypatch.setattr(imager.imageable, "script_of", lambda tree: "")
    monkeypatch.setattr(imager.imageable, "socket_directories", lambda tree: [])
    monkeypatch.setattr(image_task, "_check_all_are_in", lambda tree, resident: None)
    monkeypatch.setattr(image_task, "_gid", lambda resident: 0)
    made = Imager(floor.node, floor.slicer)
    made._is_shared = True
    return made


async def _make(making: Imager, resident: Any, monkeypatch: pytest.MonkeyPatch, said: Any) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = []

    def start(module: str, task: dict[str, Any]) -> Any:
        tasks.append(task)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(imaging, "start", start)
    monkeypatch.setattr(imaging, "answer", lambda call: said)
    making._look_at(resident, "")
    assert resident.image.keeps_still and resident.image.is_kept and len(tasks) == 1
    for _ in range(200):
        if not resident.image.keeps_still:
            break
        await asyncio.sleep(0.01)
    return tasks[0]


async def test_the_job_goes_on_when_one_is_made_and_it_is_deleted_at_its_end(
    floor: Any, making: Imager, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, root = parked(floor), floor.node.settings.image_dir
    task = await _make(making, resident, monkeypatch, {"bytes": 5, "dump_s": 0.5, "seal_s": 0.5})
    assert task["goes_on"] is True and not resident.image.is_whole
    assert resident.image.kept_steps == resident.steps() and resident.image.next_ns > floor.node.clock.mono()
    images.place_of(root, resident.key).mkdir()
    making._look_at(resident, "")
    making._drop_ended()
    assert images.has_any(root, 1), "it lives"
    del floor.node.residents[resident.key]
    making._drop_ended()
    assert not images.has_any(root, 1)


async def test_a_dump_whose_move_was_given_up_is_ended_and_the_job_has_its_turns(
    floor: Any, making: Imager, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, ended = parked(floor), list[ProcId]()
    floor.node.contact_ns = floor.node.clock.mono()
    leaving.tell(resident, True)
    monkeypatch.setattr(imaging, "start", lambda module, task: subprocess.Popen(["true"]))
    monkeypatch.setattr(imaging, "answer", lambda call: None)
    monkeypatch.setattr(imaging, "end", ended.append)
    making._look_at(resident, "")
    await asyncio.sleep(0.1)
    assert resident.image.keeps_still and not resident.image.is_kept and not ended
    leaving.tell(resident, False)
    for _ in range(1000):
        making._unmade.look(floor.node.settings.image_dir)
        if not resident.image.keeps_still:
            break
        await asyncio.sleep(0.01)
    assert len(ended) == 1 and not resident.image.keeps_still
    assert resident.leave.error == "it is not to leave any more"


@pytest.mark.parametrize("what", ("fenced", "leaves", "restored a moment ago"))
async def test_it_stays_for_what_goes_on_elsewhere(floor: Any, making: Imager, what: str) -> None:
    resident, root = parked(floor), floor.node.settings.image_dir
    images.place_of(root, resident.key).mkdir()
    resident.image.kept_steps = 3
    making._look_at(resident, "")
    resident.is_fenced, resident.image.is_whole = what == "fenced", what == "leaves"
    if what == "restored a moment ago":
        resident.image.spare_until_ns = floor.node.clock.mono() + SPARE_NS
    del floor.node.residents[resident.key]
    making._drop_ended()
    assert images.has_any(root, 1)


async def test_one_that_fails_costs_the_job_nothing_and_the_older_one_stays(
    floor: Any, making: Imager, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, root = parked(floor), floor.node.settings.image_dir
    images.place_of(root, resident.key).mkdir()
    resident.image.kept_steps = 0
    images.place_of(root, JobKey(1, 9)).mkdir()
    (exchanged,) = images.put_away(root, JobKey(1, 9))
    exchanged = exchanged.rename(exchanged.with_name(exchanged.name.replace("1.9", str(resident.key))))
    await _make(making, resident, monkeypatch, {"why": "criu did not make it"})
    assert images.has_any(root, 1) and resident.image.kept_steps == 0 and not resident.leave.error
    for _ in range(200):
        await asyncio.sleep(0.01)
        if not exchanged.exists():
            break
    assert not exchanged.exists(), "it was killed before it had removed what it exchanged"
    floor.slicer.quantum()
    floor.settle()
    assert not resident.image.keeps_still and not kept_images.is_due(resident, floor.node.clock.mono())


async def test_where_the_store_is_of_this_node_alone_none_is_made(floor: Any, making: Imager) -> None:
    resident, making._is_shared = parked(floor), False
    making._look_at(resident, "")
    assert not resident.image.keeps_still


async def test_a_gandivad_begins_by_removing_what_a_former_one_left(floor: Any, making: Imager) -> None:
    """And with no more than that: what this one claims while it looks is its own."""
    root, node = floor.node.settings.image_dir, floor.node
    former = left(root, KEY, f"{node.settings.node}@former")
    mine = images.new_work(root, JobKey(8, 0), node.images_by, ME, 0)
    imager._clear(root, node.images_by)
    assert mine.exists() and not [place for place in former if place.exists()]


def test_the_guard_ends_its_maker_and_leaves_the_older_one(store: Path) -> None:
    images.place_of(store, JobKey(1, 0)).mkdir()
    row = left_row(MAKER, False)
    assert guard._take_image({**row, "image": [*row["image"], True]}, str(store), "n1")
    assert images.has_any(store, 1)
    assert MOST


@pytest.mark.parametrize("is_frozen", [True, False])
async def test_one_without_a_client_has_one_where_it_can_be_frozen(
    floor: Any, making: Imager, is_frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of its step: a signal of Slurm's must not let it run on behind its image."""
    resident = parked(floor)
    resident.sets.clear()
    node, wait_ns = floor.node, floor.node.settings.client_wait_ns
    monkeypatch.setattr(node.freezer, "groups", lambda resident: [Path("/group")] * is_frozen)
    resident.is_frozen, resident.image.why_not = True, OFF
    assert image_task.why_not(node, resident, "") == "no rank has registered", "it may yet"
    resident.counts.blind_ns = wait_ns
    resident.image.why_not = image_task.why_not(node, resident, "")
    assert resident.image.why_not == ("" if is_frozen else image_task.NOT_FROZEN)
    assert leaving.is_imageable(resident) == kept_images.is_ready(resident) == is_frozen
    resident.image.is_blind = False
    assert not leaving.is_imageable(resident)
