"""`gandiva metrics`: figures that are those of the other answers, and a page that costs no scrape."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gandiva_slurm.cli import metrics
from gandiva_slurm.controller import api
from gandiva_slurm.controller import figures as figures_room
from gandiva_slurm.controller.figures import OTHERS, figures
from gandiva_slurm.engine.state.idle import Idle
from gandiva_slurm.model import job as states
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.wire.door import open_door
from tests import patience
from tests.controller.process import until
from tests.controller.test_controller_api import data, hold_now, running
from tests.controller.test_privacy import ONE, ROOT, asker
from tests.crowd import silent
from tests.ports import free_port
from tests.unit.test_monitoring import FIGURES

#: What a scrape may take beside a crowd, on a quiet machine.
SOON_S = 2.0
#: The program refuses to serve as root, as whom tests run; it uses no right of root's.
AS_USER = "import os, sys; os.geteuid = lambda: 1000; "
AS_USER += "from gandiva_slurm.cli.main import main; main(sys.argv[1:])"


@pytest.fixture
async def ask(world):
    await world.start()
    ask = asker(world)

    async def _ask(name, uid=ROOT, /, **args):
        return {"ok": True, "version": 1, "data": await ask(name, uid, **args)}

    return _ask


async def test_figures_agree_with_queue_nodes_and_share(world, ask):
    first = await running(world, "user1", 2)
    await running(world, "user2", 2)
    hold_now(world, first, 5)
    for node in list(world.slurm.nodes.values()):
        closed = vars(node) | {"state": frozenset({"IDLE", "DRAIN"})}
        world.slurm.nodes[node.name] = type(node)(**closed)
    waiting = world.slurm.submit("user2", 4)
    await world.until(lambda: world.state(waiting) == "HELD")
    await world.cycles(3)
    told, rows = await data(ask, "figures", users=True), await data(ask, "queue")
    alive = [row for row in rows if row["state"] != states.ENDED]
    assert sum(told["jobs"].values()) == len(alive) == 3
    assert told["jobs"]["HELD"] == 1
    assert told["waiting"] == {row["reason"]: 1 for row in alive if row["state"] == "HELD"}
    assert told["wanted_gpus"] == sum(row["gpus"] for row in alive) == 8
    nodes = {row["node"]: row for row in await data(ask, "nodes")}
    for row in told["nodes"]:
        other = nodes[row["node"]]
        held = {holder["gpu"] for holder in other["holders"] if holder["job_id"]}
        want = other["type"], other["state"], other["gpus"], len(held), len(other["residents"])
        assert (row["type"], row["state"], row["gpus"], row["held_gpus"], row["jobs"]) == want
    users = {row["user"]: row for row in told["users"]}
    assert (users["user1"]["held_gpus"], users["user2"]["wanted_gpus"], users["user2"]["jobs"]) == (2, 6, 2)
    shares = {row["user"]: row["norm_shares"] for row in (await data(ask, "share", start_s=0))["users"]}
    assert shares and all(users[user]["norm_share"] == share for user, share in shares.items())
    assert (await data(ask, "figures"))["users"] == []


async def test_whoever_asks_how_often_jobs_are_counted_once_a_second(world, ask, monkeypatch):
    await running(world)
    counted, count = [], api.figures
    monkeypatch.setattr(api, "figures", lambda *args: counted.append(args) or count(*args))
    monkeypatch.setattr(api, "FIGURES_S", 3600)
    for _ in range(20):
        assert (await data(ask, "figures"))["cycles"] > 0
    assert len(counted) == 1


async def test_a_gpu_that_two_share_is_held_once_and_by_halves(world, ask):
    first = await running(world, "user1", 1)
    home = world.fleet[world.slurm.jobs[first].nodes[0]]
    hold_now(world, first, 5, gpus=(0,))
    (hold,) = home.open
    home.open = [dataclasses.replace(hold, shared_with=9), dataclasses.replace(hold, job_id=9, user="user2")]
    await world.cycles(3)
    told = await data(ask, "figures", users=True)
    assert [row["held_gpus"] for row in told["nodes"] if row["node"] == home.name] == [1]
    assert {row["user"]: row["held_gpus"] for row in told["users"]}["user1"] == 0.5


@pytest.mark.parametrize("private", ["jobs", "usage", "nodes"])
async def test_figures_are_operators_where_slurm_hides_something(world, ask, private):
    world.slurm.private = private
    told = await data(ask, "figures", ONE)
    assert isinstance(told, str) and "PrivateData" in told and "adminlevel=operator" in told
    assert "jobs" in await data(ask, "figures", ROOT)


def test_series_do_not_grow_with_jobs_nor_with_users_beyond_a_bound(monkeypatch):
    monkeypatch.setattr(figures_room, "gpus_of", lambda record: 1)
    jobs = {
        number: SimpleNamespace(
            state=states.RUNNING,
            reason=SimpleNamespace(code="Running"),
            job=SimpleNamespace(user=f"u{number % 5000}"),
            idle=Idle(told_ns=number % 3, parked_ns=number % 2),
        )
        for number in range(20_000)
    }
    state = SimpleNamespace(packs=(), aside={})
    engine = SimpleNamespace(jobs=jobs, nodes={}, state=state, tickets=dict)
    world = SimpleNamespace(engine=engine, links={}, reports={}, troubles=(), open_holds=list)
    told = figures(world, True)
    assert len(told["users"]) == figures_room.MOST_USERS + 1
    assert told["idle"] == {"told": 6666, "behind": 6667}, "of each six, two are told of and two are behind"
    assert told["users"][-1] == figures_room._no_user(OTHERS) | {
        "jobs": 20_000 - 4 * figures_room.MOST_USERS,
        "wanted_gpus": 20_000 - 4 * figures_room.MOST_USERS,
    }
    page = metrics.page(FIGURES | told, dict.fromkeys(metrics._own(True, 0), 0.0)).decode()
    assert len(page.splitlines()) < 5 * (figures_room.MOST_USERS + 1) + 200


# the page


class Asked:
    """Answers questions, counts them; `answer` may be an error or a function."""

    def __init__(self):
        self.count = 0
        self.answer = FIGURES

    def __call__(self):
        self.count += 1
        if callable(self.answer):
            return self.answer()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def value(text: bytes, name: str) -> float | None:
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name == name and not sample.labels:
                return sample.value
    return None


@pytest.fixture
async def served():
    """A page, what it asks, and its port."""
    asked = Asked()
    shown, port = metrics.Page(asked), free_port()
    asked.door = door = await open_door({"/metrics": shown.show}, "127.0.0.1", port, "GET")
    yield shown, asked, port
    await door.cleanup()


async def say(port: int, text: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    told = await reader.read()
    writer.close()
    return told


async def test_however_often_it_is_scraped_gandivactld_is_asked_once(served):
    shown, asked, port = served
    await shown.refresh()
    for _ in range(10):
        told = await asyncio.gather(*(say(port) for _ in range(100)))
        assert all(b"gandiva_up 1.0" in one and b"200 OK" in one for one in told)
    assert asked.count == 1


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x00nonsense\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b"400"),
    ],
)
async def test_what_is_not_there_and_nonsense_are_refused(served, text, status):
    told = await asyncio.wait_for(say(served[2], text), 10 * patience.slowness())
    assert told.split(b" ", 2)[1] == status and b"gandiva_up" not in told


async def test_one_that_does_not_read_is_left(served, monkeypatch):
    shown, asked, port = served
    monkeypatch.setattr(metrics, "READ_S", 0.2)
    shown.text = b"# " + b"x" * (64 << 20) + b"\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readexactly(100)
    writer.transport.pause_reading()
    shown.text = b"gandiva_up 1.0\n"
    assert b"gandiva_up" in await say(port)
    async with asyncio.timeout(20 * patience.slowness()):
        while asked.door._guests:
            await asyncio.sleep(0.01)
    writer.close()


async def test_a_question_that_hangs_is_bounded_and_no_other_is_put(served, monkeypatch):
    shown, asked, _ = served
    monkeypatch.setattr(metrics, "ANSWER_S", 0.05)
    release = threading.Event()
    asked.answer = lambda: release.wait(30) and FIGURES
    await asyncio.wait_for(shown.refresh(), 5 * patience.slowness())
    assert value(shown.text, "gandiva_up") == 0 and value(shown.text, "gandiva_slurm_up") is None
    await shown.refresh()
    assert asked.count == 1
    release.set()
    await asyncio.wait([shown._asked], timeout=10)
    assert value(shown.text, "gandiva_up") == 0, "what came too late is not shown"
    monkeypatch.setattr(metrics, "ANSWER_S", 30)
    await shown.refresh()
    assert asked.count == 2 and value(shown.text, "gandiva_up") == 1


@pytest.mark.parametrize("answer", [PeerError("it is not there"), {}, {"nodes": 3}, FIGURES | {"jobs": [1]}])
async def test_a_wrong_answer_is_no_answer(served, answer):
    shown, asked, _ = served
    await shown.refresh()
    asked.answer = answer
    await shown.refresh()
    assert value(shown.text, "gandiva_up") == 0
    asked.answer = FIGURES
    await shown.refresh()
    assert value(shown.text, "gandiva_up") == 1


# the process


@pytest.fixture
def exporter(conf, start, munged, tmp_path):
    """A gandivactld, the port of a `gandiva metrics` beside it, and a function that starts that."""
    daemon = start(conf(munged))
    daemon.ask()
    port, begun = free_port(), []
    with open(daemon.conf, "a") as file:
        file.write(f"metrics: {{listen: '127.0.0.1:{port}', interval_s: 1}}\n")

    def run():
        words = [sys.executable, "-c", AS_USER, "-f", daemon.conf, "metrics"]
        with open(tmp_path / "metrics.log", "ab") as log:
            begun.append(subprocess.Popen(words, stderr=log, stdout=log))
        return begun[-1]

    yield daemon, port, run
    for process in begun:
        process.kill()
        process.wait()


def scraped(port: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def test_it_tells_of_a_gandivactld_that_dies_and_of_one_that_comes_again(exporter, start):
    daemon, port, run = exporter
    process = run()
    up = lambda want: until(lambda: value(scraped(port), "gandiva_up") == want, lambda: scraped(port))  # noqa: E731
    up(1)
    assert value(scraped(port), "gandiva_slurm_up") == 0, "Slurm is not reachable here"
    daemon.ended(signal.SIGKILL)
    up(0)
    assert value(scraped(port), "gandiva_slurm_up") is None
    start(daemon.conf).ask()
    up(1)
    process.kill()
    process.wait()
    again = run()
    up(1)
    again.send_signal(signal.SIGTERM)
    assert again.wait(patience.slowness() * 10) == 0


def test_a_crowd_of_scrapers_does_not_reach_gandivactld(exporter):
    daemon, port, run = exporter
    run()
    until(lambda: value(scraped(port), "gandiva_up") == 1, lambda: scraped(port))
    with silent(port, 400, "127.0.0.2"):
        before_s = time.monotonic()
        for _ in range(200):
            assert scraped(port)
        assert daemon.ask("queue") == []
        assert time.monotonic() - before_s < 10 * SOON_S * patience.slowness()


def test_it_does_not_serve_as_root_nor_without_a_place(exporter, tmp_path):
    daemon, _, _ = exporter
    words = [sys.executable, "-m", "gandiva_slurm.cli.main"]
    code = "from gandiva_slurm.cli.main import main; import sys; main(sys.argv[1:])"
    words = [sys.executable, "-c", code, "-f", daemon.conf, "metrics"]
    if os.geteuid() == 0:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and "started as root" in done.stderr
    plain = tmp_path / "plain.yaml"
    with open(daemon.conf) as file:
        plain.write_text("".join(line for line in file if not line.startswith("metrics")))
    words[words.index(daemon.conf)] = str(plain)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "metrics.listen is empty" in done.stderr
    done = subprocess.run([*words, "--once"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and value(done.stdout, "gandiva_up") == 1
