"""Gangs that never come to a boundary of all their ranks: others get their turns all the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import START_S, Fleet, own_cluster, wait_for
from tests.cluster.sharing import LIGHT
from tests.records import share_of_turns
from tests.slow import slow, soaked

SCRIPT = Path(__file__).with_name("refusing_gang.py")
#: GPU type, nodes that have it, how a gang of two ranks asks for it.
SHAPES = {
    "one-node": ("k80", ("n1",), ("--nodes=1", "--ntasks=2")),
    "two-nodes": ("v100", ("n2", "n3"), ("--nodes=2", "--ntasks-per-node=1")),
}
REFUSAL_BOUND_S, FREEZE_BOUND_S = 4, 8
RANKS = """\
export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID)) WORLD_SIZE=$SLURM_NTASKS
srun sh -c 'RANK=$SLURM_PROCID exec python refusing_gang.py gang gang.stop'
"""


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Nodes of one GPU, and daemons of little patience."""
    bounds = {"refusal_bound_s": REFUSAL_BOUND_S, "freeze_bound_s": FREEZE_BOUND_S, "park_deadline_s": 1}
    with own_cluster("refusal", "k80:1x1,v100:2x1", 0.5, node=bounds) as made:
        made.path("/home/user1/refusing_gang.py").write_text(SCRIPT.read_text())
        made.path("/home/user2/light.py").write_text(LIGHT)
        yield made


def light(fleet: Fleet, name: str, gpu_type: str, nodes: tuple[str, ...]) -> tuple[str, int]:
    """A job of user2 that counts, beside the gang: the node where it has had a turn, and its number."""
    count = f"exec python light.py {name}.count {name}.stop"
    job = fleet.submit("user2", count, f"--job-name={name}", f"--gandiva-gpu-types={gpu_type}")
    where = wait_for(
        lambda: [node for node in nodes if fleet.count("grant", job, node)], f"{name} to have a turn", 120
    )
    return where[0], job


def written(fleet: Fleet) -> list[list[int]]:
    """What each rank of the gang has written, whole lines."""
    texts = [fleet.home("user1", f"gang.{rank}.steps").read_text() for rank in (0, 1)]
    return [[int(line) for line in text.split("\n")[:-1]] for text in texts]


@slow("a minute a shape; node/test_refusal and unit/test_engine_refusal have it without Slurm")
@pytest.mark.parametrize("shape", [soaked("one-node", why="a minute; two nodes stay"), "two-nodes"])
def test_a_gang_that_never_parks_leaves_others_their_turns(fleet: Fleet, shape: str) -> None:
    """On all its nodes it is frozen for the time of their turns, and goes on where it was."""
    gpu_type, nodes, flags = SHAPES[shape]
    for path in fleet.home("user1").glob("gang.*"):
        path.unlink()
    gang = fleet.submit("user1", RANKS, *flags, f"--gandiva-gpu-types={gpu_type}")
    wait_for(
        lambda: all(path.exists() for path in (fleet.home("user1", f"gang.{n}.steps") for n in (0, 1)))
        and min(map(len, written(fleet))) > 100,
        "both ranks to work", START_S,
    )
    others = dict(light(fleet, f"{shape}-{node}", gpu_type, nodes) for node in nodes)
    assert set(others) == set(nodes)
    for node in nodes:
        assert fleet.count("unparkable", gang, node), "it was asked first"
    told = wait_for(
        lambda: (why := fleet.ask("why", str(gang)))["code"] == "Frozen" and why, "why to say Frozen", 60
    )
    assert any("failed to park" in line and "at the latest" in line for line in told["evidence"]), told
    fleet.wait_suspends(gang, 3, nodes[0], 90)
    before = [len(values) for values in written(fleet)]
    wait_for(
        lambda: all(len(now) > was + 20 for now, was in zip(written(fleet), before, strict=True)),
        "both ranks to go on", 60,
    )
    for values in written(fleet):
        assert all(b == a * 48271 % 2147483647 for a, b in itertools.pairwise(values))
    for node, other in others.items():
        parks = [e for e in fleet.events(node) if e["event"] == "parked" and e.get("job") == gang]
        assert all(park["frozen"] for park in parks), "it never came to a boundary"
        wait_for(
            lambda at=(other, node): 0.4 < share_of_turns(fleet.events(at[1]), gang, at[:1], turns=2) < 0.6,
            f"equal parts on {node}", 60,
        )
