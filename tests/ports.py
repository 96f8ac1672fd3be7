"""Ports for servers that a test starts a moment later."""

import random
import socket
from pathlib import Path

FIRST = 10_000
#: From here on the kernel gives ports to connections.
END = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


#: One for each port given: another process that tests here, too, is not given it while this one lives.
_kept: list[socket.socket] = []


def free_port() -> int:
    """A free port of 127.0.0.1 that nobody's connection is given before the server is there."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(FIRST, END)
        kept = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                kept.bind(f"\0gandiva-test-port-{port}")
                probe.bind(("127.0.0.1", port))
            except OSError:
                kept.close()
                continue
        _kept.append(kept)
        return port
