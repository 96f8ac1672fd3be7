"""A policy's plan made true by the engine, and what policies are shown of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.invariants import violations
from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.model.event import ClassAsked, PriorityAsked
from gandiva_slurm.policy.port import GUARANTEED, OPPORTUNISTIC, Plan, View
from tests.builders import SECOND_NS
from tests.led_world import Led, Says, led


def test_a_job_starts_where_it_is_planned_and_is_parked_when_it_is_not() -> None:
    world = led({"a": 2, "b": 2})
    one, two = world.submit(), world.submit(gpus=2)
    world.plan({one: (1,), two: (2, 3)})
    assert world.engine.jobs[one].places == {"a": (1,)} and world.engine.jobs[two].places == {"b": (0, 1)}
    assert world.on(one) and world.on(two)
    world.plan({two: (2, 3)})
    assert not world.on(one) and world.state_of(one) == states.SUSPENDED and world.on(two)


def test_what_could_not_be_started_holds_nothing_though_slurm_is_not_heard() -> None:
    """Without Slurm there is no decision; outcomes of starts come all the same."""
    world = led({"a": 1})
    job = world.submit()
    world.refuse_starts = True
    world.plan({job: (0,)}, cycles=1)
    assert world.state_of(job) == states.STARTING
    world.engine.handle(world.outcomes, world.now_ns)
    assert world.state_of(job) == states.HELD and violations(world.engine) == []


def test_jobs_that_are_not_planned_wait_and_are_told_so() -> None:
    world = led({"a": 2})
    job = world.submit()
    world.plan({})
    assert (world.state_of(job), world.code_of(job)) == (states.HELD, "WaitingTurn")


def test_a_job_that_is_planned_elsewhere_saves_itself_and_goes_on_there() -> None:
    world = led({"a": 1, "b": 1})
    job = world.submit()
    world.plan({job: (0,)})
    world.plan({job: (1,)}, cycles=1)
    assert world.state_of(job) == states.CHECKPOINTING and world.engine.jobs[job].target == {"b": (0,)}
    world.run(8)
    assert world.engine.jobs[job].places == {"b": (0,)} and world.jobs[job].restart == 1 and world.on(job)
    assert 0 < world.says.views[-1].jobs[job].restart_ns < 8 * SECOND_NS, "what that took is told"


def test_the_job_parked_longest_makes_way_for_one_that_comes() -> None:
    world = led({"a": 1}, slots=2)
    old, older, comer = (world.submit() for _ in range(3))
    world.plan({older: (0,)})
    world.plan({old: (0,)})
    world.plan({comer: (0,)}, cycles=10)
    assert world.engine.jobs[comer].places == {"a": (0,)} and world.on(comer)
    assert (world.state_of(older), world.jobs[older].restart) == (states.HELD, 1)
    assert world.state_of(old) == states.SUSPENDED and world.jobs[old].restart == 0


def test_the_last_of_a_user_on_a_gpu_makes_way_after_the_others() -> None:
    world = led({"a": 1}, slots=3)
    oldest, old, young = world.submit("user1"), world.submit("user2"), world.submit("user2")
    for job in (oldest, old, young):
        world.plan({job: (0,)})
    comer = world.submit("user3")
    world.plan({comer: (0,)}, cycles=10)
    assert world.engine.jobs[comer].places == {"a": (0,)}
    assert [world.jobs[job].restart for job in (oldest, old, young)] == [0, 1, 0]


def test_a_job_comes_when_one_that_cannot_be_saved_has_ended() -> None:
    world = led({"a": 1}, slots=1)
    stays = world.submit()
    world.rigid.add(stays)
    world.plan({stays: (0,)})
    comer = world.submit()
    world.plan({comer: (0,)}, cycles=10)
    assert (world.state_of(comer), world.code_of(comer)) == (states.HELD, "NoRoomYet")
    assert world.state_of(stays) == states.SUSPENDED
    world.finish(stays)
    world.run(6)
    assert world.on(comer)


def test_two_change_places_though_both_gpus_are_full() -> None:
    world = led({"a": 1, "b": 1}, slots=1)
    one, two = world.submit(), world.submit()
    world.plan({one: (0,), two: (1,)})
    world.plan({one: (1,), two: (0,)}, cycles=12)
    assert world.engine.jobs[one].places == {"b": (0,)} and world.engine.jobs[two].places == {"a": (0,)}
    assert world.jobs[one].restart == world.jobs[two].restart == 1, "and nobody else had to leave"


def test_host_memory_makes_jobs_leave_as_slots_do() -> None:
    world = led({"a": 2}, slots=4)
    big, comer = world.submit(memory_mib=200_000), world.submit(memory_mib=200_000)
    world.plan({big: (0,)})
    world.plan({comer: (1,)}, cycles=10)
    assert world.on(comer) and world.state_of(big) == states.HELD


def twice(view: View) -> Plan:
    first, second, third = view.jobs
    return Plan({first: (0,), second: (0,), third: (0,)})


def raises(view: View) -> Plan:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (twice, "puts job 1 on GPUs [0]: two jobs may share all their GPUs, not more jobs"),
        (lambda view: Plan({99: (0,)}), "puts job 99 on GPUs [0]: there is no such live job"),
        (lambda view: Plan({1: (0, 1)}), "puts job 1 on GPUs [0, 1]: it takes 1 GPUs"),
        (lambda view: Plan({1: (7,)}), "puts job 1 on GPUs [7]: GPUs are distinct, in order, 0..1"),
        (lambda view: Plan({}, view.now_ns), "asks to be asked again at once"),
        (raises, "fails: ValueError: no idea"),
        (lambda view: None, "policy says answers NoneType, not a plan"),
    ],
)
def test_a_bad_plan_is_refused_and_the_last_good_one_stays(
    answer: Callable[[View], Plan], fault: str
) -> None:
    world = led({"a": 2})
    jobs = [world.submit() for _ in range(3)]
    world.plan({jobs[0]: (0,), jobs[1]: (1,)})
    good, world.says.answer = world.says.answer, answer
    world.run(5)
    assert world.engine.decider is not None and fault in world.engine.decider.fault
    assert world.on(jobs[0]) and world.on(jobs[1]), "the cluster goes on"
    world.says.answer = good
    world.run(2)
    assert world.engine.decider.fault == ""


def test_what_a_policy_is_shown() -> None:
    world = led({"a": 2, "b": 1, "c": 1})
    world.types = {"c": "k80"}
    fixed, moves, gang = world.submit(), world.submit(), world.submit(gpus=2, span=2)
    world.submit(types=("h100",))
    held = world.submit(user_hold=True)
    world.rigid.add(fixed)
    world.plan({fixed: (0,), moves: (1,)})
    world.plan({fixed: (0,), moves: (2,)}, cycles=1)
    world.cycle()
    view = world.says.views[-1]
    assert view.cluster.counts == {"v100": 3, "k80": 1} and view.slots == 2
    assert view.jobs.keys() == {fixed, moves, gang}, f"{held} is held, no node has an h100"
    assert (view.jobs[fixed].gpus, view.jobs[fixed].can_migrate) == ((0,), False)
    assert (view.jobs[moves].gpus, view.jobs[moves].can_migrate) == ((2,), False), "on its way there"
    assert (view.jobs[gang].gpus, view.jobs[gang].nodes, view.jobs[gang].cell) == ((), 2, "")
    assert view.jobs[gang].gpu_types == ("v100",), "there is one node of the other type"
    assert view.jobs[fixed].cell == "node" and view.jobs[fixed].held_ns >= 5 * SECOND_NS


def test_nodes_that_are_closed_are_no_place_but_for_jobs_that_live_there() -> None:
    world = led({"a": 1, "b": 1})
    one, two = world.submit(), world.submit()
    world.plan({one: (0,)})
    world.mute.add("a")
    world.run(2)
    view = world.says.views[-1]
    assert (view.jobs[one].hosts, view.jobs[two].hosts) == (frozenset({0, 1}), frozenset({1}))
    world.mute.clear()
    world.run(2)
    assert world.says.views[-1].jobs[two].hosts is None


def test_a_job_that_has_left_may_use_the_node_it_goes_to_though_that_takes_no_others_now() -> None:
    world = led({"a": 1, "b": 1, "c": 1})
    world.refuse_requeues = True
    job = world.submit()
    world.plan({job: (0,)})
    world.plan({job: (1,)}, cycles=3)
    assert world.code_of(job) == "Saved"
    world.mute.add("b")
    world.run(3)
    view = world.says.views[-1]
    assert (view.jobs[job].gpus, view.jobs[job].hosts) == ((1,), frozenset({0, 1, 2}))
    assert world.engine.decider is not None and world.engine.decider.fault == ""


def test_a_grown_job_that_cannot_be_saved_now_takes_its_turns_with_what_it_has() -> None:
    world = led({"a": 2})
    job = world.submit(elastic="1-2")
    world.plan({job: (0, 1)})
    view = world.says.views[-1].jobs[job]
    assert (view.size, view.min_size, view.max_size) == (1, 1, 2)
    world.rigid.add(job)
    world.run(2)
    view = world.says.views[-1].jobs[job]
    assert (view.gpus, view.can_migrate) == ((0, 1), False)
    assert (view.size, view.min_size, view.max_size) == (2, 2, 2)


def test_a_job_that_is_planned_with_other_gpus_is_told_that_it_grows_or_shrinks() -> None:
    world = led({"a": 2})
    job = world.submit(elastic="1-2")
    for gpus in ((0,), (0, 1), (1,)):
        world.plan({job: gpus}, cycles=10)
    told = [line.text for line in world.engine.jobs[job].story if line.code in ("Growing", "Shrinking")]
    assert [text.partition(": ")[2] for text in told] == [
        "2 GPU(s) instead of 1: the others are idle", "1 GPU(s) instead of 2: others need them"
    ]  # fmt: skip


def test_a_priority_that_is_asked_for_reaches_the_policy_and_the_nodes() -> None:
    """Of two jobs of a user: it has as many tickets as before, and keeps its priority in its next life."""
    world = led({"a": 2})
    one, two = world.submit(), world.submit()
    world.plan({one: (0,), two: (1,)})
    assert world.place(one).tickets == world.place(two).tickets
    world.engine.handle([PriorityAsked(one, 100), PriorityAsked(4711, 1)], world.now_ns)
    world.run(1)
    assert world.says.views[-1].jobs[one].priority == 100 and world.says.views[-1].jobs[two].priority == 50
    ratio = Fraction(world.place(one).tickets, world.place(two).tickets)
    assert ratio == pytest.approx(101 / 51, rel=0.01)
    world.requeue(one)
    world.run(8)
    assert world.jobs[one].restart == 1 and world.says.views[-1].jobs[one].priority == 100


def test_a_class_that_is_asked_for_reaches_the_policy_and_the_nodes_while_it_runs() -> None:
    world = led({"a": 1})
    job = world.submit()
    world.plan({job: (0,)})
    for job_class in (OPPORTUNISTIC, GUARANTEED, OPPORTUNISTIC):
        world.engine.handle([ClassAsked(job, job_class), ClassAsked(4711, job_class)], world.now_ns)
        world.run(1)
        assert world.says.views[-1].jobs[job].job_class == job_class
        assert world.place(job).is_opportunistic is (job_class == OPPORTUNISTIC)
    world.requeue(job)
    world.run(8)
    assert world.jobs[job].restart == 1 and world.place(job).is_opportunistic


def test_rates_and_gpu_time_are_learnt_from_what_nodes_say() -> None:
    world = led({"a": 1})
    world.rates = {"v100": 3.0}
    job = world.submit()
    world.plan({job: (0,)}, cycles=9)
    view = world.says.views[-1]
    assert view.rates.alone(view.jobs[job].model, 1, "v100") == 3.0
    before = view.jobs[job].held_ns
    world.plan({}, cycles=4)
    assert world.says.views[-1].jobs[job].held_ns - before <= 2 * SECOND_NS, "parked it holds nothing"


def test_a_policy_begins_anew_when_the_nodes_are_other_ones() -> None:
    made: list[Says] = []

    def make() -> Says:
        made.append(Says())
        return made[-1]

    world = Led({"a": 1}, EngineSettings(slots_per_gpu=2), make_policy=make)
    world.run(2)
    count = len(made)
    world.down.add("a")
    world.run(2)
    assert len(made) == count, "a node that is down is the same node"
    world.nodes["b"] = 2
    world.run(2)
    assert len(made) == count + 1 and made[-1].views[-1].cluster.size == 3


def test_a_job_on_a_node_that_is_down_is_not_told_to_leave_it() -> None:
    world = led({"a": 1, "b": 1})
    job = world.submit()
    world.plan({job: (0,)})
    world.down.add("a")
    world.plan({}, cycles=2)
    assert not world.says.views[-1].jobs[job].can_migrate and world.says.views[-1].down == {0}


def test_a_job_that_goes_on_with_as_many_ranks_only_makes_way_too() -> None:
    world = led({"a": 1}, slots=1)
    old = world.submit()
    world.one_size.add(old)
    world.plan({old: (0,)})
    comer = world.submit()
    world.plan({comer: (0,)}, cycles=10)
    assert world.on(comer) and (world.state_of(old), world.jobs[old].restart) == (states.HELD, 1)
    assert "Released" not in [line.code for line in world.engine.jobs[old].story], "we requeued it ourselves"
    assert world.says.views[-1].jobs.keys() == {old, comer}, "and it is shown all the time"


def test_before_the_first_good_plan_the_nodes_decide() -> None:
    world = led({"a": 1})
    job = world.submit()
    world.plan({job: (0,)})
    world.restart_controller(keep_journal=False)
    world.says.answer = raises
    world.run(3)
    assert world.on(job) is None
    world.says.answer = lambda view: Plan({})
    world.run(1)
    assert world.on(job) is False


def test_another_policy_takes_over_with_the_jobs_where_they_are() -> None:
    world = led({"a": 2})
    jobs = [world.submit() for _ in range(2)]
    world.plan({jobs[0]: (0,), jobs[1]: (1,)})
    other = Says()
    other.runs = {jobs[1]: (1,)}
    world.engine.lead(Leader(lambda: other))
    world.run(2)
    assert (world.on(jobs[0]), world.on(jobs[1])) == (False, True)
    assert [world.jobs[job].restart for job in jobs] == [0, 0]


@pytest.mark.parametrize(
    ("cap", "moves"),
    [({"min_run_ns": 100 * SECOND_NS}, {1}), ({"moves_per_hour": 2}, {2}), ({}, {13, 14, 15})],
)
def test_bounds_of_the_site_hold_whatever_a_policy_plans(cap: dict[str, int], moves: set[int]) -> None:
    """A plan that changes its mind every ten seconds, for 150 s."""
    says = Says()
    world = Led({"a": 1, "b": 1}, EngineSettings(**cap), make_policy=lambda: says)  # type: ignore[arg-type]
    job = world.submit()

    def elsewhere(view: View) -> Plan:
        seen, wanted = view.jobs[job], (view.now_ns // SECOND_NS // 10 % 2,)
        return Plan({job: wanted if seen.can_migrate or not seen.gpus else seen.gpus})

    says.answer = elsewhere
    world.run(150)
    assert world.jobs[job].restart in moves


def test_where_moves_are_off_nothing_is_moved_and_nothing_makes_way() -> None:
    says = Says()
    settings = EngineSettings(slots_per_gpu=1, moves=False)
    world = Led({"a": 1, "b": 1}, settings, make_policy=lambda: says)
    world.says = says
    job = world.submit()
    world.plan({job: (0,)})
    comer = world.submit()
    world.plan({comer: (0,)}, cycles=10)
    assert world.code_of(comer) == "NoRoomYet" and world.jobs[job].restart == 0
    world.plan({job: (1,)}, cycles=4)
    assert world.engine.decider is not None and "cannot be moved" in world.engine.decider.fault
    assert world.jobs[job].restart == 0
