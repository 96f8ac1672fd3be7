"""gandivactld: the controller daemon. One in a cluster, beside slurmctld, run as SlurmUser."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import aiohttp

from gandiva_slurm import __version__, logs, watchdog
from gandiva_slurm.config import Config, find_config, load_config
from gandiva_slurm.controller.api import Api
from gandiva_slurm.controller.loop import Controller
from gandiva_slurm.controller.privacy import read_rules
from gandiva_slurm.controller.settings import leader
from gandiva_slurm.controller.what_if import WhatIf
from gandiva_slurm.engine.invariants import violations
from gandiva_slurm.garbage import look_rarely
from gandiva_slurm.model.errors import ConfigError, GandivaError
from gandiva_slurm.slurm.backend import ChosenPort
from gandiva_slurm.slurm.commands import Timeouts
from gandiva_slurm.slurm.limits import CommandLimits
from gandiva_slurm.wire import http
from gandiva_slurm.wire.auth import MungeSigner, Signer
from gandiva_slurm.wire.door import open_door, raise_descriptor_limit

QUERY_PATH = "/v1/query"
LOCK_NAME, LOG_NAME = "lock", "gandivactld.log"
#: Keys that take effect at a restart only.
FIXED = ("cluster", "partitions", "slots_per_gpu", "munge_socket", "slurm")
FIXED_CONTROLLER = ("host", "port", "state_dir", "slurm_user", "slurm_timeout_s")

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; the exit code is 2 when the configuration is wrong."""
    options = _parser().parse_args(argv)
    logs.set_up(logging.DEBUG if options.verbose else logging.INFO)
    try:
        file = Path(options.file) if options.file else find_config()
        config = load_config(file)
        leader(config)
        if options.test:
            print(f"{file}: no fault found")
            return 0
        _refuse_wrong_user(config)
        with _lock(config):
            if not options.foreground:
                _go_background(Path(config.controller.state_dir) / LOG_NAME)
            raise_descriptor_limit()
            return asyncio.run(_serve(config, file, options.check_invariants))
    except GandivaError as err:
        for line in str(err).splitlines():
            print(f"gandivactld: error: {line}", file=sys.stderr)
        return err.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gandivactld", description="Gandiva's controller for Slurm.")
    places = "$GANDIVA_CONF, beside $SLURM_CONF, /etc/slurm"
    parser.add_argument("-f", dest="file", metavar="FILE", help=f"gandiva.yaml (default: {places})")
    flags = {
        "-D": ("foreground", f"stay in the foreground and log to stderr, not to state_dir/{LOG_NAME}"),
        "-t": ("test", "test the configuration and exit"),
        "-v": ("verbose", "log more"),
        "--check-invariants": ("check_invariants", "check the engine in every cycle, log what is broken"),
    }
    for flag, (name, text) in flags.items():
        parser.add_argument(flag, dest=name, action="store_true", help=text)
    parser.add_argument("-V", "--version", action="version", version=f"gandivactld {__version__}")
    return parser


async def _serve(config: Config, file: Path, check_invariants: bool) -> int:
    signer = MungeSigner(config.munge_socket)
    peers = frozenset({0, config.slurm_uid()})
    limits = config.controller
    timeouts = Timeouts(limits.slurm_timeout_s, limits.slurm_timeout_s)
    port = ChosenPort(config.slurm.backend, config.partitions, timeouts)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        nodes = NodeTransport(config, session, signer, peers)
        controller = Controller(config, port, nodes, limits=CommandLimits(limits.slurm_timeout_s))
        controller.back_end = lambda: port.choice.sentence if port.choice else ""
        controller.invariants = violations if check_invariants else controller.invariants
        look_rarely()  # what was restored stays for as long as the daemon
        api = Api(controller, peers, lambda: read_rules(port))
        api.what_if = WhatIf(file, Path(limits.state_dir))
        bounds = http.MAX_QUESTION_BYTES, http.QUESTIONS_PER_USER
        route = http.signed_route(signer, lambda uid: True, api.answer, *bounds)
        server = await open_door({QUERY_PATH: route}, limits.host, limits.port)
        stop = _handle_signals(lambda: _reload(file, controller, nodes))
        log.info("gandivactld %s started, cluster %s", __version__, config.cluster)
        signs = asyncio.create_task(watchdog.feed(controller.has_moved))
        try:
            await controller.run(stop)
        finally:
            signs.cancel()
            await server.cleanup()
            await port.close()
            log.info("gandivactld ended; nodes go on slicing by their last plan")
    return 0


class NodeTransport:
    """The way to the nodes: signed HTTP to the addresses of the configuration as it is now."""

    def __init__(
        self, config: Config, session: aiohttp.ClientSession, signer: Signer, peers: frozenset[int]
    ) -> None:
        self.config = config
        self._session = session
        self._signer = signer
        self._peers = peers

    async def __call__(self, name: str, path: str, payload: bytes, timeout_s: float) -> bytes:
        """Send a payload to a node and return the payload of its answer."""
        url = self.config.node_url(name) + path
        return await http.post(self._session, url, self._signer, payload, timeout_s, self._peers)


def _reload(file: Path, controller: Controller, nodes: NodeTransport) -> None:
    """SIGHUP: take over what may change; a file with a mistake changes nothing."""
    try:
        config = load_config(file)
        leader(config)
    except ConfigError as err:
        log.error("configuration not reloaded: %s", err)
        return
    old = controller.config
    fixed = [key for key in FIXED if getattr(config, key) != getattr(old, key)]
    fixed += [
        f"controller.{key}"
        for key in FIXED_CONTROLLER
        if getattr(config.controller, key) != getattr(old.controller, key)
    ]
    if fixed:
        log.error("configuration not reloaded: %s can only change at a restart", ", ".join(fixed))
        return
    nodes.config = config
    controller.reload(config)
    log.info("configuration reloaded from %s", file)


def _handle_signals(reload: Callable[[], None]) -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    return stop


def _refuse_wrong_user(config: Config) -> None:
    """Nodes obey SlurmUser, and a daemon of root's is more than is needed."""
    if os.geteuid() == config.slurm_uid():
        return
    who = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
    name = config.controller.slurm_user
    raise ConfigError(f"started as {who}; run as {name} (controller.slurm_user): setpriv, su or User={name}")


def _lock(config: Config) -> IO[str]:
    """Two controllers on one journal would undo each other's work."""
    path = Path(config.controller.state_dir) / LOCK_NAME
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        file = open(path, "a")  # noqa: SIM115 - held open, and so locked, until the daemon ends
    except OSError as err:
        text = f"controller.state_dir: {path.parent}: {err.strerror}"
        raise ConfigError(f"{text}; make it, owned by {config.controller.slurm_user}") from err
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        file.close()
        raise ConfigError(f"{path}: locked; another gandivactld uses this state_dir: stop it first") from err
    return file


def _go_background(log_file: Path) -> None:
    """Leave the terminal, as slurmctld does without -D; the log goes to a file."""
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid() if os.getsid(0) != os.getpid() else None
    null = os.open(os.devnull, os.O_RDWR)
    out = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


if __name__ == "__main__":
    sys.exit(main())
