"""Programs without a client, which are frozen where they are, moved by images of themselves (ADR 0074)."""

from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import set_slurm, wait_for
from tests.docker.moving import TYPES, Moving, two_nodes

#: Nothing that gandivad has a word with. Each line is written once, or there was more than one of it.
BLIND = """
import random, sys, time
draw, total = random.Random(3), 0
with open(sys.argv[1], "a", buffering=1) as out:
    for step in range(int(sys.argv[2])):
        total += draw.getrandbits(64)
        out.write(f"{step} {total}\\n")
        time.sleep(float(sys.argv[3]))
"""
SCRIPT = b"blind.py"
THAW = "for state in /sys/fs/cgroup/freezer/gandiva/*/job_*/freezer.state; do echo THAWED >$state; done"
#: How long Slurm waits between SIGTERM and SIGKILL, where that is asked for: 3 s is a mini cluster's own.
KILL_WAIT_S = 60


@pytest.fixture(scope="module")
def mini() -> Iterator[MiniCluster]:
    """As in test_images."""
    with two_nodes("frozen") as cluster:
        cluster.path("/home/user1/blind.py").write_text(BLIND)
        try:
            yield cluster
        finally:  # Docker ends nothing that is frozen
            for node in TYPES:
                cluster.kill(f"gandivad:{node}")
                cluster.exec(["sh", "-c", THAW], host=node, check=False)


def submitted(mini: MiniCluster, told: str) -> Moving:
    """A program that trains nothing, of which this is said."""
    moving = Moving(mini)
    moving.submit("exec python blind.py OUT 1000000 0.05", told=told)
    return moving


def test_without_a_group_that_can_be_frozen_it_stays(mini: MiniCluster) -> None:
    """Docker's containers have none that they may write."""
    moving = submitted(mini, "no control group here that can be frozen")
    moving.fleet.finish()


def test_it_goes_on_in_the_midst_of_its_step_and_nothing_of_it_runs_twice(mini: MiniCluster) -> None:
    for node in TYPES:
        mini.exec(["mount", "-o", "remount,bind,rw", "/sys/fs/cgroup/freezer"], host=node)
        mini.kill(f"gandivad:{node}")
        mini.start_daemon(f"gandivad:{node}")
    moving = submitted(mini, "an image of its processes")
    for _ in range(2):
        moving.move()
        (status,) = moving.processes(moving.node(), SCRIPT)
        assert int(status["CapEff"], 16) == 0 and status["Uid"].split() == ["5001"] * 4
    mini.exec(["scancel", str(moving.job)])
    wait_for(lambda: not any(moving.processes(node, SCRIPT) for node in TYPES), "its end", 60)
    got = moving.lines()
    mini.exec(["sh", "-c", f"cd; python blind.py {moving.name}.alone {len(got)} 0"], user="user1")
    want = moving.file(".alone").read_text().splitlines()
    apart = [number for number, both in enumerate(zip(got, want, strict=True)) if both[0] != both[1]]
    assert not apart, (got[apart[0] - 2 : apart[0] + 2], moving.story())
    moving.fleet.finish()


def test_a_training_that_is_frozen_is_not_waited_for(mini: MiniCluster) -> None:
    """Slurm kills what stands still after KillWait: its node ends what goes on elsewhere before."""
    set_slurm(mini, KillWait=KILL_WAIT_S)
    moving = Moving(mini)
    moving.submit("exec python train.py OUT 1000000 0.02")
    for _ in range(2):
        moving.move()
    made_ns, still_s = 0, []
    for event in moving.events("imaged", "restored"):  # an image may have been for nothing, and made again
        if event["event"] == "imaged":
            made_ns = event["mono_ns"]
        elif event["event"] == "restored":
            still_s.append((event["mono_ns"] - made_ns) / 1e9)
    assert len(still_s) == 2 and max(still_s) < KILL_WAIT_S, still_s
    moving.fleet.finish()
