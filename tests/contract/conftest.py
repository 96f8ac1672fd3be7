"""Every contract test runs with both back ends: on recorded answers of each Slurm, and on a live cluster.

assets/RELEASE has what Slurm's commands answered, assets/RELEASE-pyslurm what pyslurm did.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini import layout, probe
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes
from tests import patience
from tests.contract.contract_world import LiveWorld, RecordedWorld, World, install_fake

ASSETS = Path(__file__).with_name("assets")
VERSIONS = sorted(path.name for path in ASSETS.iterdir())
PYSLURM = "-pyslurm"
LIVE = ("live", "live" + PYSLURM)
#: Set to write what the live cluster answers to assets/VERSION, for the recorded world.
RECORD_ENV = "GANDIVA_RECORD"
NODES = "v100:2x4"
#: Slurm's KillWait and some.
EMPTY_DEADLINE_S = 60.0


@pytest.fixture(scope="session")
def cluster() -> Iterator[MiniCluster]:
    """A mini cluster of this session's own: n1, n2 with 4 GPUs (16 slots), p1 plain; none of our daemons."""
    if why := layout.missing():
        pytest.skip(why)
    made = MiniCluster.up(MiniSpec(f"contract-{os.getpid()}", parse_nodes(NODES), daemons=False))
    # Slurm alone is asked here: without gandivad no task of a planned job would be bound, nor start.
    (made.at.etc / "plugstack.conf.d/gandiva.conf").unlink()
    yield made
    made.down()


@pytest.fixture(params=[*VERSIONS, *(pytest.param(name, marks=pytest.mark.cluster) for name in LIVE)])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """The world the test acts on."""
    test = _asset_name(request)
    back_end = "pyslurm" if request.param.endswith(PYSLURM) else "commands"
    if request.param not in LIVE:
        home = ASSETS / request.param / test
        for name, value in install_fake(home, tmp_path).items():
            monkeypatch.setenv(name, value)
        recorded = RecordedWorld(home, back_end)
        yield recorded
        await recorded.close()
        return
    live = LiveWorld(request.getfixturevalue("cluster"), back_end)
    yield live
    await live.close()
    _empty(live.cluster)
    if os.environ.get(RECORD_ENV):
        version = live.cluster.exec(["scontrol", "--version"]).stdout.split()[-1]
        suffix = PYSLURM if back_end == "pyslurm" else ""
        live.save(ASSETS / (".".join(version.split(".")[:2]) + suffix) / test)


def _empty(cluster: MiniCluster) -> None:
    """Cancel every job and wait until the nodes are free of them."""
    cluster.exec(["scancel", "--user=user1"])
    probe.wait_until(
        lambda: is_empty(cluster),
        "the last test's jobs to end",
        EMPTY_DEADLINE_S * patience.slowness(),
    )


def is_empty(cluster: MiniCluster) -> bool:
    """True when Slurm says that it has no jobs."""
    done = cluster.exec(["squeue", "--noheader"], check=False)
    return done.returncode == 0 and not done.stdout.strip()


def _asset_name(request: pytest.FixtureRequest) -> str:
    """The test's name, with its other parameters where it has some: test_x or test_x-well."""
    parameters = request.node.callspec.id.removeprefix(request.param)
    return f"{request.node.originalname}{parameters}"
