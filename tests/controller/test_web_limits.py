"""`gandiva web`: what is asked of it wrongly, too often, too slowly, or while gandivactld is away."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gandiva_slurm.cli.web import lane, look, main
from gandiva_slurm.cli.web.lane import Lane
from gandiva_slurm.cli.web.look import Look, Looks
from gandiva_slurm.cli.web.refusal import Refused
from gandiva_slurm.model.errors import GandivaError, PeerError
from tests.controller.test_web import SECRET, SECRET_HEADER, site  # noqa: F401 - a fixture
from tests.patience import slowness

WHO = f"X-Remote-User: user1\r\n{SECRET_HEADER}: {SECRET}\r\n".encode()
TOLD = {"queue": [], "nodes": [], "ping": {}, "private": {"hidden": [], "people": [], "users": []}}


WRONG = (
    ("jobs?limit=0", 400, "invalid limit '0'; allowed: 1 to 1000"),
    ("jobs?limit=1e3", 400, "invalid limit"),
    ("jobs?offset=-1", 400, "invalid offset"),
    ("jobs?offset=%D9%A3", 400, "invalid offset"),
    ("jobs?offset=99999999999999999999", 400, "invalid offset"),
    ("jobs?state=asleep", 400, "invalid state 'asleep'; allowed:"),
    ("jobs?job=abc", 400, "invalid job id 'abc'"),
    ("jobs?color=red", 400, "unknown parameter 'color'; allowed here: user, state"),
    ("jobs?user=a&user=b", 400, "parameter user is there twice"),
    ("jobs/abc", 400, "invalid job id"),
    ("jobs/101?story=1", 400, "allowed here: none"),
    ("jobs/999", 404, "Gandiva has no job 999 now"),
    ("jobs/..%2e", 400, "invalid job id"),
    ("acct?start=tomorrow", 400, "ends before it starts"),
    ("acct?start=neverday", 400, "invalid time 'neverday'"),
    ("acct?state=<b>", 400, "invalid state"),
    ("shares?end=1e9", 400, "invalid time"),
    ("holds", 404, "nothing is served there; known below /api/v1/: health"),
)
NONSENSE = (
    (b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", b"405"),
    (b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
    (b"GET /api/v1/nodes/n1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
    (b"GET /api/v1/jobs/%2e%2e%2fnodes HTTP/1.1\r\nHost: x\r\n" + WHO + b"\r\n", b"404"),
    (b"GET /page.py HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
    (b"GET /api/v2/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
    (b"nonsense\r\n\r\n", b"400"),
    (b"GET /api/v1/jobs?job=" + b"1," * 8000 + b" HTTP/1.1\r\nHost: x\r\n" + WHO + b"\r\n", b"400"),
    (b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b"400"),
    (b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n" + WHO + b"Content-Length: 99999999\r\n\r\n", b"200"),
)


async def test_a_wrong_request_is_told_so_in_a_sentence(site):  # noqa: F811
    for path, status, said in WRONG:
        got, told = await site.get(f"/api/v1/{path}")
        assert (got, set(told)) == (status, {"version", "error"}) and said in told["error"], (path, told)
        assert "\n" not in told["error"]


async def test_nonsense_is_refused_and_a_body_is_not_read(site):  # noqa: F811
    for text, status in NONSENSE:
        assert (await site.raw(text, 20)).split(b" ", 2)[1] == status, text[:60]


async def test_what_is_sent_lets_a_browser_take_nothing_from_elsewhere(site):  # noqa: F811
    for path, kind in (("/", b"text/html"), ("/page.js", b"text/javascript"), ("/page.css", b"text/css")):
        head = (await site.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(b"\r\n\r\n")[0]
        assert b" 200 " in head and kind in head and b"nosniff" in head
        assert b"default-src 'none'; script-src 'self'" in head and b"unsafe" not in head
    told = await site.raw(b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nOrigin: http://evil\r\n" + WHO + b"\r\n")
    assert b"no-store" in told and b"Access-Control" not in told


def test_the_page_makes_no_markup_of_what_it_is_told():
    folder = main.Path(main.__file__).parent
    script, page = (folder / "page.js").read_text(), (folder / "page.html").read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert word not in script
    assert "://" not in page and script.count("://") == 1, "nothing but the name of SVG"
    assert "style=" not in page and "onclick" not in page


async def test_two_hundred_at_once_are_one_question(site, monkeypatch):  # noqa: F811
    monkeypatch.setattr(look, "LEAST_S", 3600.0)
    for _ in range(3):
        told = await asyncio.gather(*(site.get("/api/v1/jobs", f"user{n}") for n in range(200)))
        assert {status for status, _ in told} == {200}
    assert site.asked.count("overview") == 1 and len(site.asked) <= 2, "and one of what is foretold"


async def test_those_who_ask_for_one_story_are_one_question(site, monkeypatch):  # noqa: F811
    monkeypatch.setattr(lane, "LEAST_S", 0.0)
    monkeypatch.setattr(lane, "KEPT_S", 3600.0)
    told = await asyncio.gather(*(site.get("/api/v1/jobs/101", f"user{n}") for n in range(50)))
    assert {status for status, _ in told} == {200} and site.asked.count("why") == 1


async def test_a_client_that_does_not_read_is_left(site, monkeypatch):  # noqa: F811
    monkeypatch.setattr(main, "READ_S", 0.2)
    await site.good("jobs")
    monkeypatch.setattr(site.api, "answer", _long)
    reader, writer = await asyncio.open_unix_connection(site.socket, limit=1024)
    writer.write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n" + WHO + b"\r\n")
    await reader.readexactly(100)
    writer.transport.pause_reading()
    async with asyncio.timeout(20 * slowness()):
        while site.door._guests:
            await asyncio.sleep(0.01)
    writer.close()


async def _long(request):
    return b"x" * (64 << 20)


async def test_while_gandivactld_is_away_that_is_told_with_the_age(site, monkeypatch):  # noqa: F811
    monkeypatch.setattr(look, "LEAST_S", 0.0)
    monkeypatch.setattr(look, "RESTS", 0)
    await site.good("jobs")

    def away(name, args):
        raise PeerError("gandivactld does not answer at ctl1:7321; jobs go on without it")

    site.answer = away
    async with asyncio.timeout(20 * slowness()):
        while (answer := await site.get("/api/v1/jobs"))[0] == 200:
            await asyncio.sleep(0.01)
    status, told = answer
    assert status == 503 and told["age_s"] >= 0 and "does not answer" in told["error"] and "jobs" not in told
    site.answer = site.ask
    async with asyncio.timeout(20 * slowness()):
        while (await site.get("/api/v1/jobs"))[0] != 200:
            await asyncio.sleep(0.01)


async def test_a_gandivactld_that_hangs_is_not_asked_again_meanwhile(monkeypatch):
    monkeypatch.setattr(look, "ANSWER_S", 0.05)
    release, asked = threading.Event(), []

    def hang():
        asked.append(1)
        release.wait(30)
        return TOLD

    looks = Looks(hang)
    for _ in range(5):
        with pytest.raises(Refused, match="has not answered within") as told:
            await looks.get()
        assert told.value.status == 503
    assert len(asked) == 1
    release.set()
    await asyncio.wait([looks._asking], timeout=10)
    assert isinstance(await looks.get(), Look)


async def test_trouble_of_long_ago_is_not_told_again():
    answers = iter([PeerError("it is away"), TOLD])

    def ask():
        told = next(answers)
        if isinstance(told, Exception):
            raise told
        return told

    looks = Looks(ask)
    with pytest.raises(Refused, match="it is away"):
        await looks.get()
    looks._due_s -= 3600
    assert isinstance(await looks.get(), Look)


@pytest.mark.parametrize("answer", [{}, {**TOLD, "queue": 3}, [], {**TOLD, "private": {}}])
async def test_an_answer_of_another_kind_is_none(answer):
    looks = Looks(lambda: answer)
    with pytest.raises(Refused, match="cannot be read"):
        await looks.get()


async def test_a_user_waits_for_few_questions_and_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(lane, "LEAST_S", 0.0)
    release, one = threading.Event(), Lane()
    waiting = [asyncio.create_task(one.get(n, "ann", lambda: release.wait(30))) for n in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(Refused) as told:
        await one.get("more", "ann", release.wait)
    assert told.value.status == 429
    waiting.append(asyncio.create_task(one.get("bob's", "bob", lambda: release.wait(30))))
    await asyncio.sleep(0)
    release.set()
    assert await asyncio.gather(*waiting) == [True] * 5
    assert not one._asking and not one._waiting


async def test_all_together_are_bounded_and_what_is_kept_is(monkeypatch):
    monkeypatch.setattr(lane, "LEAST_S", 0.0)
    monkeypatch.setattr(lane, "MOST_ROWS", 10)
    release, one = threading.Event(), Lane()
    waiting = [asyncio.create_task(one.get(n, f"u{n}", lambda: release.wait(30))) for n in range(32)]
    await asyncio.sleep(0)
    with pytest.raises(Refused) as told:
        await one.get("more", "ann", release.wait)
    assert told.value.status == 503
    release.set()
    await asyncio.gather(*waiting)
    assert len(one._kept) <= 10


async def test_an_error_is_kept_as_an_answer_is(monkeypatch):
    monkeypatch.setattr(lane, "LEAST_S", 0.0)
    asked, one = [], Lane()

    def fails():
        asked.append(1)
        raise GandivaError("no such job")

    for _ in range(3):
        with pytest.raises(GandivaError, match="no such job"):
            await one.get("x", "ann", fails)
    assert len(asked) == 1
