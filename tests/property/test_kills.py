"""kill -9 in mid-everything, by a seed, on a small Slurm: nothing is lost, no GPU is planned twice.

A busy cluster: more jobs than slots, cheap moves, elastic jobs, pairs that gain by sharing a GPU, jobs that
come and end. The controller dies in mid-cycle, before what it decided was done or before it heard of that;
a node's daemon falls silent; slurmctld is away; another policy takes over. `KilledWorld` looks after each
cycle that invariants hold, and that Slurm and the engine know the same jobs. In the end all have turns, and
the journal is decided again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.state.records import SECOND_NS, EngineSettings, JobRecord
from gandiva_slurm.model.job import ENDED
from gandiva_slurm.policy.port import Policy, PolicySettings
from gandiva_slurm.policy.registry import make_policy
from tests.killed_world import KilledWorld
from tests.slow import slow, soaked
from tests.tape import Tape

NODES = {"n0": 2, "n1": 2, "n2": 4}
QUANTUM_S, MOVE_S = 10, 1
OURS, OTHERS = "gandiva_fair", ("gandiva", "tiresias", "gandiva_fair")
STRIKES, JOBS = 40, 20


def is_resized(record: JobRecord) -> bool:
    """True for a job on its way to another number of GPUs than it has."""
    has, wants = (sum(map(len, each.values())) for each in (record.places, record.target))
    return bool(has and wants and has != wants)


class Chaos:
    """A busy cluster, and what is done to it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.met: Counter[str] = Counter()
        settings = EngineSettings(QUANTUM_S * SECOND_NS, slots_per_gpu=2, move_deadline_ns=60 * SECOND_NS)
        self.world = KilledWorld(dict(NODES), settings, make_policy=self.maker(OURS))
        self.world.told_of_policy = {"policy": OURS}
        self.world.restart_controller(keep_journal=False)
        self.world.rates, self.world.packed_rate = {"v100": 3.0}, 2.5
        self.tape = Tape(lambda told: Leader(self.maker(told["policy"]), told))
        self.world.handle = self.tape.handle
        for _ in range(JOBS):
            self.submit()
        self.world.run(60)

    def maker(self, name: str) -> Callable[[], Policy]:
        """What makes a policy to which moves cost little."""
        told = PolicySettings(QUANTUM_S * SECOND_NS, restart_ns=MOVE_S * SECOND_NS)
        return lambda: make_policy(name, told)[0]

    def submit(self) -> None:
        """Jobs of three users, some of several GPUs, some elastic."""
        kind = self.draw.choice(("single", "single", "single", "pair", "elastic"))
        user = f"user{self.draw.randint(1, 3)}"
        if kind == "elastic":
            self.world.submit(user, 1, elastic="1-2")
        else:
            self.world.submit(user, 2 if kind == "pair" else 1)

    def note(self) -> None:
        """Count in the midst of what the next blow comes."""
        state = self.world.engine.state
        codes = Counter(record.code for record in state.jobs.values())
        self.met["move"] += any(record.travels.is_moving for record in state.jobs.values())
        self.met["resize"] += any(is_resized(record) for record in state.jobs.values())
        self.met["pack"] += bool(state.packs)
        self.met["turn without residency"] += bool(codes["MakingWay"] + codes["MadeWay"])
        self.met["start"] += any(record.state == "STARTING" for record in state.jobs.values())

    def strike(self) -> None:
        """Let some cycles pass, then something dies."""
        self.world.run(self.draw.randint(1, 6))
        blow = self.draw.choice((self.controller, self.controller, self.daemon, self.slurm, self.reload))
        blow()
        if self.draw.random() < 0.3:
            self.come_and_go()

    def controller(self) -> None:
        self.world.cycle_cut_short(self.draw.choice((0.2, 1.0)), self.draw.choice((True, False)), self.note)

    def daemon(self) -> None:
        """It is silent for a while; what runs there goes on."""
        self.note()
        name = self.draw.choice([*NODES])
        self.world.mute.add(name)
        self.world.run(self.draw.randint(1, 8))
        self.world.mute.discard(name)

    def slurm(self) -> None:
        self.note()
        for _ in range(self.draw.randint(1, 5)):
            self.world.cycle_without_slurm(self.draw.choice((1.0, 5.0)))

    def reload(self) -> None:
        """Another policy, perhaps in the very cycle in which the controller dies."""
        self.lead(self.draw.choice(OTHERS))
        if self.draw.random() < 0.5:
            self.met["reload"] += 1
            self.controller()

    def lead(self, name: str) -> None:
        self.world.make_policy, self.world.told_of_policy = self.maker(name), {"policy": name}
        self.world.engine.lead(self.world.leader())

    def ebb(self) -> None:
        """Nearly all end: elastic jobs grow, and shrink when others come."""
        elastic = [job_id for job_id in self.world.running() if self.world.jobs[job_id].options.elastic]
        for job_id in self.world.jobs.keys() - {*elastic[:3]}:
            self.world.finish(job_id, "CANCELLED")
        self.strike_at_a_resize()
        for _ in range(JOBS // 2):
            self.submit()
        self.strike_at_a_resize()

    def strike_at_a_resize(self) -> None:
        """Or after a while, if there is none."""
        for _ in range(200):
            if any(is_resized(record) for record in self.world.engine.jobs.values()):
                break
            self.world.cycle()
        self.controller()

    def come_and_go(self) -> None:
        """One ends, another comes; now and then somebody requeues one."""
        running = self.world.running()
        if running and self.draw.random() < 0.2:
            return self.ebb()
        if running:
            (self.world.finish if self.draw.random() < 0.7 else self.world.requeue)(self.draw.choice(running))
        self.submit()


def survives(seed: int) -> Counter[str]:
    """Strike again and again; then all have turns, and the journal says so. Returns what was met."""
    chaos = Chaos(seed)
    for _ in range(STRIKES):
        chaos.strike()
    world = chaos.world
    chaos.lead(OURS)
    world.run(120)
    records = {job_id: record for job_id, record in world.engine.jobs.items() if record.state != ENDED}
    assert records.keys() == world.jobs.keys()
    before = {job_id: record.held_ns for job_id, record in records.items()}
    world.run(1200)
    for job_id, record in records.items():
        assert world.engine.jobs[job_id].held_ns > before[job_id], f"no turn: {record.told()}"
    first = chaos.tape.replay().first
    assert first is None, first
    return chaos.met


@slow("7 s of processor a seed; the one below is in make test")
@pytest.mark.parametrize("seed", [1, *(soaked(seed, why="one more seed") for seed in range(2, 13))])
def test_kills_in_mid_everything_lose_nothing(seed: int) -> None:
    survives(seed)


def test_kills_come_in_the_midst_of_everything() -> None:
    """Nothing is lost here either, and the test above shows much."""
    met = survives(0)
    assert {*met} == {"move", "resize", "pack", "turn without residency", "start", "reload"}
    assert min(met.values()) >= 2, met
