"""Mini clusters in containers, on each suite that has an image; the others are skipped.

GANDIVA_REQUIRE=docker:forky,docker:trixie runs those two alone, and fails without an engine or an image.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.docker import image_of
from gandiva_slurm.mini.engine import Engine
from gandiva_slurm.mini.spec import SUITES, MiniSpec, parse_nodes
from tests.slow import soak

#: Suites a run with GANDIVA_REQUIRE must pass, and its other ones leave alone.
REQUIRED = [word for word in os.environ.get("GANDIVA_REQUIRE", "").split(",") if word]
BACKENDS = [f"docker:{suite}" for suite in SUITES]
ASKED = [backend for backend in BACKENDS if backend in REQUIRED]
HERE = Path(__file__).parent
NODES = "v100:2x2,k80:1x1"
#: Of these files `make soak` alone has the other suites: what they show is of the network and of the node
#: daemon, and takes two minutes a suite.
ON_ONE_SUITE = {"test_partitions.py": "docker:trixie"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything here carries the mark `docker`; some of it is of one suite alone."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.docker)
        only = ON_ONE_SUITE.get(item.path.name)
        callspec = getattr(item, "callspec", None)
        if only and callspec and callspec.params.get("backend") != only:
            item.add_marker(soak("two minutes more; one suite stays"))
    # Process images are trixie's, and not asked of others.
    if ASKED and "docker:trixie" not in ASKED:
        others = [item for item in items if item.path.parent == HERE and "image" in item.path.name]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def why_not(backend: str) -> str:
    """Why this suite's tests cannot run here now; "" when they can."""
    if why := clusters.missing(backend):
        return why
    suite = backend.partition(":")[2]
    if not Engine.find().has_image(image_of(suite)):
        return f"no image {image_of(suite)}; next: make image SUITE={suite}"
    return ""


def require(backend: str) -> None:
    """Skip what needs this suite where it cannot run; fail where it was asked for."""
    why = why_not(backend)
    if why and backend in ASKED:
        pytest.fail(why)
    if why:
        pytest.skip(why)


@pytest.fixture(scope="session", params=ASKED or BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each suite in its turn; skipped with the reason where it cannot run."""
    found: str = request.param
    why = why_not(found)
    if why and found in ASKED:
        pytest.fail(why)
    if why:
        pytest.skip(why)
    return found


@pytest.fixture(scope="session")
def mini(backend: str) -> Iterator[MiniCluster]:
    """A cluster of this suite that its tests share: leave it as you found it."""
    suite = backend.partition(":")[2]
    cluster = MiniCluster.up(MiniSpec(f"tests-{os.getpid()}-{suite}", parse_nodes(NODES), backend=backend))
    yield cluster
    cluster.down()
