"""More users than GPUs: by turns on a GPU and by moves between GPUs their parts are even over some turns."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, Plan, View
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SlurmWorld
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.world import Costs
from tests.sim.mixed import settings
from tests.sim_scenes import S, spec

#: A job stays where it is for 18 times what its move costs.
TURN_MOVES = 18
#: In turns: when parts are looked at. Jobs are longer.
SOON, LAST = 4, 32


class Looking:
    """gandiva_fair, and the least part, of an even one, that a job has had when turns have gone by."""

    name, fits_memory = "looking", True

    def __init__(self, users: int, move_s: float, turns: tuple[int, ...]) -> None:
        self._users = users
        self.told = settings(1, 0.05, move_s)
        self._policy = gandiva_fair.make(self.told)
        self._moments = [round(turn * TURN_MOVES * move_s * S) for turn in turns]
        self._since_ns: int | None = None
        self.least: list[float] = []

    def decide(self, view: View) -> Plan:
        self._since_ns = view.now_ns if self._since_ns is None else self._since_ns
        while self._moments and view.now_ns - self._since_ns >= self._moments[0]:
            del self._moments[0]
            held = [job.held_ns for job in view.jobs.values()]
            self.least.append(self._users * min(held) / sum(held))
        return self._policy.decide(view)


@pytest.mark.parametrize(
    ("users", "nodes", "gpus", "move_s"),
    [(3, 2, 1, 0.5), (3, 2, 1, 5), (5, 3, 1, 2), (7, 1, 4, 2)],
)
def test_users_have_even_parts_over_some_turns(users: int, nodes: int, gpus: int, move_s: float) -> None:
    """Of three on two GPUs, one has a GPU alone for a turn, the others three quarters of their parts.

    A debt of a turn is longer than a quantum: levelled by the quantum it was forgiven, and parts differed by
    up to a fifth for good.
    """
    length_s = LAST * TURN_MOVES * move_s
    jobs = [spec(n, length_s=length_s, user=f"user{n}", can_pack=False) for n in range(users)]
    looking = Looking(users, move_s, (SOON, LAST))
    world = SlurmWorld(looking.told, looking)
    costs = Costs(looking.told.switch_ns, looking.told.restart_ns, slots=8)
    simulate(Scene(jobs, Cluster([("v100", gpus)] * nodes), Homogeneous(), costs), world)
    soon, later = looking.least
    assert soon > 0.92
    assert later > 0.97
