"""On each suite in containers: what a user shares is seen, what is not is said."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import docker, shares
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes
from gandiva_slurm.model.errors import GandivaError
from tests.cluster.seen import check_hostile, check_jobs, check_sentences, gandiva, places
from tests.docker.test_docker import left_of


@pytest.fixture
def name(backend: str) -> Iterator[str]:
    """A cluster of the test's own; taken down whatever happens."""
    made = f"share-{os.getpid()}"
    yield made
    clusters.down(made)


def test_jobs_run_where_their_user_stands_and_in_what_is_shared(
    backend: str, name: str, tmp_path: Path
) -> None:
    suite = backend.partition(":")[2]
    with places() as place:
        up = gandiva("mini", "up", "--backend", "docker", "--suite", suite, "--no-daemons",
                     "--nodes", "k80:1x1", "--share", str(place["shared"]),
                     "--keep-logs", str(tmp_path / "logs"), name=name, cwd=place["here"])
        assert up.returncode == 0, up.stderr
        check_jobs(name, place)
        check_sentences(name, place)
        check_hostile(MiniCluster.attach(name), place)
        assert gandiva("mini", "down", name=name, cwd=place["here"]).returncode == 0
        assert (place["here"] / "job.sh").exists() and (place["shared"] / "job.sh").exists()
    assert left_of(Layout.of(name)) == []
    assert "slurmctld" in (tmp_path / "logs/slurmctld.log").read_text()


def test_a_share_that_is_swapped_while_it_comes_up_is_refused(
    backend: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = shares.pin
    with places() as place:
        def judge_and_swap(spec: MiniSpec) -> list[shares.Share]:
            judged = judge(spec)
            place["here"].rename(place["here"].with_name("was"))
            place["here"].symlink_to("/etc")
            return judged

        monkeypatch.setattr(docker.shares, "pin", judge_and_swap)
        spec = MiniSpec(name, parse_nodes("k80:1x1"), daemons=False, backend=backend,
                        shares=(str(place["here"]),))
        with pytest.raises(GandivaError, match="was changed while the cluster came up"):
            MiniCluster.up(spec)
        place["here"].unlink()
    assert left_of(Layout.of(name)) == []
