"""What Slurm's PrivateData hides is hidden by every answer, but not from its operators and coordinators."""

import asyncio
import json
import re
import time

import pytest

from gandiva_slurm.accounting import queries
from gandiva_slurm.controller import curtained, privacy
from gandiva_slurm.controller.api import Api
from gandiva_slurm.controller.privacy import Curtain, Rules, Viewer, read_rules
from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.slurm.accounts import Person
from gandiva_slurm.wire.messages import Hold
from tests.builders import a_job
from tests.controller.test_controller_api import hold_now, running

ROOT = 0
ONE, TWO, THREE = 1001, 1002, 1003
#: user2's job; not the digits of a time
OTHER = re.compile(r"user2|(?<![\d.])102(?!\d|\.\d)")


@pytest.fixture
async def ask(world, monkeypatch):
    """Ask as a user; user1's job runs, and so does user2's."""
    monkeypatch.setattr(privacy, "_name_of", lambda uid: f"user{uid - 1000}")
    await world.start()
    await running(world, "user1", 2)
    other = await running(world, "user2", 2)
    hold_now(world, other, 5)
    await world.cycles(3)
    world.slurm.private = "jobs,usage"
    return asker(world)


def asker(world):
    api = Api(world.controller, frozenset({ROOT}), lambda: read_rules(world.slurm))

    async def _ask(name, uid, /, **args):
        answer = json.loads(await api.answer(json.dumps({"ask": name, "args": args}).encode(), uid))
        return answer["data"] if answer["ok"] else answer["error"]

    return _ask


def users(rows):
    return {row["user"] for row in rows}


async def test_others_are_in_no_answer(world, ask):
    assert users(await ask("queue", ONE)) == {"user1"}
    assert users(await ask("acct", TWO, start_s=0)) == {"user2"}
    assert await ask("acct", THREE, start_s=0) == []
    assert users((await ask("share", ONE, start_s=0))["users"]) <= {"user1"}
    assert users((await ask("report", ONE, start_s=0))["rows"]) == {"user1"}
    assert (await ask("top", ONE, most=50))["counts"] == {"RUNNING": 1}
    assert users((await ask("top", TWO, most=50, users=["user1", "user2"]))["rows"]) == {"user2"}
    for name in ("queue", "top", "acct", "share", "report", "nodes", "ping", "why"):
        said = json.dumps(await ask(name, ONE, start_s=0, job_id=101, story=True, most=50))
        assert not OTHER.search(said), name


async def test_a_mate_is_told_to_those_who_may_see_it(world, ask):
    job, now_ns = world.slurm.jobs[101], time.time_ns()
    hold = Hold(0, 101, 0, "user1", (0, 1), now_ns - 10**9, now_ns, 0, 102)
    world.fleet[job.nodes[0]].open = [hold]
    await world.cycles(3)
    (mine,) = await ask("acct", ONE, start_s=0, mates=True)
    assert mine["gpu_packed_s"] > 0 and mine["packed_with"] == [] and "mates" not in mine
    for uid, mates in ((ONE, {None}), (ROOT, {None, 102})):
        rows = await ask("nodes", uid)
        assert {holder["packed_with"] for row in rows for holder in row["holders"]} == mates
    told = {row["job_id"]: row for row in await ask("acct", ROOT, start_s=0)}
    assert told[101]["packed_with"] == [102]


def test_a_number_that_several_had_is_told_to_those_who_may_see_all_of_them():
    viewer = Viewer("user1", hidden=frozenset({"jobs"}))
    row = {"user": "user1", "account": "lab", "packed_with": [7, 8, 9]}
    mates = [(7, [("user1", "lab")]), (8, [("user1", "lab"), ("user2", "lab")]), (9, [])]
    assert curtained.used([row | {"mates": mates}], viewer)[0]["packed_with"] == [7]
    assert curtained.used([row | {"mates": mates}], Viewer(""))[0]["packed_with"] == [7, 8, 9]
    chosen = row | {"packed_with": [7]}
    assert curtained.used([chosen], viewer) == [chosen], "by gandivactld, for a `gandiva web` without rights"


async def test_others_jobs_do_not_make_an_answer_too_long(ask, monkeypatch):
    monkeypatch.setattr(queries, "MOST_JOBS", 1)
    assert users(await ask("acct", ONE, start_s=0)) == {"user1"}
    assert await ask("acct", ONE, start_s=0, users=["user2"]) == []
    assert "more than 1 jobs" in await ask("acct", ROOT, start_s=0)


async def test_anothers_job_is_as_one_that_is_not_there(ask):
    there, not_there = await ask("why", ONE, job_id=102), await ask("why", ONE, job_id=999)
    assert there.replace("102", "999") == not_there
    assert (await ask("why", TWO, job_id=102))["job_id"] == 102


