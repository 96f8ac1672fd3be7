"""Files that only a job's node has go along with the image of its processes (ADR 0075)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import wait_for
from tests.docker.moving import TYPES, Moving, two_nodes
from tests.docker.moving import moving as moving

#: Each of its sums is written where all nodes see it, into a log of its node's, and into shared memory; what
#: it adds it reads from a file that is mapped.
SCRIPT = """\
import mmap, os, sys, time
name = sys.argv[1]
cache, count, log = f"/tmp/{name}.cache", f"/dev/shm/{name}.count", f"/tmp/{name}.log"
os.makedirs(f"/tmp/{name}.d", 0o700)
open(cache, "wb").write(b"\\x03" * 4096)
open(count, "wb").write(bytes(8))
mapped = mmap.mmap(os.open(cache, os.O_RDONLY), 4096, prot=mmap.PROT_READ)
counted = mmap.mmap(os.open(count, os.O_RDWR), 8)
import torch
model, log = torch.nn.Linear(1, 1), open(log, "a", buffering=1)
deep = open(f"/tmp/{name}.d/deep", "a+")
optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.0), open(name, "a", buffering=1)
while not os.path.exists(f"{name}.end"):
    model(torch.ones(1)).backward()
    optimizer.step()
    number = int.from_bytes(counted[:8], "little")
    counted[:8] = (number + mapped[number % 4096]).to_bytes(8, "little")
    for file in (losses, log, sys.stdout):
        print(number, file=file, flush=True)
    time.sleep(0.02)
deep.write("whole")
"""


@pytest.fixture(scope="module")
def mini() -> Iterator[MiniCluster]:
    """A cluster for all tests of this file."""
    with two_nodes("imagefiles") as cluster:
        cluster.path("/home/user1/own.py").write_text(SCRIPT)
        yield cluster


def of_node(moving: Moving, node: str, path: str) -> str | None:
    """What a file of a node's alone has; None: it is not there."""
    done = moving.mini.exec(["cat", path], host=node, check=False)
    return done.stdout if done.returncode == 0 else None


def end(moving: Moving) -> str:
    """Let it come to its end; return the node that it ended on."""
    node = moving.node()
    moving.file(".end").touch()
    assert moving.wait_ended()[-1] == "COMPLETED 0:0"
    assert moving.lines() == [str(3 * number) for number in range(len(moving.lines()))]
    return node


def test_they_are_there_and_back_again_and_again(moving: Moving) -> None:
    moving.submit("exec python own.py OUT")
    home, log, deep = moving.node(), f"/tmp/{moving.name}.log", f"/tmp/{moving.name}.d/deep"
    moving.move()
    assert of_node(moving, moving.node(), f"/tmp/{moving.name}.cache") == "\x03" * 4096
    moving.move()
    moving.move()
    away = end(moving)
    assert away != home and (of_node(moving, away, log) or "").split() == moving.lines()
    assert of_node(moving, away, deep) == "whole"
    assert not moving.events("unrestored", "unimaged")
    for node in TYPES:
        told = moving.mini.exec(["sh", "-c", f"ls -A /tmp /dev/shm | grep {moving.name}"], host=node).stdout
        assert len(told.split()) == 4, f"what it had left itself is put away: {told}"


def test_its_output_is_one_file_where_it_is_of_the_node(moving: Moving) -> None:
    """slurmstepd makes an empty one there, before what is restored has it."""
    out = f"/tmp/{moving.name}.said"
    moving.submit("exec python own.py OUT", "-o", out)
    moving.move()
    away = end(moving)
    assert (of_node(moving, away, out) or "").split() == moving.lines()


def test_what_its_user_has_there_is_set_aside(moving: Moving) -> None:
    moving.submit("exec python own.py OUT")
    home, log = moving.node(), f"/tmp/{moving.name}.log"
    (other,) = TYPES.keys() - {home}
    moving.mini.exec(["sh", "-c", f"echo another >{log}"], host=other, user="user1")
    moving.move()
    assert end(moving) == other
    assert of_node(moving, other, f"{log}.before-{moving.job}") == "another\n"
    assert (of_node(moving, other, log) or "").split() == moving.lines()


def test_where_another_user_has_a_file_there_it_goes_on_elsewhere(moving: Moving) -> None:
    """It is refused, however like the job's own it is."""
    moving.submit("exec python own.py OUT")
    home, cache = moving.node(), f"/tmp/{moving.name}.cache"
    (other,) = TYPES.keys() - {home}
    made = f"umask 0; printf '\\003%.0s' $(seq 4096) >{cache}; wc -c <{cache}"
    assert moving.mini.exec(["sh", "-c", made], host=other, user="user2").stdout.strip() == "4096"
    crowd = moving.crowd()
    wait_for(lambda: moving.events("unrestored"), lambda: f"a word: {moving.story()}", 90)
    assert "another user's file" in moving.events("unrestored")[0]["why"]
    moving.mini.exec(["scancel", str(crowd)])
    was = len(moving.lines())
    wait_for(lambda: len(moving.lines()) > was + 20, lambda: f"it to train: {moving.story()}", 120)
    assert end(moving) == home
    assert (of_node(moving, home, f"/tmp/{moving.name}.log") or "").split() == moving.lines()
