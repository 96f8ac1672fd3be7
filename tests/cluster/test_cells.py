"""`--gandiva-cell` on a real cluster: a gang has GPUs of one switch, by what gandiva.yaml tells of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, mended, own_cluster, wait_for
from tests.slow import slow


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """A node of four GPUs, two on a switch."""
    with own_cluster("cells", "v100:1x4", 1.0, cells={"v100": {"switch": 2}}) as made:
        yield made


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[Fleet]:
    """At the end all jobs have ended and the books are whole."""
    with mended(Fleet(cluster)) as made:
        yield made


@slow("20 s; tests/unit/test_cells_live.py has it on a small Slurm")
def test_a_gang_has_a_whole_switch_and_one_that_none_can_take_is_told_so(fleet: Fleet) -> None:
    single = fleet.train("user1", "single")
    fleet.wait_running(single)
    gang = fleet.train("user2", "gang", "--gandiva-cell=switch", gpus=2)
    wide = fleet.train("user3", "wide", "--gandiva-cell=switch", gpus=3)
    fleet.wait_running(gang)
    rows = {row["job_id"]: row for row in fleet.ask("queue")["jobs"]}
    assert (rows[single]["gpu_ids"], rows[gang]["gpu_ids"]) == ([0], [2, 3])
    why = wait_for(lambda: (it := fleet.ask("why", str(wide)))["code"] == "TooWide" and it, "a reason")
    assert why["sentence"] == "asks for 3 GPUs of one switch, the largest that may take it has 2"
    evidence = fleet.ask("why", str(gang))["evidence"]
    assert "--gandiva-cell=switch: its GPUs are to share a switch" in evidence
