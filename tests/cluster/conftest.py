"""A real Slurm for these tests: one mini cluster a session, private ones for tests that break something.

GANDIVA_MINI_BACKEND=docker:SUITE runs them in containers; tests/docker has what is of that back end alone.
"""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.spec import MiniSpec, default_backend, parse_nodes
from tests.cluster.fleet import Fleet, mended
from tests.cluster.last_words import clusters_of, last_words

HERE = Path(__file__).parent
NODES = "v100:2x4,k80:1x4"
#: `make soak` alone runs these: one takes minutes, the other as long as it is told.
_OF_SOAK = {"GANDIVA_CHAOS": "test_chaos.py", "GANDIVA_DAY": "test_day.py"}
collect_ignore = [name for variable, name in _OF_SOAK.items() if not os.environ.get(variable)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything here carries the mark `cluster`; `local` is about that back end itself."""
    elsewhere = default_backend() != "local"
    of_local = [item for item in items if elsewhere and item.get_closest_marker("local")]
    config.hook.pytest_deselected(items=of_local)
    items[:] = [item for item in items if item not in of_local]
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed tells what its clusters said: they are gone when its report is read."""
    report = yield
    if report.failed and call.when != "teardown" and HERE in item.path.parents:
        for cluster in clusters_of(getattr(item, "funcargs", {}).values()):
            report.sections.append((f"cluster {cluster.spec.name}", last_words(cluster)))
    return report


@pytest.fixture(scope="session")
def slurm_here() -> None:
    """Skip with the reason where no mini cluster can run; fail where GANDIVA_REQUIRE lists `cluster`."""
    why = clusters.missing(default_backend())
    if why and "cluster" in os.environ.get("GANDIVA_REQUIRE", "").split(","):
        pytest.fail(why)
    if why:
        pytest.skip(why)


@pytest.fixture(scope="session")
def mini(slurm_here: None) -> Iterator[MiniCluster]:
    """The cluster all tests of the session share: leave it as you found it."""
    spec = MiniSpec(f"tests-{os.getpid()}", parse_nodes(NODES))
    cluster = MiniCluster.up(spec)
    yield cluster
    cluster.down()


@pytest.fixture
def make_mini(slurm_here: None) -> Iterator[Callable[..., MiniCluster]]:
    """make_mini(nodes="v100:1x4", daemons=True, quantum_s=1.0): a cluster of the test's own."""
    made: list[MiniCluster] = []

    def make(nodes: str = "v100:1x4", daemons: bool = True, quantum_s: float = 1.0) -> MiniCluster:
        name = f"test-{os.getpid()}-{len(made)}"
        made.append(MiniCluster.up(MiniSpec(name, parse_nodes(nodes), quantum_s, daemons)))
        return made[-1]

    yield make
    for cluster in made:
        cluster.down()


@pytest.fixture
def fleet(cluster: MiniCluster) -> Iterator[Fleet]:
    """The module's cluster for one test's own jobs, which end with it; then all daemons run again."""
    with mended(Fleet(cluster)) as made:
        yield made
