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
from typing import Any

import pytest

from gandiva_slurm.node import imaging, procs
from gandiva_slurm.node.imager import Imager
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.slicer import Slicer
from tests import patience
from tests.node_bench import Bench
from tests.unit.test_kept_images import floor as floor
from tests.unit.test_kept_images import parked
from tests.unit.test_node_adoption import job_of, start_again, state
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


def wait_for(holds: Callable[[], object]) -> None:
    until_s = time.monotonic() + 30 * patience.slowness()
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_criu_that_takes_too_long_undoes_its_dump(tmp_path: Path) -> None:
    """No signal ends it, for it has its own code in the processes that it has stopped."""
    out, undone = tmp_path / "pages", tmp_path / "undone"
    assert imaging._run(started(WRITES, out, undone), 1.0 * patience.slowness()) == imaging._LATE
    assert out.stat().st_size > 0 and undone.exists()


def test_criu_that_does_not_end_by_itself_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imaging, "UNDO_S", 0.3)
    assert imaging._run(started(HANGS), 0.2) == imaging._LATE
    wait_for(lambda: all(proc.state in procs.ENDED for proc in procs.below([os.getpid()])))


def test_a_maker_that_is_ended_seals_nothing_and_its_criu_undoes_its_dump(tmp_path: Path) -> None:
    out, undone, sealed_it = (tmp_path / name for name in ("pages", "undone", "sealed"))
    make = (
        "import sys; from pathlib import Path; from gandiva_slurm.node import imaging\n"
        f"imaging._run({started(WRITES, out, undone)!r}, 60)\nPath({str(sealed_it)!r}).touch()\n"
    )
    call = subprocess.Popen([sys.executable, "-c", make], start_new_session=True)
    wait_for(lambda: out.exists() and out.stat().st_size)
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
    wait_for(lambda: len([*procs.below([call.pid])]) == 2)
    below = [proc.id for proc in procs.below([call.pid])]
    monkeypatch.setattr(imaging.subprocess, "run", run)
    imaging.end(id_of(call))
    assert call.wait(10) == -signal.SIGKILL
    wait_for(lambda: not any(map(procs.is_alive, below)))


@contextlib.contextmanager
def a_maker() -> Iterator[ProcId]:
    with subprocess.Popen(["sleep", "60"]) as call:
        try:
            yield id_of(call)
        finally:
            call.kill()


async def test_a_gandivad_that_is_started_anew_does_not_freeze_what_criu_has_in_hand(
    tmp_path: Path, stepd: Any
) -> None:
    """criu undoes its work by the job's own processes; behind that it is frozen as any that is parked."""
    bench = Bench(tmp_path, 1)
    job = job_of(bench, stepd[0])
    bench.slicer.switcher.release(job, bench.clock.mono())
    with a_maker() as maker:
        job.image.maker = maker
        node = start_again(bench)
        (again,) = node.residents.values()
        assert again.image.maker == maker and state(stepd[1]) == "S" and not again.stopped
        again.image.maker = None
        Slicer(node).switcher.shut(again)
        wait_for(lambda: state(stepd[1]) == "T")


@pytest.mark.parametrize("is_whole", [True, False])
async def test_where_images_are_off_now_no_job_stands_still_for_one(floor: Any, is_whole: bool) -> None:
    resident = parked(floor)
    object.__setattr__(floor.node.settings, "image_dir", None)
    with a_maker() as maker:
        resident.image.maker, resident.image.is_whole = None if is_whole else maker, is_whole
        making = asyncio.create_task(Imager(floor.node, floor.slicer).run())
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if not resident.image.keeps_still:
                break
        assert not resident.image.keeps_still and not making.done()
        assert is_whole or not procs.is_alive(maker)
        making.cancel()
    (other,) = (each for each in floor.node.residents.values() if each is not resident)
    floor.next_quantum()
    floor.park(other)
    assert resident.holds
