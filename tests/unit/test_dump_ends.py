"""A dump that is to end is undone by criu: it has its own code in the job's processes (ADR 0054)."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import criu, guard, images, imaging, procs, unmade
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.imager import Imager
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.saved import state_of
from gandiva_slurm.node.slicer import Slicer
from tests import patience
from tests.node_bench import Bench
from tests.unit.test_kept_images import floor as floor
from tests.unit.test_kept_images import parked
from tests.unit.test_node_adoption import job_of, start_again, state, until
from tests.unit.test_node_adoption import stepd as stepd

#: What criu is like: it writes, and where a write fails it undoes what it has done. It is no Python, which
#: ignores SIGXFSZ whatever it was started with.
WRITES = 'while printf x >>"$0"; do sleep 0.01; done; : >"$1"; exit 1'
HANGS = "exec sleep 60"


def started(program: str, *words: object) -> list[str]:
    """Below another program, as criu is below `timeout`, and that below `nsenter`."""
    return ["timeout", "60", "sh", "-c", program, *map(str, words)]


def id_of(call: subprocess.Popen[Any]) -> ProcId:
    found = procs.read_proc(call.pid)
    assert found is not None
    return found.id


def test_criu_that_takes_too_long_undoes_its_dump(tmp_path: Path) -> None:
    """No signal ends it, for it has its own code in the processes that it has stopped."""
    out, undone = tmp_path / "pages", tmp_path / "undone"
    assert imaging._run(started(WRITES, out, undone), 1.0 * patience.slowness()) == imaging._LATE
    assert out.stat().st_size > 0 and undone.exists()


def test_criu_that_does_not_end_by_itself_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imaging, "UNDO_S", 0.3)
    before = {proc.id for proc in procs.below([os.getpid()])}
    assert imaging._run(started(HANGS), 0.2) == imaging._LATE
    since = [proc for proc in procs.below([os.getpid()]) if proc.id not in before]
    until(lambda: not any(procs.is_alive(proc.id) for proc in since))


def test_a_maker_that_is_ended_seals_nothing_and_its_criu_undoes_its_dump(tmp_path: Path) -> None:
    out, undone, sealed_it = (tmp_path / name for name in ("pages", "undone", "sealed"))
    make = (
        "import sys; from pathlib import Path; from gandiva_slurm.node import imaging\n"
        f"imaging._run({started(WRITES, out, undone)!r}, 60)\nPath({str(sealed_it)!r}).touch()\n"
    )
    call = subprocess.Popen([sys.executable, "-c", make], start_new_session=True)
    until(lambda: out.exists() and out.stat().st_size)
    imaging.end(id_of(call))
    assert undone.exists() and call.wait(10) == -signal.SIGKILL and not sealed_it.exists()
    imaging.end(ProcId(call.pid, 1))  # and once more: there is none


def test_where_nothing_can_be_started_it_is_killed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is short, say; the guard must go on to the other jobs."""

    def run(*words: Any, **how: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(imaging, "UNDO_S", 0.3)
    make = f"from gandiva_slurm.node import imaging; imaging._run({started(HANGS)!r}, 60)"
    call = subprocess.Popen([sys.executable, "-c", make], start_new_session=True)
    until(lambda: len([*procs.below([call.pid])]) == 2)
    below = [proc.id for proc in procs.below([call.pid])]
    monkeypatch.setattr(imaging.subprocess, "run", run)
    imaging.end(id_of(call))
    assert call.wait(10) == -signal.SIGKILL
    until(lambda: not any(map(procs.is_alive, below)))


@contextlib.contextmanager
def a_maker() -> Iterator[ProcId]:
    with subprocess.Popen(["sleep", "60"]) as call:
        try:
            yield id_of(call)
        finally:
            call.kill()


@pytest.mark.parametrize("was_stopped", [True, False])
async def test_a_gandivad_that_is_started_anew_does_not_freeze_what_criu_has_in_hand(
    tmp_path: Path, stepd: Any, was_stopped: bool
) -> None:
    """criu undoes its work by the job's own processes; behind that it is frozen as any that is parked."""
    bench, child = Bench(tmp_path, 1), stepd[1]
    job = job_of(bench, stepd[0])
    bench.slicer.switcher.release(job, bench.clock.mono())
    job.stopped = {child} if was_stopped else set()
    with a_maker() as maker:
        job.image.maker = maker
        node = start_again(bench)
        (again,) = node.residents.values()
        assert again.image.maker == maker and again.image.keeps_still
        for _ in range(20):
            assert state(child) != "T"
            time.sleep(0.01)
    Slicer(node).switcher.shut(again)
    until(lambda: state(child) == "T")


def stopped_child(child: ProcId) -> None:
    procs.send(child, signal.SIGSTOP)
    until(lambda: state(child) == "T")


@pytest.mark.parametrize("is_whole", [True, False])
async def test_where_images_are_off_now_no_job_stands_still_for_one(
    floor: Any, stepd: Any, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its image is put away before, for another node may restore from it."""
    resident, root = parked(floor), floor.node.settings.image_dir
    images.place_of(root, resident.key).mkdir()
    stopped_child(stepd[1])
    monkeypatch.setattr(resident.processes, "members", lambda: [procs.read_proc(stepd[1].pid)])
    floor.node.former_images = str(root)
    object.__setattr__(floor.node.settings, "image_dir", None)
    with a_maker() as maker:
        resident.image.maker, resident.image.is_whole = None if is_whole else maker, is_whole
        making = asyncio.create_task(Imager(floor.node, floor.slicer).run())
        await eventually(lambda: not resident.image.keeps_still)
        assert not making.done(), making.exception()
        assert not images.has_any(root, 1)
        assert is_whole or not procs.is_alive(maker)
        making.cancel()
    (other,) = (each for each in floor.node.residents.values() if each is not resident)
    floor.next_quantum()
    floor.park(other)
    assert resident.holds
    until(lambda: state(stepd[1]) != "T")


async def eventually(holds: Callable[[], object]) -> None:
    until_s = time.monotonic() + 30 * patience.slowness()
    while not holds():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


async def test_a_store_that_refuses_keeps_one_job_still_and_no_other(
    floor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there might be restored later, when the job has gone on."""
    root, gone, refused = floor.node.settings.image_dir, list[str](), [JobKey(1, 0)]
    first, second = parked(floor), floor.node.residents[JobKey(2, 0)]
    put_away = images.put_away

    def refuse(root: Path, key: JobKey) -> list[Path]:
        if key in refused:
            raise OSError(30, "Read-only file system")
        return put_away(root, key)

    monkeypatch.setattr(unmade.images, "put_away", refuse)

    def note(job: Any, why: str, took_ns: int) -> None:
        gone.append(job.user)

    pending = unmade.Unmade(floor.node, floor.slicer.switcher, note)
    for resident in (first, second):
        images.place_of(root, resident.key).mkdir()
        resident.image.maker = ProcId(4194303, 1)
    await pending.take_over("")
    pending.look(root)
    assert first.image.keeps_still and not second.image.keeps_still and gone == ["user2"]
    refused.clear()
    pending.look(root)
    assert first.image.keeps_still, "it is asked again after a while"
    pending._later_s.clear()
    pending.look(root)
    assert not first.image.keeps_still and gone == ["user2", "user1"] and not pending
    assert not images.has_any(root, 1) and not images.has_any(root, 2)


@contextlib.contextmanager
def a_killed_maker() -> Iterator[subprocess.Popen[Any]]:
    """What a killed program has left: a process that is called as criu is, of its session."""
    words = ["sh", "-c", 'sh -c "sleep 60; :" sh criu dump >/dev/null & kill -9 $$']
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE, text=True) as call:
        leader = id_of(call)
        call.wait()
        until(lambda: criu.left_by(leader))
        try:
            yield call
        finally:
            for proc in [*procs.of_session(leader)]:
                procs.send(proc, signal.SIGKILL)


async def test_a_job_is_not_let_go_while_the_criu_of_a_killed_maker_works(
    floor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, root, told = parked(floor), floor.node.settings.image_dir, list[ProcId]()
    imager, tree = Imager(floor.node, floor.slicer), SimpleNamespace(procs=[])
    monkeypatch.setattr(unmade.imaging, "end", told.append)
    monkeypatch.setattr(unmade, "AGAIN_S", 0.0)
    with a_killed_maker() as call:
        resident.image.maker, resident.leave.is_told = ProcId(call.pid, 1), True
        await imager._follow(resident, tree, call, 600.0)  # type: ignore[arg-type]
        assert told == [ProcId(call.pid, 1)]
        for _ in range(5):
            imager._unmade.look(root)
            assert resident.image.is_in_hand and resident.image.keeps_still
    until(lambda: not resident.image.is_in_hand)
    imager._unmade.look(root)
    assert not resident.image.keeps_still and "ended with -9" in resident.leave.error


def test_the_criu_of_a_killed_maker_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imaging, "UNDO_S", 0.3)
    with a_killed_maker() as call:
        leader = ProcId(call.pid, 1)
        imaging.end(leader)
        until(lambda: not criu.left_by(leader))


async def test_what_cannot_be_ended_for_want_of_something_is_tried_again(
    floor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, tries = parked(floor), list[ProcId]()

    def end(maker: ProcId) -> None:
        tries.append(maker)
        if len(tries) == 1:
            raise OSError(24, "Too many open files")

    monkeypatch.setattr(unmade.imaging, "end", end)
    monkeypatch.setattr(unmade, "AGAIN_S", 0.01)
    resident.image.maker = ProcId(4194303, 1)
    pending = unmade.Unmade(floor.node, floor.slicer.switcher, lambda *told: None)
    await pending.end(resident, "")
    assert len(tries) == 2 and len(pending) == 1


async def test_a_second_start_without_images_knows_the_store_still(floor: Any) -> None:
    """Until what stood still for an image is let go, and its image put away."""
    object.__setattr__(floor.node.settings, "image_dir", None)
    floor.node.store.save(state_of(floor.node) | {"image_dir": "/store"})
    node = Node(floor.node.settings)
    assert node.former_images == "/store" and state_of(node)["image_dir"] == "/store"
    await asyncio.wait_for(Imager(node, floor.slicer)._give_up(), 30)
    assert Node(node.settings).former_images == ""


@pytest.mark.parametrize("has_store", [True, False])
def test_the_guard_continues_what_a_killed_maker_s_criu_has_left_stopped(
    tmp_path: Path, stepd: Any, has_store: bool
) -> None:
    """No gandivad has written down what criu stopped: it is found."""
    images.prepare(tmp_path / "images")
    bench = Bench(tmp_path, 1)
    job = job_of(bench, stepd[0])
    with a_maker() as maker:
        job.image.maker = maker
        told = state_of(bench.node) | {"image_dir": str(tmp_path / "images") if has_store else ""}
        bench.node.store.save(told)
        stopped_child(stepd[1])
        guard.thaw(tmp_path)
        assert not procs.is_alive(maker)
    until(lambda: state(stepd[1]) != "T")


def test_the_guard_lets_other_jobs_go_where_one_cannot_be(
    tmp_path: Path, stepd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, 2)
    bad, good = job_of(bench, stepd[0]), bench.add(2, "user2", (1,))
    with a_maker() as other:
        good.stopped, bad.image.maker = {other}, ProcId(os.getpid(), 1)
        bench.node.store.save(state_of(bench.node))
        stopped_child(other)

        def fail(maker: ProcId) -> None:
            until(lambda: state(other) != "T")
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(guard, "_PAUSE_S", 0.0)
        monkeypatch.setattr(guard.imaging, "end", fail)
        guard.thaw(tmp_path)
        assert state(other) != "T"


def test_the_guard_thaws_what_a_maker_has_frozen_once_more(
    tmp_path: Path, stepd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its criu is done, and the job stopped and frozen for the image that is given up now."""
    bench, order = Bench(tmp_path, 1), list[str]()
    job = job_of(bench, stepd[0])
    job.image.maker = ProcId(4194303, 1)
    bench.node.store.save(state_of(bench.node))
    monkeypatch.setattr(guard.imaging, "end", lambda maker: order.append("end"))
    monkeypatch.setattr(guard.freezer, "thaw_all", lambda *words: order.append("thaw") or 0)
    guard.thaw(tmp_path)
    assert order == ["thaw", "end", "thaw"]
