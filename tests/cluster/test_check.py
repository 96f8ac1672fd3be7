"""`gandiva check` on a live cluster: nothing wrong at first, then each thing broken is found."""

import json
from collections.abc import Callable, Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import own_cluster


@pytest.fixture(scope="module")
def broken(slurm_here: None) -> Iterator[MiniCluster]:
    """A cluster whose files may be broken one after the other; each test mends what it broke."""
    with own_cluster("check", "v100:1x2", 1.0, spec={"daemons": False}) as made:
        yield made


def faults(cluster: MiniCluster, user: str = "root") -> dict[str, str]:
    """Return where -> what of each error `gandiva check` tells, daemons aside: this cluster has none."""
    told = cluster.exec(["gandiva", "check", "--json"], user=user, check=False)
    found = json.loads(told.stdout)["findings"]
    errors = {finding["where"]: finding["what"] for finding in found if finding["level"] == "error"}
    assert told.returncode == int(bool(errors)), told
    assert "does not answer" in errors.pop("gandivactld")
    return errors


@pytest.mark.parametrize("user", ["root", "user1"])
def test_a_cluster_as_we_make_it(broken: MiniCluster, user: str) -> None:
    assert faults(broken, user) == {}


def cut_plugin(cluster: MiniCluster) -> None:
    path = cluster.path(cluster.site.plugin)
    path.write_bytes(path.read_bytes()[:5000])


def no_plugin(cluster: MiniCluster) -> None:
    cluster.path(cluster.site.plugin).unlink()


def no_module(cluster: MiniCluster) -> None:
    cluster.path("etc/gandiva_job_submit.lua").unlink()


def other_partition(cluster: MiniCluster) -> None:
    path = cluster.path("etc/gandiva.yaml")
    path.write_text(path.read_text().replace("- gandiva", "- gpu"))


@pytest.mark.parametrize(
    ("damage", "where", "what"),
    [
        (cut_plugin, "plugstack.conf.d/gandiva.conf", "cut short or damaged"),
        (no_plugin, "plugstack.conf.d/gandiva.conf", "No such file"),
        (no_module, "job_submit.lua", "does not exist"),
        (other_partition, "gandiva.yaml: partitions", "Slurm has no partition gpu"),
    ],
)
def test_what_is_broken_is_found(
    broken: MiniCluster, damage: Callable[[MiniCluster], None], where: str, what: str
) -> None:
    paths = [broken.site.plugin, "etc/gandiva_job_submit.lua", "etc/gandiva.yaml"]
    whole = {path: broken.path(path).read_bytes() for path in paths}
    damage(broken)
    try:
        found = faults(broken)
    finally:
        for path, content in whole.items():
            broken.path(path).write_bytes(content)
    assert any(place.find(where) >= 0 and what in text for place, text in found.items()), found


def test_slurmctld_that_is_away(broken: MiniCluster) -> None:
    broken.kill("slurmctld")
    try:
        assert list(faults(broken)) == ["slurmctld"]
    finally:
        broken.start_daemon("slurmctld")
