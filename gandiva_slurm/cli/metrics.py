"""`gandiva metrics`: a process of its own that asks gandivactld and shows a Prometheus the answer.

However many scrape it, however often and slowly: gandivactld is asked once in `metrics.interval_s`, and they
are given what was made then. It needs no rights but to ask, and refuses to serve as root.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import click
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gandiva_slurm import logs
from gandiva_slurm.cli.asking import in_thread
from gandiva_slurm.cli.client import query
from gandiva_slurm.cli.families import page
from gandiva_slurm.config import load_config
from gandiva_slurm.model.errors import ConfigError, GandivaError, PeerError
from gandiva_slurm.wire.door import Guest, open_door, raise_descriptor_limit

PATH = "/metrics"
#: How long gandivactld may take for an answer, all in all, until it counts as down.
ANSWER_S = 5.0
#: How long a scraper may take to read the page.
READ_S = 10.0

log = logging.getLogger(__name__)

Ask = Callable[[], dict[str, Any]]


class Page:
    """What is shown, and how it is made anew."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._asked: asyncio.Future[dict[str, Any]] | None = None
        self._trouble = ""
        self.text = page(None, _own(False, 0.0))

    async def refresh(self) -> None:
        """Ask, within the deadline; while a question hangs no other is put, and a late answer is dropped."""
        begun_s = time.monotonic()
        if self._asked is not None and not self._asked.done():
            self._fail("gandivactld has not answered the last question yet", 0.0)
            return
        asked = self._asked = asyncio.wrap_future(in_thread(self._ask))
        asked.add_done_callback(lambda each: each.cancelled() or each.exception())
        await asyncio.wait([asked], timeout=ANSWER_S)
        took_s = time.monotonic() - begun_s
        if not asked.done():
            self._fail(f"gandivactld has not answered within {ANSWER_S:g} s", took_s)
            return
        try:
            self.text = page(asked.result(), _own(True, took_s))
        except (GandivaError, AttributeError, KeyError, TypeError, ValueError) as err:
            told = str(err) if isinstance(err, GandivaError) else f"its answer cannot be read: {err!r}"
            self._fail(told, took_s)
            return
        if self._trouble:
            log.info("gandivactld answers again")
        self._trouble = ""

    def _fail(self, why: str, took_s: float) -> None:
        if why != self._trouble:
            log.warning("%s", why)
        self._trouble = why
        self.text = page(None, _own(False, took_s))

    async def keep_fresh(self, interval_s: float) -> None:
        """Ask for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(interval_s)

    async def show(self, request: web.BaseRequest, guest: Guest) -> web.StreamResponse:
        """Answer a scrape; one that does not read is left."""
        asyncio.get_running_loop().call_later(READ_S, guest.transport.abort)
        response = web.Response(body=self.text, headers={"Content-Type": CONTENT_TYPE_LATEST})
        response.force_close()
        return response


def _own(is_up: bool, took_s: float) -> dict[str, float]:
    return {
        "gandiva_up": float(is_up),
        "gandiva_answer_seconds": took_s,
        "gandiva_asked_time_seconds": time.time(),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--once", is_flag=True, help="Print the page and exit (for a textfile collector).")
@click.pass_obj
def metrics(config: str | None, once: bool) -> None:
    """Serve figures to a Prometheus at `metrics.listen` of gandiva.yaml (docs/metrics.md)."""
    settings = load_config(config).metrics
    arguments = {"users": settings.users}
    if once:
        begun_s = time.monotonic()
        told = query(config, "figures", arguments)
        click.echo(page(told, _own(True, time.monotonic() - begun_s)), nl=False)
        return
    if not settings.listen:
        raise ConfigError("metrics.listen is empty: name host:port in gandiva.yaml, or use --once")
    if os.geteuid() == 0:
        raise ConfigError("started as root; it needs no rights: run it as another user (setpriv, su, User=)")
    logs.set_up()
    raise_descriptor_limit()
    host, _, port = settings.listen.rpartition(":")
    ask = Page(lambda: dict(query(config, "figures", arguments)))
    asyncio.run(_serve(ask, host, int(port), settings.interval_s))


async def _serve(shown: Page, host: str, port: int, interval_s: float) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    door = await open_door({PATH: shown.show}, host, port, "GET")
    asking = loop.create_task(shown.keep_fresh(interval_s))
    asking.add_done_callback(lambda _: stop.set())
    log.info("serving http://%s:%d%s, gandivactld is asked every %g s", host, port, PATH, interval_s)
    await stop.wait()
    is_broken = asking.done()
    asking.cancel()
    await door.cleanup()
    if is_broken:
        raise PeerError(f"the asking has ended: {asking.exception()!r}")
