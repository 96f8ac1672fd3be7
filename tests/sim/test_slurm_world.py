"""`--world slurm`: a policy's plans through the engine of the daemons, in virtual time."""

from __future__ import annotations

import pytest

from gandiva_slurm.engine.state.records import Placement
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import OPPORTUNISTIC, Cluster, PolicySettings
from gandiva_slurm.sim.faults import Fault
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_nodes import Nodes
from gandiva_slurm.sim.slurm_world import SlurmWorld
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.world import Costs, PolicyError
from tests.slurm_world import QUANTUM_NS, SmallWorld

S = 10**9


def scene(cluster: Cluster, *jobs: tuple[str, int, float, float], **more: object) -> Scene:
    """Jobs of (user, GPUs, submitted at, length), in seconds."""
    specs = [
        Spec(n, str(n), user, size, round(at_s * S), round(length_s * S))
        for n, (user, size, at_s, length_s) in enumerate(jobs)
    ]
    return Scene(specs, cluster, Homogeneous(), is_checked=True, **more)  # type: ignore[arg-type]


def run(it: Scene, slurm_ns: int = 0) -> dict[str, object]:
    settings = PolicySettings(QUANTUM_NS)
    policy = SlurmWorld(settings, gandiva_fair.make(settings), slurm_ns=slurm_ns)
    return simulate(it, policy).summary()


def test_a_job_alone_ends_as_if_it_were_alone() -> None:
    summary = run(scene(Cluster([("v100", 4)]), ("ann", 2, 7, 100)))
    assert summary["avg_jct_s"] == pytest.approx(100) and summary["suspends"] == 0


def test_a_start_takes_slurm_its_time_and_nobody_holds_the_gpus_meanwhile() -> None:
    summary = run(scene(Cluster([("v100", 4)]), ("ann", 2, 7, 100)), slurm_ns=3 * S)
    assert summary["avg_jct_s"] == pytest.approx(103) and summary["held_gpu_s"] == pytest.approx(200)
    assert summary["avg_queue_s"] == pytest.approx(3)


def test_one_that_loads_cannot_be_parked_and_others_wait_for_its_gpus() -> None:
    def plan(first: bool) -> dict[str, tuple[Placement, ...]]:
        one = Placement(JobKey(1, 0), "ann", 1, (0, 1), 1000, 1, "a", is_on=first)
        other = Placement(JobKey(2, 0), "bob", 1, (1,), 1000, 2, "b", is_on=not first)
        return {"n1": (one, other)}

    nodes, load_ns = Nodes(), 5 * S
    nodes.follow(plan(True))
    nodes.obey(load_ns)
    assert nodes.on == {JobKey(1, 0)}
    for now_s, want, rest_s in ((2, JobKey(1, 0), 3), (4, JobKey(1, 0), 1), (5, JobKey(2, 0), None)):
        nodes.charge(now_s * S)
        nodes.follow(plan(False))
        nodes.obey(load_ns)
        assert nodes.on == {want}
        assert nodes.loaded_ns == (None if rest_s is None else rest_s * S)


def test_two_users_take_turns_on_a_gpu_and_pay_for_each_turn() -> None:
    it = scene(Cluster([("v100", 1)]), ("ann", 1, 0, 600), ("bob", 1, 0, 600), costs=Costs(switch_ns=2 * S))
    summary = run(it)
    assert 16 <= int(str(summary["resumes"])) <= 20
    assert summary["makespan_s"] == pytest.approx(1200 + 2 * float(str(summary["resumes"])), abs=2.1)


def test_a_gang_over_nodes_beside_gangs_of_one() -> None:
    world = SmallWorld(("v100", 4), ("v100", 4))
    world.submit("ann", 8)
    for _ in range(2):
        world.submit("bob", 4)
    world.pass_time(2)
    before = world.got()
    world.pass_time(60)
    for user in ("ann", "bob"):
        assert world.got()[user] - before[user] == pytest.approx(240, abs=8)


def test_a_gang_that_fits_on_no_nodes_is_left_with_a_reason() -> None:
    with pytest.raises(PolicyError, match="gandiva_fair leaves 1 jobs waiting for ever"):
        run(scene(Cluster([("v100", 4)]), ("ann", 8, 0, 10)))
    world = SmallWorld(("v100", 4))
    world.submit("ann", 8)
    assert world.plan.notes == {0: "asks for 8 GPUs on a node, the largest that may take it has 4"}


def test_a_node_that_fails_has_its_job_started_elsewhere() -> None:
    cluster = Cluster([("v100", 4), ("v100", 4)])
    faults = [Fault(50 * S, 0, True), Fault(500 * S, 0, False)]
    it = scene(cluster, ("ann", 4, 0, 100), costs=Costs(restart_ns=8 * S), faults=faults)
    summary = run(it)
    assert summary["avg_jct_s"] == pytest.approx(110, abs=0.5), "2 s until it is placed anew, 8 to restore"
    assert summary["resumes"] == 1


