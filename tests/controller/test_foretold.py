"""What is foretold of a controller's jobs: made beside it, asked of it, and what is wrong with it."""

import asyncio
import errno
import json
import os
import signal
import sqlite3
import time

import pytest

from gandiva_slurm.cli import forecast as making
from gandiva_slurm.cli import forecast_memory
from gandiva_slurm.controller import foretold
from gandiva_slurm.controller.present import read_present
from gandiva_slurm.controller.what_if import COMMAND
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.sim.forecast.memory import Memory
from tests import patience
from tests.controller.test_controller_api import ask, data, running  # noqa: F401
from tests.controller.test_privacy import OTHER, asker
from tests.controller.test_privacy import ask as ask_as  # noqa: F401

ROOT = 0
ROW = {"turn": None, "start": None, "end": [1.0, 2.0, 3.0], "why": ""}


def told(folder, of_s: float = 0.0, **rows: object):
    """Write a forecast of this moment."""
    meta = {"of_s": of_s or time.time(), "reached_s": 1e10, "runs": 20, "past_jobs": 3}
    foretold.write(folder, meta, ({"job_id": int(name[1:]), **ROW, "why": why} for name, why in rows.items()))


async def test_a_forecast_of_what_the_journal_has_is_told_of_each_job(world, ask, monkeypatch):  # noqa: F811
    monkeypatch.setattr(making, "WORK_S", 2.0)
    one = await running(world, "user1", 2)
    other = world.slurm.submit("user2", 64)
    await world.cycles(3)
    before = await data(ask, "when", job_ids=[one])
    assert before["forecast"] is None and "none was made yet" in before["trouble"]
    making.make(world.controller.config)
    after = await data(ask, "when", job_ids=[one])
    assert after["trouble"] == "" and 0 <= after["forecast"]["age_s"] < 60
    (row,) = after["jobs"]
    assert row["is_told"] and row["end"][0] > after["forecast"]["of_s"] >= row["turn"][1] - 1
    both = {row["job_id"]: row for row in (await data(ask, "when"))["jobs"]}
    assert both.keys() == {one, other} and "asks for 64 GPUs" in both[other]["why"]
    assert not both[other]["end"]
    queue = {row["job_id"]: row["when"] for row in await data(ask, "queue", when=True)}
    assert queue[one]["end"] == row["end"] and "64 GPUs" in queue[other]["why"]
    assert "when" not in (await data(ask, "queue"))[0]
    assert (await ask("when", job_ids=[999]))["error"].startswith("Gandiva has no job 999 now")
    late = world.slurm.submit("user1")
    await world.cycles(2)
    (row,) = (await data(ask, "when", job_ids=[late]))["jobs"]
    assert not row["is_told"] and row["end"] is None


async def test_it_goes_by_what_gandivactld_has_taken_over(world):
    """Not by the gandiva.yaml of its own start, and not by one that gandivactld has not read."""
    await world.start()
    await running(world, "user1")
    began_with = world.controller.config
    world.controller.reload(began_with.model_copy(update={"policy": "srsf", "quantum_s": 7.0}))
    world.slurm.submit("user2")
    await world.cycles(3)
    told = read_present(began_with)
    assert told.leader.told["policy"] == "srsf"
    engine = told.engine_of()
    assert engine.settings == world.controller.engine.settings
    assert engine.decider.leader.told == world.controller.engine.decider.leader.told
    making.make(began_with)
    silent = began_with.controller.model_copy(update={"replay_hours": 0})
    world.controller.reload(began_with.model_copy(update={"policy": "fifo", "controller": silent}))
    world.slurm.submit("user2")
    await world.cycles(3)
    assert read_present(began_with).leader.told["policy"] == began_with.policy
    world.controller.reload(began_with)
    await world.cycles(2)


async def test_an_old_forecast_tells_its_age_and_then_nothing(world, ask):  # noqa: F811
    one = await running(world)
    told(world.state_dir, time.time() - 300, **{f"j{one}": ""})
    assert 299 < (await data(ask, "when", job_ids=[one]))["forecast"]["age_s"] < 330
    told(world.state_dir, time.time() - 601, **{f"j{one}": ""})
    answer = await data(ask, "when", job_ids=[one])
    assert answer["forecast"] is None and "is `gandiva forecast` running?" in answer["trouble"]
    assert (await data(ask, "queue", when=True))[0]["when"] is None


