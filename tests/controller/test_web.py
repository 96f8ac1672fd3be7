"""`gandiva web`: its API tells what the command line is told, and to whom it may."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest

from gandiva_slurm.cli.web import answers, main
from gandiva_slurm.cli.web.api import Api
from gandiva_slurm.cli.web.login import SECRET_HEADER, Login
from gandiva_slurm.controller import api as controller_api
from gandiva_slurm.controller import privacy
from gandiva_slurm.controller.privacy import read_rules
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.slurm.accounts import Person
from tests import patience
from tests.controller.test_controller_api import hold_now, running

ROOT = 0
SECRET = "0123456789abcdef-secret"
SHAPES = {path: answer for path, _, answer, _ in answers.PATHS}
#: user2's job; not the digits of a time
OTHER = re.compile(r"user2|(?<![\d.])102(?!\d|\.\d)")


class Site:
    """A gandiva web in this process, and the gandivactld that it asks; `asked` counts questions by name."""

    def __init__(self, world, socket: str) -> None:
        self.loop = asyncio.get_running_loop()
        operators = frozenset({ROOT})
        self.controller = controller_api.Api(world.controller, operators, lambda: read_rules(world.slurm))
        self.asked: list[str] = []
        self.uid = ROOT
        self.answer = self.ask
        self.socket = socket
        self.api = Api(lambda name, args: self.answer(name, args), Login("X-Remote-User", SECRET.encode()))

    def ask(self, name, args, uid=None):
        """Ask as the process does: from a thread."""
        self.asked.append(name)
        question = json.dumps({"ask": name, "args": args}).encode()
        uid = self.uid if uid is None else uid
        done = asyncio.run_coroutine_threadsafe(self.controller.answer(question, uid), self.loop)
        told = json.loads(done.result(30))
        if told["ok"]:
            return told["data"]
        raise (UsageError if told["exit"] == 2 else GandivaError)(told["error"])

    async def raw(self, text: bytes, size: int = -1) -> bytes:
        """Return what is told, or `size` bytes of it."""
        reader, writer = await asyncio.open_unix_connection(self.socket)
        writer.write(text)
        told = await asyncio.wait_for(reader.read(size), 60 * patience.slowness())
        writer.close()
        return told

    async def get(self, path, user="user1", *heads: str):
        """Return (status, what is told)."""
        heads = heads or (f"X-Remote-User: {user}", f"{SECRET_HEADER}: {SECRET}")
        told = await self.raw(
            "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *heads, "", ""]).encode()
        )
        head, _, body = told.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body) if b"application/json" in head else body

    async def good(self, path, user="user1"):
        """What is told; one that is too busy for it on a slow machine is asked again, as it says."""
        end_s = patience.deadline(30)
        while True:
            status, told = await self.get(f"/api/v1/{path}", user)
            is_busy = status == 503 and "ask again" in told["error"]
            if not is_busy or time.monotonic() > end_s:
                break
            await asyncio.sleep(0.1)
        assert status == 200, told
        name = path.partition("?")[0]
        SHAPES["jobs/{job_id}" if name.startswith("jobs/") else name].model_validate(told)
        return told


@pytest.fixture
async def site(world, tmp_path, monkeypatch):
    """user1's job 101 runs, and so does user2's 102."""
    monkeypatch.setattr(privacy, "_name_of", lambda uid: f"user{uid - 1000}")
    await world.start()
    hold_now(world, await running(world, "user1", 2), 5)
    await running(world, "user2", 2)
    await world.cycles(3)
    made = Site(world, str(tmp_path / "web.sock"))
    made.door = await main.opened(made.api, made.socket)
    yield made
    await made.door.cleanup()


def users(told, name="jobs"):
    return {row["user"] for row in told[name]}


async def test_it_tells_what_the_command_line_is_told(site):
    told = await site.good("jobs")
    rows = await asyncio.to_thread(site.ask, "queue", {})
    still = ("state", "reason", "detail", "places", "user", "gpus", "name")
    wanted = [[row[key] for key in still] for row in rows]
    assert [[row[key] for key in still] for row in told["jobs"]] == wanted
    assert (told["total"], told["offset"], told["version"]) == (2, 0, 1)
    nodes = await asyncio.to_thread(site.ask, "nodes", {})
    shown = (await site.good("nodes"))["nodes"]
    assert [row["holders"] for row in shown] == [row["holders"] for row in nodes]
    why = await asyncio.to_thread(site.ask, "why", {"job_id": 101, "story": True})
    story = await site.good("jobs/101")
    assert (story["code"], story["sentence"], story["story"]) == (why["code"], why["sentence"], why["story"])
    assert story["job"]["job_id"] == 101
    share = await asyncio.to_thread(site.ask, "share", {})
    assert users(await site.good("shares"), "users") == users(share, "users")
    acct = await asyncio.to_thread(site.ask, "acct", {})
    assert [row["job_id"] for row in (await site.good("acct"))["jobs"]] == [row["job_id"] for row in acct]
    health = await site.good("health")
    assert (health["user"], health["cluster"], health["slurm_error"]) == ("user1", "mini", "")


async def test_rows_are_paged_and_filtered(site):
    assert [row["job_id"] for row in (await site.good("jobs?limit=1&offset=1"))["jobs"]] == [102]
    assert users(await site.good("jobs?user=user2")) == {"user2"}
    assert (await site.good("jobs?state=HELD"))["total"] == 0
    assert (await site.good("jobs?state=all&job=101,102"))["total"] == 2
    assert [row["node"] for row in (await site.good("nodes?offset=1"))["nodes"]] == ["n2"]
    assert users(await site.good("acct?job=101")) == {"user1"}
    assert users(await site.good("acct?user=user2&start=now-1hour&limit=5")) == {"user2"}
    assert users(await site.good("shares?user=user1"), "users") <= {"user1"}


async def test_the_description_is_that_of_the_file(site):
    text = (main.Path(__file__).parents[2] / "docs/openapi.json").read_text()
    assert json.loads(text) == answers.openapi(), "docs/web.md says how it is written anew"
    assert (await site.get("/api/v1/openapi.json"))[1] == json.loads(text)


# who asks


async def test_a_forged_header_is_refused_and_asks_nothing(site):
    user, secret = "X-Remote-User: user2", f"{SECRET_HEADER}: {SECRET}"
    for heads in (
        ("X-A: b",),
        (user,),
        (secret,),
        (user, f"{SECRET_HEADER}: wrong"),
        (user, f"{SECRET_HEADER}: "),
        (user, f"{secret}x"),
        (user, secret, f"{SECRET_HEADER}: wrong"),
        (user, "X-Remote-User: user1", secret),
        ("X-Remote-User: user1, user2", secret),
        ("X-Remote-User: ", secret),
        ("X_Remote_User: user2", secret),
        ("Remote-User: user2", secret),
        ("X-Remote-User: ../../user2", secret),
        ("X-Remote-User: us\xe9r", secret),
    ):
        for path in ("jobs", "jobs/101", "nodes", "shares", "acct", "health"):
            status, told = await site.get(f"/api/v1/{path}", "", *heads)
            assert status == 401 and set(told) == {"version", "error"} and "user2" not in told["error"], heads
    assert site.asked == []


async def test_without_a_secret_the_socket_alone_says_that_it_is_the_proxy(site):
    site.api.login = Login("X-Login", None)
    assert (await site.get("/api/v1/health", "", "X-Login: ann"))[1]["user"] == "ann"
    assert (await site.get("/api/v1/health", "", "X-Remote-User: ann"))[0] == 401
    assert main.os.stat(site.socket).st_mode & 0o777 == 0o660


PATHS = (
    "jobs",
    "jobs?state=all&user=user2",
    "jobs/101",
    "nodes",
    "shares",
    "acct",
    "acct?user=user2",
    "health",
)


async def test_what_slurm_hides_is_in_no_answer(world, site):
    world.slurm.private = "jobs,usage"
    for path in PATHS:
        told = json.dumps(await site.good(path)).replace("limit", "")
        assert not OTHER.search(told), (path, told)
    assert users(await site.good("jobs")) == {"user1"}
    assert users(await site.good("acct", "user2")) == {"user2"}
    assert (await site.good("jobs", "user3"))["total"] == 0
    there, not_there = await site.get("/api/v1/jobs/102"), await site.get("/api/v1/jobs/999")
    assert there[0] == not_there[0] == 404
    assert there[1]["error"].replace("102", "999") == not_there[1]["error"]
    nodes = (await site.good("nodes", "user3"))["nodes"]
    assert any(holder["state"] for row in nodes for holder in row["holders"]), "that a GPU is held is told"


async def test_one_users_answer_is_not_anothers(world, site):
    world.slurm.private = "jobs,usage"
    paths = [path for path in PATHS if path != "jobs/101"]
    told = await asyncio.gather(*(site.good(path, f"user{1 + n % 3}") for n in range(30) for path in paths))
    for number, one in enumerate(told):
        user = f"user{1 + number // len(paths) % 3}"
        rows = one.get("jobs") or one.get("users") or []
        assert {row["user"] for row in rows} <= {user}


@pytest.mark.parametrize(
    "person",
    [Person("user3", is_operator=True), Person("user3", coordinates=frozenset({"lab"}))],
    ids=["operator", "coordinator"],
)
async def test_operators_and_coordinators_see_theirs(world, site, person):
    world.slurm.private, world.slurm.known_people = "jobs,usage", (person,)
    assert users(await site.good("jobs", "user3")) == {"user1", "user2"}
    assert users(await site.good("acct", "user3")) == {"user1", "user2"}
    assert (await site.good("jobs/102", "user3"))["job_id"] == 102


async def test_a_coordinator_of_one_account_sees_no_other(world, site):
    world.slurm.private = "jobs,usage"
    world.slurm.known_people = (Person("user3", coordinates=frozenset({"other"})),)
    assert (await site.good("jobs", "user3"))["total"] == 0
    assert (await site.good("acct", "user3"))["total"] == 0
    assert (await site.good("shares", "user3"))["users"] == []


async def test_hidden_nodes_are_refused(world, site):
    world.slurm.private = "nodes"
    status, told = await site.get("/api/v1/nodes")
    assert status == 403 and "PrivateData" in told["error"]
    assert users(await site.good("jobs")) == {"user1", "user2"}


async def test_one_that_is_no_operator_gets_nothing_of_what_is_hidden(world, site):
    world.slurm.private, site.uid = "jobs", 1003
    status, told = await site.get("/api/v1/jobs")
    assert status == 503 and "adminlevel=operator" in told["error"]


async def test_until_slurm_has_said_what_is_private_everything_is(world, site):
    world.slurm.is_down = True
    assert users(await site.good("jobs")) == {"user1"}
    assert (await site.get("/api/v1/nodes"))[0] == 403
