"""Virtual clusters under the policy `live`: each has what it would have alone, and borrows the rest."""

from __future__ import annotations

from gandiva_slurm.policy.port import Cluster, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.live import LivePolicy
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from tests.live_world import LiveWorld
from tests.sim_scenes import ends_s

S = 10**9
QUANTUM_NS = 60 * S
Row = tuple[str, str, int, float, float]

#: (virtual cluster, user, GPUs, submitted at, length): `a` asks for what its four GPUs hold, the others for
#: more. One each at the beginning: the deal is of three parts from then on.
FIRST: tuple[Row, ...] = (("a", "ann", 1, 0, 1), ("b", "cat", 1, 0, 1), ("", "dan", 1, 0, 1))
OWN: tuple[Row, ...] = (("a", "ann", 2, 100, 500), ("a", "ben", 2, 130, 300), ("a", "ann", 4, 900, 300))
USERS = ("cat", "dan", "eve")
OTHERS: tuple[Row, ...] = tuple((vc, user, 2, 5, 2000) for vc in ("b", "") for user in USERS * 4)


def ends(*rows: Row) -> list[float]:
    """When each ends on three nodes of four GPUs, a third of them each one's."""
    specs = [
        Spec(n, str(n), user, size, round(at_s * S), round(length_s * S), vc=vc)
        for n, (vc, user, size, at_s, length_s) in enumerate(sorted(rows, key=lambda row: row[3]))
    ]
    scene = Scene(specs, Cluster([("v100", 4)] * 3), Homogeneous(), is_checked=True)
    return ends_s(simulate(scene, LivePolicy(PolicySettings(QUANTUM_NS))))


def test_a_virtual_clusters_jobs_end_as_if_the_others_were_not_there() -> None:
    alone, mixed = ends(*FIRST, *OWN), ends(*FIRST, *OTHERS, *OWN)
    assert mixed[-3:] == alone[-3:]
    assert alone[-3:] == [600, 430, 1200]


def test_a_borrower_runs_until_the_owner_comes_and_goes_on_after_it() -> None:
    """A gang of two where `a` owns one GPU of three, and who names none has two."""
    world = LiveWorld(("v100", 3))
    gang = world.submit("ann", 2, vc="a")
    world.pass_time(1.5)
    assert world.plan.runs == {gang: (0, 1)}
    owner = world.submit("cat", 2)
    world.pass_time(0.1)
    assert world.plan.runs == {owner: (1, 2)}, "in the middle of a quantum"
    world.pass_time(3)
    assert world.plan.runs == {owner: (1, 2)}
    world.finish(owner)
    assert world.plan.runs == {gang: (0, 1)}
    assert world.tape.replay().first is None
