"""Two GPUs of two nodes for three users: by turns on a GPU and by moves between them their parts are even."""

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
TURN_MOVES, USERS = 18, ("user1", "user2", "user3")
#: In turns: when parts are looked at. Jobs are longer.
SOON, LAST = 8, 20


class Looking:
    """gandiva_fair, and the least part, of an even one, that a job has had when turns have gone by."""

    name, fits_memory = "looking", True

    def __init__(self, move_s: float, turns: tuple[int, ...]) -> None:
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
            self.least.append(len(USERS) * min(held) / sum(held))
        return self._policy.decide(view)


@pytest.mark.parametrize("move_s", [0.5, 2, 5])
def test_three_users_have_even_parts_over_some_turns(move_s: float) -> None:
    """Where nobody is moved one of them has a GPU alone, and the others three quarters of their parts."""
    jobs = [
        spec(n, length_s=LAST * TURN_MOVES * move_s, user=user, can_pack=False)
        for n, user in enumerate(USERS)
    ]
    looking = Looking(move_s, (SOON, LAST))
    world = SlurmWorld(looking.told, looking)
    costs = Costs(looking.told.switch_ns, looking.told.restart_ns, slots=4)
    simulate(Scene(jobs, Cluster([("v100", 1), ("v100", 1)]), Homogeneous(), costs), world)
    soon, later = looking.least
    assert soon > 0.9
    assert later > 0.95
