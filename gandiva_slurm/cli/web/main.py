"""`gandiva web`: serves the API and the page to those whom a reverse proxy or a token of Slurm's names.

It has no rights but to ask, and refuses to serve as root; no scheduling waits for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import click
from aiohttp import web

from gandiva_slurm import logs
from gandiva_slurm.cli.client import query
from gandiva_slurm.cli.web.answers import openapi
from gandiva_slurm.cli.web.api import ROOT, Api, refused
from gandiva_slurm.cli.web.login import login_of
from gandiva_slurm.config import load_config
from gandiva_slurm.logs import Often
from gandiva_slurm.model.errors import ConfigError, GandivaError
from gandiva_slurm.sections import WebConfig
from gandiva_slurm.wire.door import Door, Guest, Route, open_door, open_socket_door, raise_descriptor_limit

#: How long an answer of gandivactld may come late and still be taken: those who wait are told meanwhile.
LATEST_S = 60.0
#: How long a browser, or its proxy, may take to read an answer.
READ_S = 10.0
#: The page's own files, by the path they are served at.
FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
#: Nothing comes from elsewhere, nothing written into the page runs, and no other site may frame or read it.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

log = logging.getLogger(__name__)
often = Often(log)


def routes(api: Api) -> dict[str, Route]:
    """Return what is served where."""
    folder = Path(__file__).parent
    files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in FILES.items()}
    files[f"{ROOT}openapi.json"] = json.dumps(openapi()).encode(), "application/json"

    async def file(request: web.BaseRequest, guest: Guest) -> web.StreamResponse:
        body, kind = files.get(request.path, (b"nothing is served there", "text/plain"))
        return _response(guest, 200 if request.path in files else 404, body, kind)

    async def answer(request: web.BaseRequest, guest: Guest) -> web.StreamResponse:
        guest.is_known = False
        try:
            status, body = 200, await api.answer(request)
        except GandivaError as err:
            status, body = refused(err)
        except Exception:
            often.error("500", "a request failed")
            status, body = refused(GandivaError("a fault in gandiva web; its log has the details"))
            status = 500
        guest.is_known = status != 401
        if status == 401:
            often.warning("401", f"a request from {request.remote or 'the socket'} is of nobody known")
        return _response(guest, status, body, "application/json")

    below = {ROOT: answer, f"{ROOT}jobs/": answer}
    return {"/": file, f"{ROOT}openapi.json": file, **below}


def _response(guest: Guest, status: int, body: bytes, kind: str) -> web.Response:
    """Make a response; a client that does not read it is left."""
    asyncio.get_running_loop().call_later(READ_S, guest.transport.abort)
    response = web.Response(body=body, status=status, content_type=kind, charset="utf-8", headers=HEADERS)
    response.force_close()
    return response


@click.command(name="web", context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_obj
def serve(config: str | None) -> None:
    """Serve the JSON API and the page at `web.listen` of gandiva.yaml (docs/web.md)."""
    settings = load_config(config).web
    if not settings.listen:
        raise ConfigError("web.listen is empty: name a socket's path, or a host:port, in gandiva.yaml")
    if os.geteuid() == 0:
        raise ConfigError("started as root; it needs no rights: run it as another user (setpriv, su, User=)")
    login = login_of(settings)
    logs.set_up()
    raise_descriptor_limit()

    def ask(name: str, arguments: dict[str, Any]) -> Any:
        return query(config, name, arguments, LATEST_S)

    asyncio.run(_serve(Api(ask, login), settings))


async def _serve(api: Api, settings: WebConfig) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    door = await opened(api, settings.listen)
    log.info("serving the API and the page at %s", settings.listen)
    await stop.wait()
    await door.cleanup()


async def opened(api: Api, listen: str) -> Door:
    """Listen at a unix socket, or at a port."""
    if listen.startswith("/"):
        return open_socket_door(routes(api), listen, "GET")
    host, _, port = listen.rpartition(":")
    return await open_door(routes(api), host, int(port), "GET")