async def test_that_a_gpu_is_held_is_told(world, ask):
    rows = await ask("nodes", ONE)
    whole = await ask("nodes", ROOT)
    states = [[holder["state"] for holder in row["holders"]] for row in rows]
    assert states == [[holder["state"] for holder in row["holders"]] for row in whole]
    assert {item["job_id"] for row in rows for item in row["residents"]} == {101}
    assert {item["job_id"] for row in whole for item in row["residents"]} == {101, 102}


@pytest.mark.parametrize(
    "person",
    [Person("user3", is_operator=True), Person("user3", coordinates=frozenset({"lab"}))],
    ids=["operator", "coordinator"],
)
async def test_operators_and_coordinators_see_them(world, ask, person):
    world.slurm.known_people = (person,)
    assert users(await ask("queue", THREE)) == {"user1", "user2"}
    assert users(await ask("acct", THREE, start_s=0)) == {"user1", "user2"}
    assert (await ask("why", THREE, job_id=101))["job_id"] == 101


async def test_a_coordinator_of_another_account_does_not(world, ask):
    world.slurm.known_people = (Person("user3", coordinates=frozenset({"other"})),)
    assert await ask("queue", THREE) == []


async def test_private_nodes_are_refused(world, ask):
    world.slurm.private = "nodes"
    assert "PrivateData" in await ask("nodes", ONE)
    assert len(await ask("nodes", ROOT)) == len(world.slurm.nodes)
    assert users(await ask("queue", ONE)) == {"user1", "user2"}


async def test_until_slurm_has_said_what_is_private_everything_is(world, ask, monkeypatch):
    monkeypatch.setattr(privacy, "AGAIN_S", 0)
    world.slurm.private = "none"
    world.slurm.is_down = True
    assert users(await ask("queue", ONE)) == {"user1"}
    world.slurm.is_down = False
    assert users(await ask("queue", ONE)) == {"user1", "user2"}
    world.slurm.is_down = True
    assert users(await ask("queue", ONE)) == {"user1", "user2"}


async def test_a_slurm_that_hangs_keeps_a_question_for_a_moment(monkeypatch):
    monkeypatch.setattr(privacy, "FIRST_S", 0.01)
    asked = []

    async def hang():
        asked.append(1)
        await asyncio.Event().wait()

    rules = privacy.Privacy(hang, frozenset({ROOT}))
    for _ in range(3):
        assert not (await rules.viewer(ONE)).sees_every("jobs")
    assert (await rules.viewer(ROOT)).sees_all and len(asked) == 1


async def test_without_slurmdbd_root_alone_sees_everything():
    class Slurm:
        async def slurm_config(self):
            return {"PrivateData": "accounts,Jobs,users"}

        async def people(self):
            raise SlurmUnreachable("sacctmgr: error: Problem talking to the database")

    assert await read_rules(Slurm()) == Rules(frozenset({"jobs"}))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("packed with job 7, on trial", "packed with another job, on trial"),
        ("job 71_3 needs its place; job 5 waits", "another job needs its place; job 5 waits"),
        ("ann held 40 % of late, ann-2 none", "another user held 40 % of late, ann-2 none"),
        ("GPU 7 of n7", "GPU 7 of n7"),
        ("jobs (5, 7) are packed, jobs 5 and 5 not", "other jobs are packed, jobs 5 and 5 not"),
    ],
)
def test_sentences_lose_what_is_hidden_and_nothing_else(said, shown):
    assert Curtain({5}.__contains__, lambda: ["ann"]).over(said) == shown
    assert Curtain().over(said) == said


def test_names_are_hidden_but_for_those_whose_jobs_are_seen_and_asked_for_where_they_are_needed():
    told = ((1, "ann", "lab"), (2, "bob", "lab"), (3, "eve", "other"))
    jobs = {number: a_job(number, user, account=account) for number, user, account in told}
    asked = []

    def users():
        asked.append(1)
        return ["ann", "bob", "eve", ""]

    said = "ann, bob and eve: job 1, job 2, job 3"
    for accounts, shown in (
        ((), "ann, another user and another user: job 1, another job, another job"),
        (("lab",), "ann, bob and another user: job 1, job 2, another job"),
    ):
        viewer = Viewer("ann", accounts=frozenset(accounts), hidden=frozenset({"jobs"}))
        made = privacy.curtain(viewer, jobs.get, jobs.values, users)
        assert made.shows(1) and not made.shows(4) and not asked, "a job's number needs no names"
        assert made.over(said) == shown and made.over(said) == shown and len(asked) == 1
        asked.clear()
    everything = privacy.curtain(Viewer("ann"), jobs.get, jobs.values, users)
    assert everything.is_open and everything.over(said) == said and not asked


def test_several_accounts_are_seen_by_those_who_coordinate_all():
    viewer = Viewer("ann", accounts=frozenset({"a", "b"}), hidden=frozenset({"usage"}))
    assert viewer.sees("usage", "bob", ["a", "b"])
    assert not viewer.sees("usage", "bob", ["a", "c"]) and not viewer.sees("usage", "bob", [])
