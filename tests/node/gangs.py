"""Gangs of real ranks that train until they are told to stop, and what the same ranks compute alone."""

from __future__ import annotations

import subprocess
import sys

from tests import patience
from tests.node.harness import HERE, ROOT, NodeHarness
from tests.ports import free_port

GANG = str(HERE / "scripts" / "gang.py")
#: One rank without torch, for what is about parking and not about losses: importing torch takes seconds.
LIGHT_RANK = str(HERE / "scripts" / "light_gang.py")
#: More than any test waits for.
ENDLESS = 10**9
ALONE_S = 120


def gang(world: int) -> list[str]:
    """The words of a gang that starts its ranks itself."""
    return [GANG, str(world), str(ENDLESS), str(free_port())]


def check_losses(node: NodeHarness, world: int, *jobs: int) -> None:
    """Stop these gangs; all their losses are, bit for bit, those of one that nobody touched."""
    found = []
    for job in jobs:
        (node.out / f"stop.{job}").touch()
        path = node.out / f"loss.{job}"
        node.wait(path.exists)
        found.append(path.read_text().split())
    steps = max(map(len, found))
    env = {"OUT": str(node.out), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin"}
    words = [sys.executable, GANG, str(world), str(steps), str(free_port())]
    subprocess.run(words, env=env, check=True, timeout=ALONE_S * patience.slowness())
    alone = (node.out / "loss.alone").read_text().split()
    for losses in found:
        assert losses and losses == alone[: len(losses)]
