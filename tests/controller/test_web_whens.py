"""`gandiva web`: when jobs start and end is on its rows, asked beside the look, and nothing waits for it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gandiva_slurm.cli.web import whens
from gandiva_slurm.cli.web.whens import Whens
from gandiva_slurm.controller import foretold
from gandiva_slurm.model.errors import PeerError
from tests.controller.test_web import site as site
from tests.patience import slowness

TURN = {"turn": [1.0, 2.0, 3.0], "start": [1.0, 2.0, None], "end": None}


async def until(is_so) -> None:
    """Look again and again until it is so."""
    async with asyncio.timeout(20 * slowness()):
        while not await is_so():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("private", ["", "jobs"])
async def test_rows_have_what_was_foretold_and_nobody_elses_number(world, site, monkeypatch, private):
    monkeypatch.setattr(whens, "LEAST_S", 0.0)
    world.slurm.private = private
    meta = {"of_s": time.time(), "reached_s": 9e9, "runs": 20, "past_jobs": 3}
    rows = ({"job_id": job, **TURN, "why": why} for job, why in ((101, ""), (102, "job 101 of user1 has it")))
    foretold.write(world.state_dir, meta, rows)
    assert all(row["when"] is None for row in (await site.good("jobs"))["jobs"]), "not asked for yet"

    async def row_of(job: int, user: str):
        rows = (await site.good("jobs", user))["jobs"]
        return next(row for row in rows if row["job_id"] == job)

    async def has_come() -> bool:
        return (await row_of(101, "user1"))["when"] and (await row_of(102, "user2"))["when"]

    await until(has_come)
    one, other = await row_of(101, "user1"), await row_of(102, "user2")
    assert one["when"] == TURN | {"why": "", "of_s": meta["of_s"], "reached_s": 9e9}
    assert ("101" in other["when"]["why"]) == ("user1" in str(other)) == (not private)
    assert (await site.good("jobs/101"))["job"]["when"] == one["when"]


async def test_no_page_waits_and_one_question_is_put_at_a_time():
    asked, go = [], threading.Event()

    def query(name, arguments):
        asked.append((name, arguments["job_ids"]))
        assert go.wait(30)
        return [{"job_id": job_id, "when": TURN} for job_id in arguments["job_ids"] if job_id != 3]

    made = Whens(query)
    began_s = time.monotonic()
    assert made.of([1, 2, 3]) == {1: None, 2: None, 3: None} and made.of([4]) == {4: None}
    assert time.monotonic() - began_s < 5 * slowness()
    await asyncio.sleep(0)
    version = made.version
    go.set()

    async def has_come() -> bool:
        return made.version > version

    await until(has_come)
    assert made.of([1, 3]) == {1: TURN, 3: None}
    assert asked == [("queue", [1, 2, 3])], "what is not foretold is not asked for again at once"


@pytest.mark.parametrize("answer", [PeerError("it is away"), [{"job": 1}], None, 7])
async def test_whatever_is_answered_rows_are_shown_without(monkeypatch, answer):
    monkeypatch.setattr(whens, "LEAST_S", 0.0)
    asked = []

    def query(name, arguments):
        asked.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = Whens(query)

    async def was_asked_again() -> bool:
        assert made.of([1]) == {1: None}
        return len(asked) > 2

    await until(was_asked_again)


async def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(whens, "LEAST_S", 0.0)
    monkeypatch.setattr(whens, "MOST_KEPT", 10)
    made = Whens(lambda name, arguments: [{"job_id": one, "when": TURN} for one in arguments["job_ids"]])
    for first in range(0, 50, 5):

        async def has_come(first=first) -> bool:
            return made.of(range(first, first + 5))[first] is not None

        await until(has_come)
        assert len(made._known) <= 10
