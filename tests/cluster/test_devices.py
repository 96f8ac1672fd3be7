"""Under Slurm a job opens the GPUs that it was given, in its script and in its steps, and no others."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, wait_for

GPUS, MAJOR = 4, 195
OPENINGS = Path(__file__).parents[1] / "node/scripts/openings.py"


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    with own_cluster("devices", f"v100:1x{GPUS}", 2.0, node={"gpu_files": "/home/user1/gpu"}) as made:
        yield made


@pytest.fixture
def files(fleet: Fleet) -> None:
    """Device files that everybody may open, as /dev/nvidia0 is."""
    for gpu in range(GPUS):
        path = fleet.home("user1", f"gpu{gpu}")
        os.mknod(path, 0o020666, os.makedev(MAJOR, gpu))
        path.chmod(0o666)


def test_jobs_open_their_own_gpus_in_every_step(fleet: Fleet, files: None) -> None:
    fleet.home("user1", "openings.py").write_text(OPENINGS.read_text())
    run = "python ~/openings.py {} ~/gpu {} &"
    script = f"{run.format('script', GPUS)}\nsrun {run.format('step', GPUS)}\nwait"
    job = fleet.submit("user1", script, gpus=2)
    fleet.wait_running(job)
    for name in ("script", "step"):
        path = fleet.home("user1", f"openings.{name}")
        wait_for(lambda path=path: path.exists() and len(path.read_text().splitlines()) == 4, f"{path}")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        opened = {tuple(error == errno.ENXIO for error in line["errors"]) for line in lines}
        assert len(opened) == 1 and sum(opened.pop()) == 2, lines
        assert {error for line in lines for error in line["errors"]} == {errno.ENXIO, errno.EPERM}
        assert lines[0]["visible"] == "0,1"
    fleet.mini.exec(["scancel", str(job)], user="user1")
    fleet.wait_ended(job, "CANCELLED", "GONE")
