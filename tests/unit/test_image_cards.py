"""GPU programs in images: proven first, off their GPUs before the dump, onto the same model's behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gandiva_slurm.node import driver_checkpoint as dc
from gandiva_slurm.node import image_cards, image_task, imageable, nvml, procs
from gandiva_slurm.node.imager import Imager
from gandiva_slurm.node.images import BadImage
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.wire import page as wire
from tests.fake_driver import CHECKPOINTED, RUNNING, FakeDriver
from tests.unit.test_kept_images import floor, making, parked  # noqa: F401 - fixtures

# ruff: noqa: F811 - pytest finds fixtures by their names

MIB = 1 << 20


class Library:
    """NVML of a node."""

    def __init__(self, driver: str = "580.65", models: tuple[str, ...] = ("V100",)) -> None:
        self._driver, self._models = driver, models

    def driver(self) -> str:
        return self._driver

    def identities(self) -> tuple[tuple[str, str], ...]:
        return tuple((f"GPU-{number}", model) for number, model in enumerate(self._models))


def node_of(library: Library | None, is_on: bool = True) -> Any:
    return SimpleNamespace(settings=SimpleNamespace(image_cards=is_on), nvml=library)


@pytest.fixture
def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose node has proven its driver."""
    monkeypatch.setattr(dc, "load_nvml", Library)
    image_cards.note_proven(tmp_path)
    return tmp_path


def test_a_proof_is_of_one_driver_and_one_model(proven: Path) -> None:
    assert image_cards.why_not(proven, node_of(Library())) == ""
    for other in (Library(driver="590.1"), Library(models=("V100", "A100"))):
        why = image_cards.why_not(proven, node_of(other))
        assert "are not proven with this node's driver" in why and "gandiva check --process-images 20" in why
    assert image_cards.why_not(proven, node_of(None)).startswith("NVML")
    assert image_cards.why_not(proven, node_of(Library(), is_on=False)) == imageable.CARDS_OFF
    (proof,) = (proven / image_cards.PROOFS).iterdir()
    assert proof.parent.stat().st_mode & 0o077 == 0
    for spoilt in ("", "[]", json.dumps({"driver": "580.65"}), "\0"):
        proof.write_text(spoilt)
        assert "not proven" in image_cards.why_not(proven, node_of(Library()))
    image_cards.note_proven(proven)
    assert image_cards.why_not(proven, node_of(Library())) == ""
    image_cards.forget_proof(proven)
    image_cards.forget_proof(proven)
    assert "not proven" in image_cards.why_not(proven, node_of(Library()))


CARD = {"driver": "580.65", "cards": [["GPU-0", "V100"]], "bytes": [MIB], "inner": 7}


