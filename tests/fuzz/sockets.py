"""The same messages against a real gandivad: what stands behind its sockets is what the bulk is put to."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from gandiva_slurm.wire.messages import encode
from tests import patience
from tests.fuzz.kit import GROWTH_BYTES, Budget, Tally, mutated, mutated_json
from tests.fuzz.messages import BINDS, PLAN, lines
from tests.node.harness import NodeHarness

#: A message may keep its connection so long, on a quiet machine.
BOUND_S = 1.0
#: One user's connections to the socket of all in a second, after the first 512.
PACE_S = 1 / 45
FIRST = 400
#: What sends one message, and the message.
Way = tuple[Callable[[], None], bytes]
_HEAD = b"POST %s HTTP/1.1\r\nHost: n1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


def fuzz_node(node: NodeHarness, chance: random.Random, budget: Budget) -> Tally:
    """Send mutations to all three sockets in turn; gandivad lives, is no larger, and has no traceback."""
    tally, began_s = Tally("gandivad"), time.monotonic()
    ways: tuple[Callable[[NodeHarness, random.Random], Way], ...] = (_to_all, _to_root, _to_port)
    before = _size(node)
    for number in budget.numbers():
        send, case = ways[number % 3](node, chance)
        took_s = _took_s(send)
        tally.cases += 1
        tally.slowest_s = max(tally.slowest_s, took_s)
        if took_s > BOUND_S * patience.slowness():
            tally.note(f"a connection took {took_s:.1f} s", case)
        if number > 3 * FIRST and number % 3 == 0:
            time.sleep(max(0.0, PACE_S - took_s))
    _check(node, before, tally)
    tally.took_s = time.monotonic() - began_s
    return tally


def _took_s(send: Callable[[], None]) -> float:
    """How long a message keeps its connection: the machine may stand still once, and not three times."""
    for _ in range(3):
        started_s = time.monotonic()
        send()
        took_s = time.monotonic() - started_s
        if took_s <= BOUND_S:
            break
    return took_s


def _to_all(node: NodeHarness, chance: random.Random) -> Way:
    case = lines(chance)
    return partial(_say, node.settings["socket"], case), case


def _to_root(node: NodeHarness, chance: random.Random) -> Way:
    """TASK and BIND, one of them changed."""
    task, bind = b"TASK %d\n" % chance.choice((0, 61001)), chance.choice(BINDS)
    changed = mutated(task, chance) if chance.random() < 0.5 else task
    return partial(_say, node.settings["socket"] + ".root", changed, mutated(bind, chance)), changed


def _to_port(node: NodeHarness, chance: random.Random) -> Way:
    """A signed plan, its payload changed or the whole request."""
    plan = json.loads(encode(replace(PLAN, node=node.name, jobs=PLAN.jobs[:2])))
    path = chance.choice((b"/v1/plan", b"/v1/plan", b"/v1/span", b"/v1/report"))
    body = b"PLAIN 0\n" + path + b"\n" + mutated_json(plan, chance)
    case = _HEAD % (path, len(body)) + body
    case = mutated(case, chance) if chance.random() < 0.4 else case
    return partial(_say_to_port, node.settings["port"], case), case


def _say_to_port(port: int, case: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        _send(link, case)


def _say(path: str, *said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        for part in said[:-1]:
            link.settimeout(0.05)  # what is no TASK line may be no line, and is not answered
            if _try(lambda part=part: link.sendall(part)) and not _try(lambda: link.recv(4096)):
                break
        _send(link, said[-1])


def _send(link: socket.socket, case: bytes) -> None:
    """Say all, and wait until the other side has closed."""
    link.settimeout(30)
    if _try(lambda: link.sendall(case)) and _try(lambda: link.shutdown(socket.SHUT_WR)):
        while _try(lambda: link.recv(65536)):
            pass


def _try(act: Callable[[], object]) -> bool:
    """True when it was done, and brought something, if it brings anything."""
    try:
        return act() not in (b"",)
    except OSError:
        return False


def _size(node: NodeHarness) -> tuple[int, int]:
    assert node.daemon is not None
    proc = Path(f"/proc/{node.daemon.pid}")
    pages = int((proc / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(proc / "fd"))


def _check(node: NodeHarness, before: tuple[int, int], tally: Tally) -> None:
    node.wait(lambda: node.report().node == node.name)
    node.wait(lambda: _size(node)[1] <= before[1])  # a client's own connection ends a moment later
    tally.grown_bytes, tally.grown_fds = (now - then for now, then in zip(_size(node), before, strict=True))
    if tally.grown_bytes > GROWTH_BYTES:
        tally.note("gandivad grew", b"")
    wrong = [line for line in node.log().splitlines() if "Traceback" in line or "could not be served" in line]
    wrong += [line for line in node.log().splitlines() if line.endswith("failed") and "error: " in line]
    if wrong:
        tally.note(f"in gandivad's log: {wrong[0][:120]}", b"")
