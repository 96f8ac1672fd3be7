"""gandivactld with a job that causes an error in each cycle: it says so, and starts all others."""

from __future__ import annotations

import json
import logging

import pytest

from gandiva_slurm.cli.check import _daemons
from gandiva_slurm.controller import privacy
from gandiva_slurm.controller.api import Api
from gandiva_slurm.controller.privacy import read_rules
from tests.controller.fakes import World


def _api(world: World) -> Api:
    return Api(world.controller, frozenset({0}), lambda: read_rules(world.slurm))


async def ask(world: World, name: str, uid: int = 0, **args: object):
    question = json.dumps({"ask": name, "args": args}).encode()
    return json.loads(await _api(world).answer(question, uid))["data"]


async def test_one_jobs_error_stops_nobody_else(world, caplog):
    await world.start()
    first = world.slurm.submit("user1")
    await world.until(lambda: world.runs(first))
    bad = world.slurm.submit("user2", time_limit_s=None)
    late = [world.slurm.submit(user, gpus) for user, gpus in (("user3", 1), ("user4", 2), ("user1", 4))]
    await world.until(lambda: all(map(world.lives, late)), "the others' starts")
    assert world.slurm.jobs[bad].state == "PENDING" and world.slurm.calls_of(bad) == []
    row = await ask(world, "why", job_id=bad)
    assert row["code"] == "SetAside" and "TypeError" in row["sentence"] and "gandiva update" in row["next"]
    (told,) = (await ask(world, "ping"))["set_aside"]
    assert told.startswith(f"job {bad} is not scheduled") and "picture.py" in told
    await world.stop()
    await world.start()
    after = world.slurm.submit("user4")
    await world.until(lambda: world.lives(after), "a start after the restart")
    assert world.slurm.jobs[bad].state == "PENDING" and world.state(bad) == "HELD"
    lines = [line for line in caplog.records if line.levelno >= logging.ERROR]
    assert len(lines) == 1 and f"job {bad}: not scheduled" in lines[0].message
    world.slurm.change(bad, time_limit_s=3600)
    await world.until(lambda: world.lives(bad), "the mended job's start")


async def test_what_runs_goes_on_when_it_becomes_an_error(world):
    await world.start()
    bad, other = world.slurm.submit("user1"), world.slurm.submit("user2")
    await world.until(lambda: world.runs(bad) and world.runs(other))
    (node,) = world.slurm.jobs[bad].nodes
    world.slurm.change(bad, time_limit_s=None)
    await world.until(lambda: world.controller.engine.state.aside, "it set aside")
    late = world.slurm.submit("user3", 4)
    await world.until(lambda: world.lives(late), "another's start")
    await world.cycles(5)
    assert world.slurm.jobs[bad].state == "RUNNING" and (bad, 0) in world.fleet[node].planned()
    assert not world.fleet[node].plan.fence and {"hold", "requeue"}.isdisjoint(world.slurm.calls_of(bad))
    world.slurm.finish(bad)
    await world.until(lambda: world.state(bad) == "ENDED", "its end")


async def test_a_job_that_slurm_shows_unreadably_stays_as_it_was(world, monkeypatch):
    await world.start()
    bad = world.slurm.submit("user1")
    await world.until(lambda: world.runs(bad))
    whole = world.slurm.snapshot

    async def snapshot(with_associations):
        found = await whole(with_associations)
        jobs = tuple(job for job in found.jobs if job.job_id != bad)
        return type(found)(jobs, found.nodes, found.associations, {bad: "jobs[0].name is missing"})

    monkeypatch.setattr(world.slurm, "snapshot", snapshot)
    other = world.slurm.submit("user2")
    await world.until(lambda: world.runs(other))
    await world.cycles(3)
    assert world.runs(bad) and world.controller.status.unread
    assert "cannot be read" in (await ask(world, "ping"))["set_aside"][0]


async def test_what_is_private_stays_so_and_an_operators_word_is_heard(world, monkeypatch):
    monkeypatch.setattr(privacy, "_name_of", lambda uid: f"user{uid - 1000}")
    await world.start()
    bad = world.slurm.submit("user2", time_limit_s=None)
    await world.until(lambda: bad in world.controller.engine.state.aside, "it set aside")
    world.slurm.private = "jobs"
    assert (await ask(world, "ping", 1001))["set_aside"] == []
    assert len((await ask(world, "ping", 1002))["set_aside"]) == 1
    since_ns = world.controller.engine.state.aside[bad].since_ns
    priority = world.controller.engine.jobs[bad].priority
    await ask(world, "update", job_ids=[bad], priority=priority)
    await world.until(lambda: world.controller.engine.state.aside[bad].since_ns > since_ns, "another try")


def test_check_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    well = {"slurm_error": "", "state_error": "", "set_aside": ["job 7 is not scheduled"]}
    answers = {"ping": well, "nodes": []}
    monkeypatch.setattr("gandiva_slurm.cli.check.query", lambda config, name, args: answers[name])
    (finding,) = _daemons(None, {})
    assert "job 7 is not scheduled" in str(finding)
