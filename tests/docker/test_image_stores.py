"""Images that each node keeps to itself, and the next fetches: where root is nobody on what nodes share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import LIGHT, own_cluster, set_slurm, wait_for
from tests.docker.conftest import require
from tests.docker.moving import (
    END_S,
    MORE_STEPS,
    MOVE_S,
    MOVES,
    OF_IMAGES,
    STEPS,
    SUITE,
    TRAIN,
    TYPES,
    Moving,
)
from tests.slow import soak

STORE = "/var/lib/gandiva-images"


class Fetched(Moving):
    """A training whose images lie on the nodes themselves."""

    def images(self) -> list[str]:
        """What lies of it on either node."""
        roots = [Path(f"/proc/{self.mini.pids[node]}/root{STORE}") for node in TYPES]
        parts = [root / name for root in roots for name in ("work", "whole")]
        return [str(path) for part in parts for path in part.glob(f"*{self.job}.*")]


@pytest.fixture(scope="module")
def mini() -> Iterator[MiniCluster]:
    require(SUITE)
    node = {"image_dir": STORE, "image_store": "nodes"}
    with own_cluster("stores", "v100:1x1,k80:1x1", 0.5, spec=OF_IMAGES, moves=MOVES, node=node) as cluster:
        cluster.path("/home/user2/light.py").write_text(LIGHT)
        cluster.path("/home/user1/train.py").write_text(TRAIN.read_text())
        # A slurmd that a test has stopped is not asked meanwhile: no target is lost but by the test.
        set_slurm(cluster, SlurmdTimeout=300)
        yield cluster


@pytest.fixture
def moving(mini: MiniCluster) -> Iterator[Fetched]:
    """A training of user1 that can be had moved; all jobs have ended at its end."""
    found = Fetched(mini)
    yield found
    for name in ("gandivad:n1", "gandivad:n2"):
        if mini.daemon_pid(name) is None:
            mini.start_daemon(name)
    found.fleet.finish()


def test_it_moves_twice_to_the_last_bit_by_images_that_nodes_fetch(moving: Moving) -> None:
    moving.submit(f"exec python train.py OUT {MORE_STEPS} 0.02")
    for _ in range(2):
        moving.move()
    assert moving.wait_ended(until_swept=True) == ["REQUEUED 0:0", "REQUEUED 0:0", "FAILED 7:0"]
    assert moving.lines() == moving.alone(steps=MORE_STEPS)
    assert len(moving.events("fetched")) == 2
    given = moving.events("image_given")
    assert [event["node"] for event in given] != [event["to"] for event in given] and len(given) == 2


@soak("a minute; test_image_fetching.py has a node that goes")
def test_where_the_node_that_has_it_is_gone_the_job_begins_anew(moving: Moving) -> None:
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home = moving.node()
    other = "n2" if home == "n1" else "n1"
    moving.mini.kill(f"slurmd:{other}", signal.SIGSTOP)
    moving.crowd()
    wait_for(lambda: moving.images() and not moving.node(), moving.story, MOVE_S)
    moving.mini.kill(f"gandivad:{home}", signal.SIGKILL)
    moving.mini.kill(f"slurmd:{other}", signal.SIGCONT)
    wait_for(lambda: moving.node() == other, lambda: f"it to start elsewhere: {moving.story()}", MOVE_S)
    wait_for(lambda: moving.events("unfetched"), lambda: f"a word on it: {moving.story()}", MOVE_S)
    moving.mini.start_daemon(f"gandivad:{home}")
    moving.fleet.wait_ended(moving.job, "FAILED", deadline_s=END_S)
    assert moving.lines()[-STEPS:] == moving.alone()
