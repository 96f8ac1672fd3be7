"""Tickets of accounts and users, simulated: GPU time is what the tree entitles to; past use is paid off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gandiva_slurm.config import Config, MovesConfig
from gandiva_slurm.controller.settings import leader
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy import gandiva_fair, gandiva_market
from gandiva_slurm.policy.port import Cluster, Policy, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SlurmWorld
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.workloads.accounts import read_tree
from tests.sim.mixed import S, Watched
from tests.slow import soak

QUANTUM_S = 60
TREE = (
    Association("physics", "", "root", 2),
    Association("biology", "", "root", 1),
    Association("physics", "ann", "", 2),
    Association("physics", "ben", "", 1),
    Association("biology", "cat", "", 1),
)
ACCOUNTS = {"ann": "physics", "ben": "physics", "cat": "biology"}
Make = Callable[[PolicySettings], Policy]
both = pytest.mark.parametrize("make", [gandiva_fair.make, gandiva_market.make], ids=["fair", "market"])


def jobs(counts: dict[str, int], quanta: int, late_s: int = 0, late: str = "") -> list[Spec]:
    """So many one-GPU jobs of each user, nobody's ends early."""
    specs = [
        Spec(0, f"{user}{n}", user, 1, late_s * S if user == late else 0, length_ns=quanta * QUANTUM_S * S,
             account=ACCOUNTS[user])
        for user, count in counts.items()
        for n in range(count)
    ]  # fmt: skip
    specs.sort(key=lambda spec: spec.submit_ns)
    return [
        Spec(n, one.name, one.user, 1, one.submit_ns, one.length_ns, account=one.account)
        for n, one in enumerate(specs)
    ]


def play(
    specs: list[Spec], make: Make, tree: tuple[Association, ...] = (), half_life_s: int = 0
) -> tuple[Outcome, Watched]:
    """Nine GPUs."""
    told = PolicySettings(QUANTUM_S * S, associations=tree, half_life_ns=half_life_s * S)
    watched = Watched(make(told))
    scene = Scene(specs, Cluster([("v100", 3)] * 3), Homogeneous(), associations=tree, is_checked=True)
    return simulate(scene, watched), watched


@both
def test_accounts_share_then_their_users(make: Make) -> None:
    """Of 9 GPUs physics has 6, of which ann has 4; biology has 3."""
    _, watched = play(jobs(dict.fromkeys(ACCOUNTS, 20), 60), make, TREE)
    held = watched.gpu_s_until(50 * QUANTUM_S)
    assert held == pytest.approx({"ann": 4 * 3000, "ben": 2 * 3000, "cat": 3 * 3000}, abs=QUANTUM_S)


@both
def test_nobody_has_more_than_he_asks_for_and_the_rest_is_shared_on(make: Make) -> None:
    """cat asks for one GPU of three; the other two go to ann and ben as their tickets do, 2 to 1."""
    _, watched = play(jobs({"ann": 20, "ben": 20, "cat": 1}, 60), make, TREE)
    held = watched.gpu_s_until(50 * QUANTUM_S)
    assert held == pytest.approx({"ann": 16 / 3 * 3000, "ben": 8 / 3 * 3000, "cat": 3000}, abs=QUANTUM_S)


def test_the_result_tells_tickets_and_entitlement() -> None:
    """Everybody has jobs as he has tickets, so all end together but for a quantum or two."""
    outcome, _ = play(jobs({"ann": 8, "ben": 4, "cat": 6}, 60), gandiva_fair.make, TREE)
    users = outcome.summary()["users"]
    assert {user: told["tickets"] for user, told in users.items()} == {"ann": 178, "ben": 89, "cat": 133}
    assert {user: told["entitled"] for user, told in users.items()} == pytest.approx(
        {"ann": 4 / 9, "ben": 2 / 9, "cat": 3 / 9}, abs=1e-3
    )
    assert outcome.summary()["jain"] == pytest.approx(1, abs=1e-3)


@both
def test_who_used_much_before_gets_less_for_a_while(make: Make) -> None:
    """ann had all for an hour, and that is the half-life: her tickets are half of cat's, so 3 GPUs to 6."""
    specs = jobs({"ann": 20, "cat": 20}, 600, 3600, "cat")
    _, watched = play(specs, make, half_life_s=3600)
    shares = []
    for from_s in (3600, 3600 + 15 * 3600):
        begun, ended = watched.gpu_s_until(from_s), watched.gpu_s_until(from_s + 10 * QUANTUM_S)
        shares.append((ended["cat"] - begun.get("cat", 0)) / (10 * QUANTUM_S))
    assert shares == pytest.approx([6, 4.5], abs=0.15)


@soak("a minute of processor; the same without the engine is in make test")
def test_so_it_is_through_the_engine_as_gandiva_yaml_sets_it() -> None:
    """The same, decided by what gandivactld makes of the file, carried out by its engine."""
    told = {"cluster": "c", "partitions": ["p"], "controller": {"host": "h"}, "quantum_s": QUANTUM_S}
    config = Config(**told, moves=MovesConfig(cost_s=0), use_half_life_s=3600)
    specs = jobs({"ann": 20, "cat": 20}, 600, 3600, "cat")
    engine = SlurmWorld(PolicySettings(QUANTUM_S * S), leader(config).make())
    _, watched = play(specs, lambda settings: engine)
    begun, ended = watched.gpu_s_until(3600), watched.gpu_s_until(3600 + 10 * QUANTUM_S)
    assert (ended["cat"] - begun.get("cat", 0)) / (10 * QUANTUM_S) == pytest.approx(6, abs=0.3)


@both
def test_by_default_it_does_not_matter_who_used_much_before(make: Make) -> None:
    _, watched = play(jobs({"ann": 20, "cat": 20}, 300, 3600, "cat"), make)
    begun, ended = watched.gpu_s_until(3600), watched.gpu_s_until(3600 + 10 * QUANTUM_S)
    assert ended["cat"] - begun.get("cat", 0) == pytest.approx(4.5 * 10 * QUANTUM_S, abs=QUANTUM_S)


def test_the_tree_is_read_as_slurm_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.write_text(
        "Account|User|Par Name|Share\nroot|||1\nphysics||root|2\nphysics|ann||2\nphysics|ben||parent\n"
    )
    assert read_tree(path) == (
        Association("root", "", "", 1),
        Association("physics", "", "root", 2),
        Association("physics", "ann", "", 2),
        Association("physics", "ben", "", 1),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Account,User\n", ":1: has no column Share"),
        ("Account,User,Share\nphysics,ann,many\n", ":2: Share is 'many'; it takes a number"),
        ("Account,User,Share\n,ann,1\n", ":2: the line has no Account"),
        ("Account,User,Share\nphysics,,1\n", "no users in it"),
    ],
)
def test_a_wrong_tree_is_told(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "tree"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_tree(path)
