"""A node that cannot restore an image leaves the job to another one (ADR 0071)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import wait_for
from tests.docker.moving import MOVE_S, STEPS, Moving, two_nodes


@pytest.fixture(scope="module")
def mini() -> Iterator[MiniCluster]:
    """As in test_images, a cluster of its own."""
    with two_nodes("elsewhere") as cluster:
        yield cluster


@pytest.fixture
def moving(mini: MiniCluster) -> Iterator[Moving]:
    """A training of user1 that can be had moved; all jobs have ended at its end."""
    found = Moving(mini)
    yield found
    found.fleet.finish()


@contextmanager
def without_criu(mini: MiniCluster, node: str) -> Iterator[None]:
    """As where another processor or library is there: criu fails on that node."""
    criu = mini.exec(["sh", "-c", "command -v criu"], host=node).stdout.strip()
    mini.exec(["mount", "--bind", "/bin/false", criu], host=node)
    try:
        yield
    finally:
        mini.exec(["umount", criu], host=node)


def begun(moving: Moving) -> tuple[str, str]:
    """Have it train; return its node, and the other one."""
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home = moving.node()
    return home, "n2" if home == "n1" else "n1"


def test_a_node_that_cannot_restore_it_has_it_go_on_elsewhere(moving: Moving) -> None:
    home, other = begun(moving)
    with without_criu(moving.mini, other):
        moving.crowd()
        (failed, *_) = wait_for(lambda: moving.events("unrestored"), moving.story, MOVE_S)
        assert failed["anew"] is False and "criu" in failed["why"], failed
        wait_for(lambda: moving.events("restored")[-1]["event"] == "restored", moving.story, MOVE_S)
    assert moving.node() == home and f"{other} could not restore it from its image" in moving.story()
    assert moving.wait_ended()[-1] == "FAILED 7:0"
    assert moving.lines() == moving.alone(), moving.story()
    told = moving.lost_and_by
    wait_for(lambda: told() == [0, ["image"]], lambda: f"acct to tell of one move: {told()}", 30)


def test_one_that_waits_to_go_on_elsewhere_can_be_cancelled(moving: Moving) -> None:
    """Its home takes no jobs, so it would wait for a minute; Slurm signals no task that has not begun."""
    home, other = begun(moving)
    mini, over = moving.mini, ("GONE", "CANCELLED")
    with without_criu(mini, other):
        moving.crowd()
        wait_for(lambda: any(e["event"] == "imaged" for e in moving.events("imaged")), moving.story, MOVE_S)
        mini.exec(["scontrol", "update", f"NodeName={home}", "State=DRAIN", "Reason=test"])
        wait_for(lambda: "NotRestored" in moving.story(), moving.story, MOVE_S)
        mini.exec(["scancel", str(moving.job)])
        began_s = time.monotonic()
        wait_for(lambda: moving.fleet.slurm_state(moving.job) in over, moving.story)
        mini.exec(["scontrol", "update", f"NodeName={home}", "State=RESUME"])
    assert time.monotonic() - began_s < 50, "not when it would begin anew"
    assert not moving.processes(home) and not moving.processes(other)
