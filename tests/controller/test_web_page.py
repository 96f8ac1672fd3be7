"""The page of `gandiva web` in Chromium: 50,000 jobs, hostile names, keys, offline and back."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest

from gandiva_slurm.cli.web import lane, look, main
from gandiva_slurm.cli.web.api import Api
from gandiva_slurm.cli.web.login import SECRET_HEADER, Login
from gandiva_slurm.model.errors import PeerError
from tests import patience, skips, web_kit
from tests.ports import free_port

CHROMIUM = shutil.which("chromium")
SECRET = "0123456789abcdef"
JOBS = 50_000
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=skips.NO_CHROMIUM)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "--window-size=1400,1600", "about:blank"),
)


class Browser:
    """A page, spoken with by Chromium's DevTools protocol."""

    def __init__(self, link: aiohttp.ClientWebSocketResponse) -> None:
        self._link = link
        self._ids = itertools.count(1)
        #: what the page complained of: exceptions, and what its policy refused
        self.complaints: list[str] = []

    async def call(self, method: str, **arguments):
        """Call a method and return its result."""
        number = next(self._ids)
        await self._link.send_json({"id": number, "method": method, "params": arguments})
        async with asyncio.timeout(60):
            while True:
                told = json.loads((await self._link.receive()).data)
                if told.get("id") == number:
                    assert "error" not in told, told
                    return told["result"]
                self._note(told)

    def _note(self, told) -> None:
        if told.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["params"]))
        entry = told.get("params", {}).get("entry", {})
        if told.get("method") == "Log.entryAdded" and entry.get("source") != "network":
            self.complaints.append(entry["text"])

    async def value(self, script: str):
        """Return what a script comes to."""
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, script: str):
        """Wait until a script comes to something true, and return that."""
        async with asyncio.timeout(30 * patience.slowness()):
            while not (value := await self.value(script)):
                await asyncio.sleep(0.05)
        return value

    async def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


@pytest.fixture
async def site(monkeypatch):
    """The page over a made-up gandivactld, at a port of the loopback."""
    monkeypatch.setattr(look, "RESTS", 0)
    monkeypatch.setattr(lane, "RESTS", 0)
    told = web_kit.Told(JOBS)
    told.port = free_port()
    door = await main.opened(Api(told, Login("X-Remote-User", SECRET.encode())), f"127.0.0.1:{told.port}")
    yield told
    await door.cleanup()


@pytest.fixture
async def browser(tmp_path, site):
    """Chromium, with the headers that a proxy sets, at the page."""
    words = [CHROMIUM, f"--user-data-dir={tmp_path}/profile", *FLAGS]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(words, stderr=log, stdout=log, env={**os.environ, "HOME": str(tmp_path)})
    try:
        port = await _port_of(tmp_path / "profile/DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (page,) = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as link:
                made = Browser(link)
                heads = {"X-Remote-User": "ann", SECRET_HEADER: SECRET}
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await made.call(f"{domain}.enable")
                await made.call("Network.setExtraHTTPHeaders", headers=heads)
                await made.call("Page.navigate", url=f"http://127.0.0.1:{site.port}/")
                await made.until("document.querySelectorAll('#space .job').length > 5")
                yield made
    finally:
        process.terminate()
        process.wait(30)


async def _port_of(file: Path, process) -> int:
    async with asyncio.timeout(60 * patience.slowness()):
        while not (file.exists() and file.read_text().strip()):
            assert process.poll() is None, "chromium has ended"
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])


async def test_what_users_write_is_shown_and_never_run(browser, site):
    await browser.until("document.querySelectorAll('#shares tr').length === 50")
    await browser.value("document.querySelector('details').open = true, at('row-0').click()")
    await browser.until("document.querySelectorAll('#evidence li').length === 6")
    shown = await browser.value("document.body.textContent")
    for text in web_kit.HOSTILE[:5]:
        assert text in shown, text
    assert await browser.value("window.hacked") is None
    own = await browser.value(
        "[...document.querySelectorAll('script,img,style,iframe')].map((one) => one.src)"
    )
    assert own == [f"http://127.0.0.1:{site.port}/page.js"]
    assert browser.complaints == []


async def test_fifty_thousand_jobs_are_a_hundred_rows_and_keys_reach_the_last(browser, site):
    assert await browser.until("at('total').textContent") == f"{JOBS} jobs"
    await browser.value("at('grid').focus()")
    await browser.press("End")
    assert await browser.until(f"at('row-{JOBS - 1}')?.firstChild.textContent !== '...'")
    assert await browser.value(f"at('row-{JOBS - 1}').firstChild.textContent") == str(JOBS)
    assert await browser.value("document.querySelectorAll('#space .job').length") < 100
    told = "[at('grid').getAttribute('aria-rowcount'), at('grid').getAttribute('aria-activedescendant')]"
    assert await browser.value(told) == [str(JOBS + 1), f"row-{JOBS - 1}"]
    await browser.press("ArrowUp")
    await browser.press("Enter")
    await browser.until(f"at('story-title').textContent.startsWith('Job {JOBS - 1} of ')")
    await browser.press("Escape")
    assert await browser.value("at('story').hidden && document.activeElement.id") == "grid"
    await browser.value("at('user').value = 'user7', at('filter').requestSubmit()")
    assert await browser.until(f"at('total').textContent === '{JOBS // 50} jobs'")
    assert browser.complaints == []


async def test_gpus_are_drawn_with_those_who_hold_them(browser):
    label = "document.querySelector('#chart svg')?.getAttribute('aria-label')"
    assert (await browser.until(label)).startswith("6 of 12 GPUs are held")
    titles = "[...document.querySelectorAll('#chart title')].map((one) => one.textContent)"
    shown = await browser.until(titles)
    assert len(shown) == 6 and any(text.startswith("1 (<img") for text in shown)
    assert sum(text.startswith("held, ") for text in shown) == 3
    names = "[...document.querySelectorAll('button,input,select,[role=grid],section')].filter("
    names += "(one) => !(one.textContent || one.labels?.length || one.ariaLabel)).length"
    assert await browser.value(names) == 0, "everything has a name for a screen reader"


async def test_while_nothing_answers_the_last_is_shown_as_old_and_then_the_next(browser, site):
    await browser.until("at('state').textContent.startsWith('Seen by ann')")
    site.trouble = PeerError("gandivactld does not answer at ctl1:7321")
    text = await browser.until("at('trouble').textContent")
    assert "does not answer" in text and " s old; trying again" in text
    assert await browser.value("document.querySelectorAll('#space .job').length > 5"), "rows stay"
    assert await browser.value("document.querySelector('main').className") == "old"
    site.trouble = None
    await browser.until("at('trouble').textContent === ''")
    nothing = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await browser.call("Network.emulateNetworkConditions", offline=True, **nothing)
    await browser.until("at('trouble').textContent.startsWith('this browser is offline')")
    await browser.call("Network.emulateNetworkConditions", offline=False, **nothing)
    await browser.until("at('trouble').textContent === ''")
