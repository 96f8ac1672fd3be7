"""Ports for servers that a test starts a moment later."""

import random
import socket
from pathlib import Path

FIRST = 10_000
#: From here on the kernel gives ports to connections.
END = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def free_port() -> int:
    """A free port of 127.0.0.1 that nobody's connection is given before the server is there."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(FIRST, END)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
