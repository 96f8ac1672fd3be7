"""What questions cost gandivactld with 50,000 jobs in its record: processor time of its one thread."""

from __future__ import annotations

import asyncio
import copy
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gandiva_slurm.controller import privacy
from gandiva_slurm.controller.api import Api
from gandiva_slurm.controller.foretold import write
from gandiva_slurm.controller.privacy import Rules
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model.reason import because
from tests.controller.fakes import World

JOBS, NODES, GPUS, USERS = 50_000, 100, 4, 200
#: One of this number is on GPUs, by fours; as many have ended.
HELD = range(101, 101 + 4 * 100)
UID, USER = 4242, "user0"
TIMES = 5
#: What one may take of a processor, ms: of one job, and of all of them.
MOST_MS = {"one": 40.0, "all": 2_500.0}


@pytest.fixture
async def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., object]]:
    """ask(NAME, is_private=…, **args): the data, and milliseconds of a processor it took at the best."""
    monkeypatch.setattr(privacy, "_name_of", lambda uid: USER)
    made = World(tmp_path, {f"n{number}": GPUS for number in range(NODES)})
    await made.start()
    for number in range(len(HELD)):
        made.slurm.submit(f"user{number % USERS}", 1)
    await made.until(lambda: sum(map(made.runs, HELD)) == len(HELD))
    await made.cycles(3)
    await made.kill()
    engine = made.controller.engine
    first = engine.jobs[HELD[0]]
    for number in range(HELD[-1] + 1, JOBS + HELD[0]):
        engine.state.jobs[number] = waiting(first, number)
    account(made)
    foretell(made.state_dir, [*engine.jobs])
    rules = {"is_private": False}

    async def read() -> Rules:
        return Rules(frozenset({"jobs", "usage"}) if rules["is_private"] else frozenset())

    async def _ask(name: str, is_private: bool = False, **args: object) -> tuple[object, float]:
        rules["is_private"], took = is_private, []
        api = Api(made.controller, frozenset({0}), read)
        payload = json.dumps({"ask": name, "args": args}).encode()
        for _ in range(TIMES):
            began_s = time.thread_time()
            answer = await api.answer(payload, UID)
            took.append(1000 * (time.thread_time() - began_s))
            await asyncio.sleep(0)
        told = json.loads(answer)
        assert told["ok"], told
        return told["data"], min(took)

    yield _ask


def waiting(like: JobRecord, number: int) -> JobRecord:
    """A record of a job that waits."""
    user = f"user{number % USERS}"
    record = copy.copy(like)
    record.job = replace(like.job, job_id=number, user=user, name=f"job{number}", state="PENDING", nodes=())
    record.state, record.places, record.reason = "HELD", {}, because("New")
    record.story = []
    return record


def account(made: World) -> None:
    """Have the ledger know all of them, as it does a job that is in the queue."""
    columns = (
        "job_id, submit_s, requeued_s, restart, name, user, account, partition, state, gpus, type, node, "
        "start_s, end_s, exit_code"
    )
    rows = [
        (number, job.submit_s, 0, 0, job.name, job.user, "lab", "gandiva", "HELD", 1, "v100", "", 0, 0, "")
        for number, job in ((each, one.job) for each, one in made.controller.engine.jobs.items())
    ]
    with closing(sqlite3.connect(made.controller.books.ledger_path)) as db:
        marks = ", ".join("?" * len(rows[0]))
        db.executemany(f"INSERT OR IGNORE INTO jobs ({columns}) VALUES ({marks})", rows)
        db.commit()


def foretell(folder: Path, job_ids: list[int]) -> None:
    now_s = time.time()
    times = [now_s + 60, now_s + 90, now_s + 120]
    meta = {"of_s": now_s, "reached_s": now_s + 1e6, "runs": 20, "cycles": 1, "past_jobs": 0, "took_s": 1.0}
    rows = ({"job_id": number, "turn": times, "start": times, "end": times, "why": ""} for number in job_ids)
    write(folder, meta, rows)


QUESTIONS = (
    ("queue -j", "one", "queue", {"job_ids": [30_000], "when": True}),
    ("queue -j, on a GPU", "one", "queue", {"job_ids": [101], "when": True}),
    ("why", "one", "why", {"job_id": 30_000, "story": True}),
    ("why, on a GPU", "one", "why", {"job_id": 101, "story": True}),
    ("when", "one", "when", {"job_ids": [30_000]}),
    ("acct -j", "one", "acct", {"job_ids": [101], "start_s": 0}),
    ("nodes", "one", "nodes", {}),
    ("queue -u", "one", "queue", {"user": USER, "when": True}),
    ("queue", "all", "queue", {"when": False}),
    ("queue, with WHEN", "all", "queue", {"when": True}),
)


@pytest.mark.parametrize("is_private", [False, True])
async def test_questions_of_one_job_cost_that_job(ask, is_private: bool) -> None:  # type: ignore[no-untyped-def]
    late = []
    for words, kind, name, args in QUESTIONS:
        data, took_ms = await ask(name, is_private, **args)
        print(f"{'private: ' * is_private}{words:20} {took_ms:8.1f} ms {len(json.dumps(data)):10} bytes")
        late += [(words, took_ms)] if took_ms > MOST_MS[kind] else []
    assert not late