def test_a_node_that_is_down_from_the_beginning_is_shown_as_slurm_shows_it() -> None:
    """When it returns the policy goes on with what it knows, in a replay as well."""
    world = SmallWorld(("v100", 2), ("v100", 2))
    world.set_down(0, True)
    world.finish(world.submit(vc="x"))
    world.set_down(0, False)
    world.pass_time(1)
    world.submit(size=4, vc="x")
    world.pass_time(3)
    assert len(world.plan.runs) == 1
    assert world.tape.replay().first is None


@pytest.mark.parametrize("restart_ns", [0, 8 * S])
def test_a_move_is_known_to_cost_what_it_costs(restart_ns: int) -> None:
    """The engine looks once a quantum: what it measures itself would be a quantum or more."""
    world = SmallWorld(("v100", 1), ("v100", 1), restart_ns=restart_ns)
    for user in ("ann", "bob", "cyd"):
        world.submit(user, model="a")
    world.pass_time(40)
    moved = [job.travels for job in world.policy.engine.jobs.values() if job.travels.moved_ns]
    assert moved and {travels.cost_ns for travels in moved} == {restart_ns}
    assert world.policy._policy._pace.restart_ns == restart_ns  # type: ignore[attr-defined]


def test_more_jobs_than_slots_wait_and_come_later() -> None:
    jobs = [("ann", 1, 0.0, 100.0)] * 9
    summary = run(scene(Cluster([("v100", 1)]), *jobs))
    assert summary["finished"] == 9 and summary["makespan_s"] == pytest.approx(900, abs=5)


def test_two_that_gain_by_it_share_a_gpu_and_two_that_lose_do_not() -> None:
    for models, want in ((("a", "b"), 2), (("a", "a"), 1)):
        world = SmallWorld(("v100", 1))
        jobs = [world.submit(f"user{n}", model=model) for n, model in enumerate(models)]
        at_once = []
        for _ in range(30):
            world.pass_time(1)
            at_once.append(len(world.plan.runs))
        assert 2 in at_once[:10], "it is tried"
        assert set(at_once[10:]) == {want}
        assert world.got()["user0"] == pytest.approx(world.got()["user1"], abs=1.5)
        assert world.tape.replay().first is None
        world.finish(jobs[0])
        assert len(world.plan.runs) == 1


def test_what_was_learnt_of_a_model_serves_jobs_of_other_users_that_come_later() -> None:
    world = SmallWorld(("v100", 1))
    first = [world.submit(f"user{n}", model="a") for n in range(2)]
    world.pass_time(10)
    at_once = []
    world.submit("user2", model="a")
    for _ in range(20):
        world.pass_time(1)
        at_once.append(len(world.plan.runs))
    world.finish(first[0])
    world.pass_time(2)
    assert set(at_once) == {1}, "two of that model have been tried"
    assert world.policy.counts["packs_tried"] == 1
    assert world.tape.replay().first is None


def test_what_is_told_to_leave_has_saved_itself_and_stays_off() -> None:
    def plan(leaves: bool) -> dict[str, tuple[Placement, ...]]:
        one = Placement(JobKey(1, 0), "ann", 1, (0,), 1000, 1, "a", is_leaving=leaves, is_on=True)
        return {"n1": (one, Placement(JobKey(2, 0), "bob", 1, (1,), 1000, 2, "b", is_on=True))}

    nodes, both = Nodes(), {JobKey(1, 0), JobKey(2, 0)}
    nodes.follow(plan(False))
    nodes.obey()
    assert nodes.on == both
    nodes.follow(plan(True))
    nodes.obey()
    assert (nodes.on, nodes.left) == ({JobKey(2, 0)}, {JobKey(1, 0)})
    nodes.follow(plan(False))
    nodes.obey()
    assert (nodes.on, nodes.left) == (both, set())


def test_a_guaranteed_job_has_an_opportunistic_ones_gpu_at_once_and_gives_it_back() -> None:
    world = SmallWorld(("v100", 1))
    first = world.submit("ann", job_class=OPPORTUNISTIC)
    world.pass_time(1.5)
    assert list(world.plan.runs) == [first]
    second = world.submit("ben")
    world.pass_time(0.1)
    assert list(world.plan.runs) == [second], "in the middle of a quantum"
    world.pass_time(3)
    assert list(world.plan.runs) == [second]
    world.finish(second)
    world.pass_time(0.1)
    assert list(world.plan.runs) == [first]
    assert world.tape.replay().first is None


def test_a_borrower_runs_until_the_owner_comes_and_goes_on_after_it() -> None:
    """A gang of two where `a` owns one GPU of three, and jobs that name none have two."""
    world = SmallWorld(("v100", 3))
    gang = world.submit("ann", 2, vc="a")
    world.pass_time(1.5)
    assert list(world.plan.runs) == [gang]
    owner = world.submit("cat", 2)
    world.pass_time(0.6)
    assert list(world.plan.runs) == [owner], "from the next quantum on"
    world.pass_time(3)
    assert list(world.plan.runs) == [owner]
    world.finish(owner)
    world.pass_time(0.1)
    assert list(world.plan.runs) == [gang]
    assert world.tape.replay().first is None
