"""Jobs on the move, and everything that can happen to them meanwhile, at every moment of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine.state import OWNER_HOLD_S, SECOND_NS, EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Requeue
from gandiva_slurm.model.ids import JobKey
from tests.fake_world import FakeWorld, Proc, ruled
from tests.slow import drawn

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
    "nothing",
)
STEPS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(TROUBLES)), max_size=10)


def a_crowded_world(at_once: int, gangs: list[tuple[int, int]]) -> FakeWorld:
    """Jobs (GPUs, nodes) everywhere; those of n2 and one GPU of n1 have just ended: much is to be gained."""
    short = {
        "quantum_ns": 5 * SECOND_NS,
        "min_run_ns": 60 * SECOND_NS,
        "move_deadline_ns": 30 * SECOND_NS,
        "restart_cost_ns": SECOND_NS,
    }
    world = ruled(
        {"n1": 2, "n2": 2, "n3": 1, "n4": 1},
        EngineSettings(slots_per_gpu=2, concurrent_moves=at_once, moves_per_hour=3, **short),
    )
    world.turns_away = 3
    world.types, world.rates = {"n3": "k80", "n4": "k80"}, {"v100": 3.0, "k80": 1.0}
    for n, (gpus, span) in enumerate(gangs):
        job_id = world.submit(f"user{n % 3 + 1}", gpus, span=span)
        world.jobs[job_id] = replace(world.jobs[job_id], name=f"model{n % 2}")
        if n % 2:  # who gains little by a fast GPU is exchanged
            world.own_rates[job_id] = {"v100": 1.2, "k80": 1.0}
        world.cycle()
    world.run(70, dt_s=5)
    for job_id, record in [*world.engine.jobs.items()]:
        if record.nodes == ("n2",) or (record.nodes == ("n1",) and 1 in record.places["n1"]):
            world.finish(job_id)
    return world


def happen(world: FakeWorld, what: str) -> None:
    """One trouble, to a job on the move if there is one."""
    job_id = min(world.moving() or world.running(), default=0)
    record = world.engine.jobs.get(job_id)
    job = world.jobs.get(job_id)
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
        world.submit("user2", 1)
    elif record is not None and job is not None:
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
    """All is well again; who is held is released; the long cycles to come are time to leave in."""
    world.engine.settings = replace(world.engine.settings, move_deadline_ns=400 * SECOND_NS)
    for what in ("requeues done", "starts done", "all talk", "nodes up"):
        happen(world, what)
    world.saves_badly = set()
    for job_id, job in world.jobs.items():
        if job.eligible_s == OWNER_HOLD_S:
            world.jobs[job_id] = replace(job, eligible_s=0)


@given(
    at_once=st.integers(1, 3),
    gangs=st.lists(st.sampled_from(((1, 1), (1, 1), (2, 1), (2, 2), (4, 2))), min_size=4, max_size=12),
    steps=STEPS,
)
@settings(max_examples=drawn(40), suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_whatever_happens_to_jobs_on_the_move(
    at_once: int, gangs: list[tuple[int, int]], steps: list[tuple[int, str]]
) -> None:
    """The world checks the invariants and the budgets after each cycle."""
    world = a_crowded_world(at_once, gangs)
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
    world.settle()
    for record in world.engine.jobs.values():
        is_waiting = record.state == states.HELD and record.code in ("NoFreeSlots", "HeldByUser")
        assert record.state in (states.ENDED, *states.SLICED) or is_waiting, record.told()
        assert record.state == states.ENDED or (not record.target and not record.travels.is_moving)


@given(tickets=st.lists(st.sampled_from((1, 10, 100, 1000)), min_size=2, max_size=10), gpus=st.data())
@settings(max_examples=drawn(20), suppress_health_check=[HealthCheck.too_slow])
def test_moves_come_to_an_end(tickets: list[int], gpus: st.DataObject) -> None:
    """However tickets and gangs lie: with nothing new nobody moves for ever."""
    short = {"quantum_ns": 5 * SECOND_NS, "min_run_ns": 60 * SECOND_NS, "restart_cost_ns": SECOND_NS}
    many = EngineSettings(concurrent_moves=4, moves_per_hour=1000, slots_per_gpu=8, **short)
    world = ruled({"n1": 2, "n2": 2, "n3": 4, "n4": 4}, many)
    world.types, world.rates = {"n3": "k80", "n4": "k80"}, {"v100": 3.0, "k80": 1.0}
    for n, worth in enumerate(tickets):
        size = gpus.draw(st.sampled_from((1, 1, 2)))
        nodes = gpus.draw(st.sampled_from((("n1",), ("n1",), ("n2",), ("n3",), ("n1", "n2"), ("n3", "n4"))))
        span = len(nodes)
        job_id = world.submit(f"user{n % 3 + 1}", size * span, tickets=worth, span=span)
        gain = gpus.draw(st.sampled_from((0.8, 1.2, 3.0, 8.0)))
        world.own_rates[job_id] = {"v100": gain, "k80": 1.0}
        world.jobs[job_id] = replace(world.jobs[job_id], name=f"model{gain}")
        world.jobs[job_id] = replace(
            world.jobs[job_id], state="RUNNING", nodes=nodes, start_s=world.now_ns // SECOND_NS
        )
        for node in nodes:
            world.procs[node, JobKey(job_id, 0)] = Proc(tuple(range(size)))
        world.cycle()
    moved = [type(action) for action in world.run(3 * 3600, dt_s=20)].count(Requeue)
    event(f"moves: {moved}")
    assert moved <= 3 * len(tickets)
    assert world.run(2 * 3600, dt_s=40) == []
