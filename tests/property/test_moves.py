"""Jobs on the move, elastic ones among them, and everything that can happen to them meanwhile."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine.state.records import OWNER_HOLD_S, SECOND_NS, EngineSettings
from gandiva_slurm.engine.state.sizes import is_elastic
from tests.fake_world import FakeWorld
from tests.slow import DRAWN, drawn

TROUBLES = (
    "cancel",
    "owner requeues",
    "owner holds",
    "home down",
    "target down",
    "nodes up",
    "restart",
    "forget",
    "saves badly",
    "saves well",
    "requeues refused",
    "requeues done",
    "starts refused",
    "starts done",
    "home silent",
    "all talk",
    "newcomers",
    "one size",
    "any size",
    "an end",
    "nothing",
)
STEPS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(TROUBLES)), max_size=10)
#: GPUs, nodes, what of it is elastic.
RIGID = ((1, 1, ""), (1, 1, ""), (2, 1, ""), (2, 2, ""), (4, 2, ""))
JOBS = (*RIGID, (1, 1, "1-2"), (2, 1, "1-2"), (2, 1, "1-4"))


def a_crowded_world(jobs: list[tuple[int, int, str]]) -> FakeWorld:
    """More jobs than there is room for, on GPUs of two types."""
    told = EngineSettings(5 * SECOND_NS, slots_per_gpu=2, move_deadline_ns=30 * SECOND_NS)
    world = FakeWorld({"n1": 2, "n2": 2, "n3": 1, "n4": 1}, told, move_ns=SECOND_NS)
    world.turns_away = 3
    world.types, world.rates = {"n3": "k80", "n4": "k80"}, {"v100": 3.0, "k80": 1.0}
    for n, (gpus, span, elastic) in enumerate(jobs):
        most = 2 if elastic == "1-4" else 1  # it may grow over two nodes
        job_id = world.submit(f"user{n % 3 + 1}", gpus, span=span, elastic=elastic, max_nodes=most)
        world.jobs[job_id] = replace(world.jobs[job_id], name=f"model{n % 2}")
        world.cycle()
    world.run(70, dt_s=5)
    return world


def happen(world: FakeWorld, what: str) -> None:
    """One trouble, to a job on the move if there is one."""
    job_id = min(world.moving() or world.running(), default=0)
    if what in ("restart", "forget"):
        world.restart_controller(what == "restart")
    elif what in ("requeues refused", "requeues done"):
        world.refuse_requeues = what == "requeues refused"
    elif what in ("starts refused", "starts done"):
        world.refuse_starts = what == "starts refused"
    elif what == "all talk":
        world.mute = set()
    elif what == "nodes up":
        for name in sorted(world.down):
            world.restore_node(name)
    elif what == "newcomers":
        world.submit("user1", 2)
        world.submit("user2", 1, elastic="1-2")
    elif what in ("one size", "any size"):
        known = world.engine.jobs  # it may have forgotten all in this moment
        elastic = {each for each in world.running() if each in known and is_elastic(known[each])}
        world.one_size = elastic if what == "one size" else set()
    elif what == "an end" and world.running():
        world.finish(world.running()[-1])
    elif job_id in world.engine.jobs and job_id in world.jobs:
        happen_to(world, job_id, what)


def happen_to(world: FakeWorld, job_id: int, what: str) -> None:
    """One trouble, to this job."""
    record, job = world.engine.jobs[job_id], world.jobs[job_id]
    if what == "cancel":
        world.finish(job_id, "CANCELLED")
    elif what == "owner requeues" and job.state == "RUNNING":
        world.requeue(job_id)
    elif what == "owner holds" and job.state == "PENDING":
        world.jobs[job_id] = replace(job, eligible_s=OWNER_HOLD_S, priority=0)
    elif what == "home down":
        for name in record.nodes:
            world.lose_node(name)
    elif what == "target down":
        for name in record.target:
            world.lose_node(name)
    elif what == "home silent":
        world.mute |= set(record.nodes)
    elif what in ("saves badly", "saves well"):
        (world.saves_badly.add if what == "saves badly" else world.saves_badly.discard)(job_id)


def heal(world: FakeWorld) -> None:
    """All is well again; jobs that are held are released; the long cycles to come are time to leave in."""
    world.engine.settings = replace(world.engine.settings, move_deadline_ns=400 * SECOND_NS)
    for what in ("requeues done", "starts done", "all talk", "nodes up", "any size"):
        happen(world, what)
    world.saves_badly, world.turns_away = set(), 0
    for job_id, job in world.jobs.items():
        if job.eligible_s == OWNER_HOLD_S:
            world.jobs[job_id] = replace(job, eligible_s=0)


@given(jobs=st.lists(st.sampled_from(JOBS), min_size=4, max_size=12), steps=STEPS)
@DRAWN
@settings(max_examples=drawn(40), suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_whatever_happens_to_jobs_on_the_move(
    jobs: list[tuple[int, int, str]], steps: list[tuple[int, str]]
) -> None:
    """The world checks after each cycle: sizes, Slurm's number of GPUs, slots, no job lost."""
    world = a_crowded_world(jobs)
    for wait, what in steps:
        for _ in range(60):
            if world.moving():
                break
            world.cycle(5)
        world.run(wait)
        spans = [job_id for job_id in world.moving() if world.engine.jobs[job_id].options.nodes > 1]
        event(f"{what}, moving: {bool(world.moving())}, over nodes: {bool(spans)}")
        happen(world, what)
    heal(world)
    world.run(1200, dt_s=20)
    stuck = [job_id for job_id in world.jobs if not world.engine.jobs[job_id].code]
    assert stuck == []