@pytest.mark.parametrize(
    ("library", "gpus", "why"),
    [
        (Library(), [0], ""),
        (Library(models=("K80", "V100")), [1], ""),
        (Library(models=("K80", "V100")), [0], "its GPUs are of V100, and here of K80"),
        (Library(models=("V100", "V100")), [0, 1], "its GPUs are of V100, and here of V100, V100"),
        (Library(), [3], "its GPUs are of V100, and here of none"),
        (Library(driver="590.1"), [0], "this node's driver is 590.1, and it ran with 580.65"),
        (None, [0], "there is no NVML here"),
    ],
)
def test_it_goes_on_on_gpus_of_the_same_model_by_the_same_driver(
    library: Library | None, gpus: list[int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "load", lambda: library)
    told = image_cards.why_not_here(CARD, gpus, None)
    assert why in told and bool(why) == bool(told)


def test_it_goes_on_where_the_driver_is_proven_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", Library)
    monkeypatch.setattr(dc, "load_nvml", Library)
    assert "are not proven" in image_cards.why_not_here(CARD, [0], tmp_path)
    image_cards.note_proven(tmp_path)
    assert image_cards.why_not_here(CARD, [0], tmp_path) == ""
    assert image_cards.forget_proof(tmp_path) and not image_cards.forget_proof(tmp_path)


def test_what_a_former_program_has_asked_of_the_driver_is_found_out_first(driver: FakeDriver) -> None:
    """It may be off its GPU, or not, and which process it is nobody knows."""
    card = card_of(os.getpid()) | {"is_off": True}
    with pytest.raises(BadImage, match="is not known; it is put on again first"):
        image_cards.take_off(card, [os.getpid()])
    assert driver.calls() == []


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver, and NVML, that are played; this process uses its GPU."""
    made = FakeDriver(tmp_path / "cuda")
    monkeypatch.setattr(dc, "LIBRARY", str(made.so))
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(made.directory))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    made.use(os.getpid(), 5 * MIB)
    return made


def card_of(pid: int) -> dict[str, Any]:
    proc = procs.read_proc(pid)
    assert proc is not None
    return {"is_off": False, "procs": [proc.id], "bytes": {}, "cgroups": [], "gpus": [0]}


def test_off_its_gpu_and_onto_another(driver: FakeDriver) -> None:
    card = card_of(os.getpid())
    image_cards.take_off(card, [os.getpid()])
    assert (card["is_off"], card["bytes"], driver.state(os.getpid())) == (True, {"0": 5 * MIB}, CHECKPOINTED)
    known = image_cards.facts(card)
    assert known["cards"] == [["GPU-00000000-0000-0000-0000-000000000000", "V100"]]
    assert (known["bytes"], known["inner"]) == ([5 * MIB], imageable.inner_pid(os.getpid()))
    # One that the driver keeps already is not asked for again.
    calls = driver.calls()
    image_cards.take_off(card, [os.getpid()])
    assert driver.calls() == calls
    known["cards"][0][0] = "GPU-00000000-0000-0000-0000-0000000000ff"
    image_cards.put_on(ProcId(*card["procs"][0]), known, [0])
    assert driver.state(os.getpid()) == RUNNING
    assert driver.calls()[2:] == [f"pair:{255:032x}={0:032x}", "Restore", "Unlock"]


def test_what_the_driver_refuses_is_said_and_nothing_has_changed(driver: FakeDriver) -> None:
    driver.fail("Checkpoint", 2)
    card = card_of(os.getpid())
    with pytest.raises(
        BadImage, match="its driver did not take it off its GPU: cuCheckpointProcessCheckpoint"
    ):
        image_cards.take_off(card, [os.getpid()])
    assert not card["is_off"] and driver.state(os.getpid()) == RUNNING
    with pytest.raises(BadImage, match="0 of its processes use a GPU"):
        image_cards.take_off(card_of(os.getppid()), [])


def test_a_process_that_has_the_gpu_open_all_the_same_is_named_and_the_driver_keeps_the_rest(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imageable, "CARD", "/dev/full")
    worker = subprocess.Popen(["sleep", "60"], stdin=open("/dev/full", "wb"))  # noqa: SIM115
    try:
        card = card_of(os.getpid())
        with pytest.raises(
            BadImage, match="/dev/full is open behind the driver's checkpoint, as a loader's worker"
        ):
            image_cards.take_off(card, [os.getpid(), worker.pid])
        assert card["is_off"] and card["bytes"]
    finally:
        worker.kill()
        worker.wait()


def test_where_its_new_gpu_has_no_room_it_is_not_put_on(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cards, "ROOM_S", 0.0)
    card = card_of(os.getpid())
    image_cards.take_off(card, [os.getpid()])
    known = image_cards.facts(card)
    driver.free(MIB)
    with pytest.raises(BadImage, match="GPU 0 has 1 MiB free"):
        image_cards.put_on(ProcId(*card["procs"][0]), known, [0])
    assert driver.state(os.getpid()) == CHECKPOINTED, "a restore that runs out of memory cannot be repeated"
    driver.free(1 << 40)
    driver.fail("Restore", 101)
    with pytest.raises(BadImage, match="its driver did not put it onto a GPU: cuCheckpointProcessRestore"):
        image_cards.put_on(ProcId(*card["procs"][0]), known, [0])


def test_a_gpu_that_is_open_is_no_matter_where_it_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imageable, "CARD", "/dev/ptmx")
    me, gid = procs.read_proc(os.getpid()), os.getgid()
    assert me is not None
    tree = imageable.Tree(me.id, None, (me,))
    monkeypatch.setattr(imageable, "_open_files", lambda pid: ["/home/"])
    assert imageable.check(tree, gid, cards="") is False
    monkeypatch.setattr(imageable, "_open_files", lambda pid: ["/home/", "/dev/ptmx"])
    assert imageable.check(tree, gid, cards="") is True
    assert imageable.open_card(1) == "/dev/ptmx"
    with pytest.raises(imageable.NoImage, match=r"^it has the device /dev/ptmx open; it is not proven$"):
        imageable.check(tree, gid, cards="it is not proven")
    with pytest.raises(imageable.NoImage, match=imageable.CARDS_OFF):
        imageable.check(tree, gid)


@pytest.fixture
def sleeper() -> Iterator[procs.Proc]:
    """A process of a job."""
    process = subprocess.Popen(["sleep", "60"])
    found = procs.read_proc(process.pid)
    assert found is not None
    yield found
    process.kill()
    process.wait()


@pytest.mark.parametrize("is_made", [True, False])
async def test_what_the_driver_may_keep_is_written_down_before_it_is_asked(
    floor: Any, making: Imager, is_made: bool, sleeper: procs.Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of the program that asks it: it is brought back before the job's next turn."""
    resident, tasks, saved, written = parked(floor), list[dict[str, Any]](), list[bool](), list[bool]()
    monkeypatch.setattr(imageable, "check", lambda tree, gid, **how: True)
    monkeypatch.setattr(resident.processes, "members", lambda: [sleeper])
    off = {"is_off": True, "procs": [sleeper.id], "bytes": {"0": 5 * MIB}, "cgroups": [], "gpus": [0]}
    said = {"bytes": 5, "dump_s": 0.5, "seal_s": 0.5} if is_made else {"why": "no room"}

    def start(module: str, task: dict[str, Any]) -> Any:
        tasks.append(task)
        return subprocess.Popen(["true"])

    monkeypatch.setattr("gandiva_slurm.node.imaging.start", start)
    monkeypatch.setattr("gandiva_slurm.node.imaging.answer", lambda call: {**said, "card": off})
    monkeypatch.setattr(floor.node, "save", lambda: saved.append(resident.away.is_out))
    monkeypatch.setattr(making._slicer.switcher, "wake", lambda of: written.extend(saved[-1:]))
    floor.plan(1, is_leaving=True)
    making._cards = ""
    making._look_at(resident, "")
    (task,) = tasks
    assert task["card"] == {**off, "is_off": False, "bytes": {}, "gpus": list(resident.gpus)}
    assert resident.away.is_out and written == [True]
    for maker in [*making._makers]:
        await maker
    assert (resident.away.is_out, resident.away.procs, resident.away.bytes) == (
        True,
        [sleeper.id],
        {"0": 5 * MIB},
    )
    assert resident.image.is_whole == is_made


async def test_what_the_driver_keeps_is_in_no_image_where_that_is_off(
    floor: Any, making: Imager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier `driver` leaves no device open."""
    resident = parked(floor)
    resident.away.is_out, resident.image.why_not = True, ""
    floor.plan(1, is_leaving=True)
    monkeypatch.setattr(making._slicer.switcher, "wake", lambda of: pytest.fail("it is let go"))
    making._look_at(resident, "")
    assert imageable.CARDS_OFF in resident.image.why_not
    assert imageable.CARDS_OFF in image_task.why_not(floor.node, resident, imageable.CARDS_OFF)
    assert image_task.why_not(floor.node, resident, "") == "" and resident.image.has_card


async def test_its_node_says_that_it_goes_on_on_the_same_model_alone(floor: Any) -> None:
    resident = floor.train(1, kind=wire.KIND_HOOK)
    resident.image.why_not = ""
    assert not floor.told(1).keeps_type
    resident.image.has_card = True
    assert floor.told(1).keeps_type
    attached = floor.train(2, kind=wire.KIND_RUN)
    attached.image.has_card = True
    assert not floor.told(2).keeps_type