async def test_others_are_in_no_forecast(world, ask_as):  # noqa: F811
    told(world.state_dir, j101="waits for job 102 of user2", j102="waits for job 101")
    for question in ({"name": "when"}, {"name": "queue", "when": True}):
        name = question.pop("name")
        said = json.dumps(await ask_as(name, 1001, **question))
        assert not OTHER.search(said) and "another job" in said, name
        assert "102" in json.dumps(await asker(world)(name, ROOT, **question))
    there, not_there = [await ask_as("when", 1001, job_ids=[job]) for job in (102, 999)]
    assert there.replace("102", "999") == not_there


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(os.urandom(5000)),
        lambda path: path.write_bytes(path.read_bytes()[:6000] + b"\xff" * 3000),
        lambda path: change(path, "UPDATE meta SET form = 99"),
        lambda path: change(path, "DELETE FROM meta"),
        lambda path: change(path, "UPDATE meta SET told = '[1]'"),
        lambda path: change(path, "UPDATE meta SET told = '{\"of_s\": \"x\"}'"),
        lambda path: change(path, "UPDATE jobs SET told = '" + "[" * 100_000 + "'"),
        lambda path: change(path, "DROP TABLE jobs"),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
async def test_a_file_that_is_spoilt_is_no_forecast(world, ask, spoil):  # noqa: F811
    one = await running(world)
    told(world.state_dir, **{f"j{one}": ""})
    spoil(world.state_dir / foretold.FILE_NAME)
    answer = await data(ask, "when", job_ids=[one])
    assert answer["forecast"] is None and answer["trouble"] and answer["jobs"][0]["end"] is None
    assert (await data(ask, "queue", when=True))[0]["when"] is None


def change(path, query: str) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(query)
    db.close()


def test_what_is_written_is_for_its_user_alone_and_a_full_disk_leaves_what_was(tmp_path, monkeypatch):
    told(tmp_path, j1="")
    path = tmp_path / foretold.FILE_NAME
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600

    def refuse(*args, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(foretold.os, "open", refuse)
    with pytest.raises(OSError, match="No space"):
        told(tmp_path, j2="")
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_killed_writer_leaves_what_was_and_the_next_goes_on(tmp_path):
    told(tmp_path, j1="")
    child = os.fork()
    if child == 0:
        foretold.write(tmp_path, {"of_s": 1.0}, iter(lambda: os.kill(os.getpid(), signal.SIGKILL), 0))
    os.waitpid(child, 0)
    assert foretold.read(tmp_path, time.time()).rows.keys() == {1}
    told(tmp_path, j2="")
    assert foretold.read(tmp_path, time.time()).rows.keys() == {2}
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"errors": 1}', "[" * 100_000, '{"limits_ns": [[1, 1e999]]}'])
def test_a_memory_that_cannot_be_read_is_begun_anew(tmp_path, text):
    (tmp_path / forecast_memory.FILE_NAME).write_text(text)
    assert forecast_memory.load(tmp_path) == Memory()


def test_a_memory_comes_back_as_it_was(tmp_path):
    memory = Memory({1: 600}, {1: [[1.0, 2.0, 3.0, 4.0]]}, [0.5])
    forecast_memory.save(tmp_path, memory)
    assert forecast_memory.load(tmp_path) == memory


async def test_a_child_that_hangs_dies_or_fails_leaves_what_was(world, monkeypatch, caplog):
    await world.start()
    for fault, deadline_s, said in (
        (lambda config: time.sleep(60), 0.2, "no forecast within 0.2 s"),
        (lambda config: os.kill(os.getpid(), signal.SIGKILL), 60, "ended by signal 9"),
    ):
        monkeypatch.setattr(making, "DEADLINE_S", deadline_s)
        monkeypatch.setattr(making, "make", fault)
        assert not making._make_apart(world.controller.config) and said in caplog.text
    for error in (GandivaError("so"), MemoryError(), OSError(errno.ENOSPC, "full"), ZeroDivisionError()):

        def fail(config, error=error):
            raise error

        monkeypatch.setattr(making, "make", fail)
        assert not making._make_apart(world.controller.config)


@pytest.mark.parametrize("is_asked_for", [False, True])
async def test_only_what_nobody_asked_for_steps_back(world, monkeypatch, tmp_path, is_asked_for):
    await world.start()
    told, before = tmp_path / "nice", os.nice(0)
    monkeypatch.setattr(making, "make", lambda config: told.write_text(str(os.nice(0))))
    assert making._make_apart(world.controller.config, is_asked_for=is_asked_for)
    assert int(told.read_text()) == (before if is_asked_for else 19)


async def test_the_process_makes_them_and_ends_when_it_is_told(world, conf):
    await world.start()
    one = await running(world, "user1")
    command = (*COMMAND, "-f", conf(), "forecast")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        await world.until(lambda: foretold.read(world.state_dir, time.time()).rows.keys() == {one})
        process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 30 * patience.slowness())
        assert code == 0, await process.stderr.read()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_without_a_journal_it_says_where_it_looked(world):
    await world.start()
    (world.state_dir / "journal.sqlite").rename(world.state_dir / "elsewhere")
    with pytest.raises(GandivaError, match="state_dir"):
        making.make(world.controller.config)
    (world.state_dir / "elsewhere").rename(world.state_dir / "journal.sqlite")
