"""gandivad: the node daemon's command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Sequence

from gandiva_slurm import logs
from gandiva_slurm.config import Config, load_config
from gandiva_slurm.model.errors import GandivaError, NotNow
from gandiva_slurm.node import guard, lock
from gandiva_slurm.node.daemon import Daemon
from gandiva_slurm.node.settings import NodeSettings
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.wire.auth import MungeSigner
from gandiva_slurm.wire.door import raise_descriptor_limit

#: How long scontrol may take to find that no slurmctld is there: 10 s where its name cannot be resolved for
#: want of a network (seen on 22.05), as long for each backup.
ASK_S = 25.0


def main(argv: Sequence[str] | None = None) -> None:
    """Run gandivad; exit 0 when stopped, 1 on a fault, 2 on a wrong configuration."""
    args = _parser().parse_args(argv)
    try:
        config = load_config(args.config)
        settings = NodeSettings.of(config, args.node or _node_name())
        if args.test:
            where = f"port {settings.port}, socket {settings.socket}"
            print(f"gandivad: the configuration is good; node {settings.node}, {where}")
            sys.exit(0)
        logs.set_up()
        raise_descriptor_limit()
        sys.exit(_thaw(settings) if args.thaw else asyncio.run(_serve(config, settings)))
    except GandivaError as err:
        for line in str(err).splitlines():
            print(f"gandivad: error: {line}", file=sys.stderr)
        sys.exit(err.exit_code)


async def _serve(config: Config, settings: NodeSettings) -> int:
    signer = MungeSigner(config.munge_socket)
    return await Daemon(settings, signer, CommandsPort(config.partitions, Timeouts(read_s=ASK_S))).run()


def _thaw(settings: NodeSettings) -> int:
    pid = lock.holder(settings.state_dir)
    if pid:
        raise NotNow(
            f"gandivad of node {settings.node} is running (pid {pid}): it thaws by itself; stop it first"
        )
    guard.thaw(settings.state_dir)
    return 0


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".", 1)[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("gandivad", description="gandiva-slurm's node daemon")
    parser.add_argument(
        "-f", dest="config", metavar="FILE", help="gandiva.yaml (default: $GANDIVA_CONF, /etc/slurm)"
    )
    parser.add_argument("--node", metavar="NAME", help="node name (default: $SLURMD_NODENAME, host name)")
    parser.add_argument("-D", action="store_true", help="stay in the foreground (it always does)")
    parser.add_argument("-t", dest="test", action="store_true", help="test the configuration and exit")
    parser.add_argument(
        "--thaw", action="store_true", help="continue what a dead gandivad has frozen, and exit"
    )
    return parser


if __name__ == "__main__":
    main()
