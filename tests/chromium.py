"""Chromium, spoken with by its DevTools protocol: for tests of the page, and for its pictures in docs/."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests import patience

CHROMIUM = shutil.which("chromium")
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
        async with asyncio.timeout(60 * patience.slowness()):
            while not (value := await self.value(script)):
                await asyncio.sleep(0.05)
        return value

    async def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


@asynccontextmanager
async def opened(folder: Path, url: str, heads: Mapping[str, str]) -> AsyncIterator[Browser]:
    """Chromium at a page, with the headers that a proxy sets; its files are in `folder`."""
    assert CHROMIUM is not None
    words = [CHROMIUM, f"--user-data-dir={folder}/profile", *FLAGS]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(words, stderr=log, stdout=log, env={**os.environ, "HOME": str(folder)})
    try:
        port = await _port_of(folder / "profile/DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (page,) = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as link:
                made = Browser(link)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await made.call(f"{domain}.enable")
                await made.call("Network.setExtraHTTPHeaders", headers=dict(heads))
                await made.call("Page.navigate", url=url)
                yield made
    finally:
        process.terminate()
        process.wait(30)


async def _port_of(file: Path, process: subprocess.Popen[bytes]) -> int:
    async with asyncio.timeout(60 * patience.slowness()):
        while not (file.exists() and file.read_text().strip()):
            assert process.poll() is None, "chromium has ended"
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
