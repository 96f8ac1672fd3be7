"""Gangs over several nodes beside jobs of one: one book of passes does what the paper's split stride does.

The paper has a scheduler on each server for its own jobs, and a central one in which each server stands as
one aggregate job beside the gangs over several. `gandiva_fair` keeps one book for the whole cluster; on real
ones `slicing.central` does it for the nodes that such gangs join, and all others keep to themselves.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from tests.sim.mixed import S, Watched

QUANTUM_S, QUANTA, WIDTH = 60, 120, 4


def papers_split_stride(gangs: dict[str, int], small: int, nodes: int) -> dict[str, int]:
    """GPU quanta of gangs over all nodes, by tickets, and of small jobs with so many tickets in all.

    Every quantum, by pass: whoever finds all its servers free claims them, and pays size / tickets.
    """
    size = dict.fromkeys(gangs, nodes * WIDTH) | {f"s{n}": WIDTH for n in range(nodes)}
    tickets = {name: Fraction(own) for name, own in gangs.items()}
    tickets |= {f"s{n}": Fraction(small, nodes) for n in range(nodes)}
    servers = {name: {*range(nodes)} for name in gangs} | {f"s{n}": {n} for n in range(nodes)}
    passes = dict.fromkeys(size, Fraction(0))
    held = dict.fromkeys(size, 0)
    for _ in range(QUANTA):
        free = {*range(nodes)}
        for name in sorted(size, key=lambda name: (passes[name], -size[name], name)):
            if servers[name] <= free:
                free -= servers[name]
                passes[name] += size[name] / tickets[name]
                held[name] += size[name]
    return {name: held[name] for name in gangs} | {"small": sum(held[f"s{n}"] for n in range(nodes))}


def ours(gangs: dict[str, int], small: int, nodes: int, wide: int) -> dict[str, float]:
    """GPU quanta under gandiva_fair: a user a gang over `wide` nodes, one with jobs of one GPU for all."""
    length_ns = QUANTA * QUANTUM_S * S
    specs = [Spec(n, name, name, wide * WIDTH, 0, length_ns) for n, name in enumerate(gangs)]
    specs += [Spec(len(specs) + n, f"small{n}", "small", 1, 0, length_ns) for n in range(nodes * WIDTH)]
    watched = Watched(gandiva_fair.make(PolicySettings(QUANTUM_S * S, tickets=gangs | {"small": small})))
    cluster = Cluster([("v100", WIDTH)] * nodes)
    simulate(Scene(specs, cluster, Homogeneous(), tickets=gangs | {"small": small}, is_checked=True), watched)
    held = watched.gpu_s_until(QUANTA * QUANTUM_S)
    return {user: held.get(user, 0.0) / QUANTUM_S for user in (*gangs, "small")}


@pytest.mark.parametrize(
    ("gangs", "small"),
    [({"big": 1}, 1), ({"big": 2}, 1), ({"big": 1}, 3), ({"a": 1, "b": 1}, 1), ({"a": 1, "b": 2}, 3)],
)
@pytest.mark.parametrize("nodes", [2, 3])
def test_gangs_over_all_nodes_take_turns_as_in_the_papers_split_stride(
    gangs: dict[str, int], small: int, nodes: int
) -> None:
    """To one turn of the whole cluster."""
    want = papers_split_stride(gangs, small, nodes)
    assert ours(gangs, small, nodes, nodes) == pytest.approx(want, abs=nodes * WIDTH)


def test_a_gang_over_some_nodes_has_its_users_share_of_all() -> None:
    """Eight of twelve GPUs, half of the tickets: three quarters of the time; six GPUs are left in the mean.

    Among aggregates of servers the gang would have 0.6 of the time: the third gives way to nobody.
    """
    held = ours({"big": 1}, 1, nodes=3, wide=2)
    assert held == pytest.approx({"big": 6 * QUANTA, "small": 6 * QUANTA}, abs=8)
