"""The simulated cluster: rates, costs, packs, moves, failures, and plans it refuses."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.faults import Fault, by_chance
from gandiva_slurm.sim.job import Job
from gandiva_slurm.sim.parts import carried_out, missed_hosts
from gandiva_slurm.sim.world import Costs, PolicyError, World
from tests.sim_scenes import ORACLE, S, ends_s, model_spec, play, spec

TWO = Cluster([("gpu", 2)])
APART = Cluster([("fast", 1), ("fast", 1), ("slow", 2)])


def test_a_job_ends_at_its_own_moment_not_at_a_round() -> None:
    outcome, _ = play({0: {0: [0]}}, [spec(0, length_s=7.25)], TWO)
    assert ends_s(outcome) == [7.25]


def test_progress_and_gpu_time_are_what_a_policy_sees() -> None:
    _, script = play({0: {0: [0, 1]}, 4: {0: [0, 1]}}, [spec(0, size=2, length_s=10)], TWO)
    assert script.seen[1] == (4.0, {0: (0.4, 4.0, 8.0)})


def test_a_switch_costs_where_others_were_there_only() -> None:
    plans = {0: {0: [0]}, 2: {}, 3: {0: [0]}, 5: {1: [0]}, 6: {0: [0]}, 20: {1: [0]}}
    outcome, _ = play(plans, [spec(0), spec(1)], Cluster([("gpu", 1)]), Costs(switch_ns=S))
    # 2 s + 2 s done by 5; back at 6 it pays 1 s; the other did 1 s and pays 1 s at 20
    assert ends_s(outcome) == [13.0, 30.0]
    assert outcome.counts["suspends"] == 3 and outcome.counts["resumes"] == 3
    assert outcome.books.held_halves[0] == 2 * 11 * S


def test_a_move_costs_a_restart_held_and_without_progress() -> None:
    outcome, script = play({0: {0: [0]}, 4: {0: [1]}}, [spec(0)], TWO, Costs(restart_ns=3 * S))
    assert ends_s(outcome) == [13.0]
    assert outcome.counts["migrations"] == 1 and outcome.books.held_halves[0] == 2 * 13 * S
    assert script.views[-1].jobs == {}


def test_a_first_start_costs_once() -> None:
    plans = {0: {0: [0]}, 5: {}, 6: {0: [0]}}
    outcome, _ = play(plans, [spec(0)], TWO, Costs(start_ns=3 * S))
    assert ends_s(outcome) == [14.0], "2 s are done by 5, the other 8 from 6 on"


@pytest.mark.parametrize("costs", [Costs(start_ns=3 * S), Costs(start_ns=3 * S, switch_ns=S)])
def test_what_a_job_has_not_paid_when_it_is_taken_off_it_pays_later(costs: Costs) -> None:
    plans = {0: {0: [0]}, 1: {1: [0]}, 14: {0: [0]}}
    outcome, _ = play(plans, [spec(0), spec(1)], Cluster([("gpu", 1)]), costs)
    assert ends_s(outcome) == [26.0, 14.0], "2 s of its start are left at 14, the switch is within them"


def test_a_restart_pays_for_the_start_that_was_not_over() -> None:
    outcome, _ = play({0: {0: [0]}, 1: {0: [1]}}, [spec(0)], TWO, Costs(start_ns=3 * S, restart_ns=4 * S))
    assert ends_s(outcome) == [15.0]


def test_the_job_parked_longest_leaves_a_full_gpu_and_pays_a_restart() -> None:
    plans = {0: {0: [0]}, 1: {1: [0]}, 2: {2: [0]}, 12: {1: [0]}, 22: {0: [0]}}
    costs = Costs(switch_ns=S, restart_ns=4 * S, slots=2)
    outcome, _ = play(plans, [spec(0), spec(1), spec(2)], Cluster([("gpu", 1)]), costs)
    # Job 0 leaves at 2, with 1 s done, and pays a restart at 22; job 1 stays, and pays a switch at 12.
    assert outcome.counts["evictions"] == 1
    assert ends_s(outcome) == [35.0, 22.0, 12.0]


def test_the_last_of_a_user_on_a_gpu_leaves_after_the_others() -> None:
    plans = {0: {0: [0]}, 1: {1: [0]}, 2: {2: [0]}, 3: {3: [0]}, 13: {0: [0]}, 22: {2: [0]}, 31: {1: [0]}}
    jobs = [spec(0, user="u"), spec(1, user="v"), spec(2, user="v"), spec(3, user="w")]
    outcome, _ = play(plans, jobs, Cluster([("gpu", 1)]), Costs(restart_ns=4 * S, slots=3))
    # Job 1 leaves at 3, though job 0 was parked before it, and pays a restart at 31.
    assert outcome.counts["evictions"] == 1
    assert ends_s(outcome) == [22.0, 44.0, 31.0, 13.0]


def test_a_job_waits_for_room_where_none_can_leave() -> None:
    jobs = [spec(0, can_migrate=False), spec(1)]
    plans = {0: {0: [0]}, 1: {1: [0]}, 2: {0: [0], 1: [0]}, 3: {0: [0]}, 20: {1: [0]}}
    outcome, _ = play(plans, jobs, Cluster([("gpu", 1)]), Costs(slots=1))
    # Job 0 is parked for two seconds in vain, then ends at 12; job 1 comes when it is gone.
    assert ends_s(outcome) == [11.0, 30.0]
    assert outcome.counts["refusals"] == 2 and outcome.counts["evictions"] == 0


def test_nodes_hold_the_memory_of_all_that_live_there() -> None:
    jobs = [spec(n, memory_mib=mib) for n, mib in enumerate((60, 30, 50))]
    plans = {0: {0: [0], 1: [1]}, 1: {1: [1]}, 2: {1: [1], 2: [0]}, 20: {0: [0]}}
    cluster = Cluster([("gpu", 2)], memory_mib=[100])
    outcome, _ = play(plans, jobs, cluster, Costs(switch_ns=S, restart_ns=4 * S))
    # Job 2 needs 50 of 100: job 0, parked, leaves with its 60; its restart costs 4 s, and it had done 1 s.
    assert outcome.counts["evictions"] == 1
    assert ends_s(outcome) == [33.0, 10.0, 12.0]


def test_a_job_on_a_node_that_it_may_not_use_is_the_plans_mistake() -> None:
    with pytest.raises(PolicyError, match="it may not use that node"):
        play({0: {0: [1]}}, [spec(0, hosts=frozenset({0}))], Cluster([("gpu", 1), ("gpu", 1)]))


def test_a_job_that_cannot_be_saved_and_is_moved_is_the_plans_mistake() -> None:
    with pytest.raises(PolicyError, match="it cannot be moved from GPUs"):
        play({0: {0: [0]}, 1: {0: [1]}}, [spec(0, can_migrate=False)], TWO)


def test_a_round_takes_its_time_and_carries_out_what_is_still_to_be() -> None:
    jobs = [spec(0, length_s=5), spec(1, at_s=1)]
    outcome, script = play({0: {0: [0]}, 4: {0: [0], 1: [1]}}, jobs, TWO, Costs(round_ns=2 * S))
    # Asked at 0, job 0 begins at 2. What came at 1 is asked of when that round is over, at 2, and again at 4,
    # as the plan wants: job 1 begins at 6. Job 0 ends at 7, between two rounds.
    assert ends_s(outcome) == [7.0, 16.0]
    assert [view.now_ns for view in script.views[:4]] == [0, 2 * S, 4 * S, 7 * S]


def test_all_stays_as_it_is_where_a_node_misses_its_part() -> None:
    world = World(APART, ORACLE, Costs())
    for number, gpus in {0: (0,), 1: (1,), 2: (2,)}.items():
        job = Job(spec(number), 10**18, None, world)
        job.gpus, world.running[number] = gpus, job
    # To be: 0 is parked, 1 moves to GPU 0, 3 comes where 1 was, 2 runs on, 4 comes beside it, on GPU 3.
    runs = {1: (0,), 2: (2,), 3: (1,), 4: (3,)}
    assert carried_out(runs, world.running, APART, frozenset()) == runs
    assert carried_out(runs, world.running, APART, frozenset({0})) == {0: (0,), 1: (1,), 2: (2,), 4: (3,)}
    assert carried_out(runs, world.running, APART, frozenset({1})) == {1: (1,), 2: (2,), 4: (3,)}
    assert carried_out(runs, world.running, APART, frozenset({2})) == {1: (0,), 2: (2,), 3: (1,)}


def test_parts_are_missed_as_often_as_is_said() -> None:
    drawn = [len(missed_hosts(APART, 0.3, 1, at_ns)) for at_ns in range(1000)]
    assert sum(drawn) == pytest.approx(900, rel=0.1)


def test_a_gang_over_nodes_goes_at_the_rate_of_gangs_apart() -> None:
    outcome, _ = play({0: {0: [0, 1]}, 10: {0: [2, 3]}}, [model_spec(0, "m", 150, size=2)], APART)
    assert ends_s(outcome) == [20.0]  # 10 s at 6, then 9 a second


def test_a_gang_on_two_types_goes_as_the_slower() -> None:
    outcome, _ = play({0: {0: [1, 2]}}, [model_spec(0, "m", 40, size=2)], APART)
    assert ends_s(outcome) == [10.0]


def test_two_share_a_gpu_at_their_pair_rates_and_half_its_time() -> None:
    jobs = [model_spec(0, "m", 80), model_spec(1, "m", 180)]
    outcome, script = play({0: {0: [0], 1: [0]}}, jobs, APART)
    assert ends_s(outcome) == [10.0, 20.0]  # then alone at 10 a second
    assert [halves / 2 / S for halves in outcome.books.held_halves] == [5.0, 15.0]
    assert (outcome.counts["packs_tried"], outcome.counts["packs_kept"]) == (1, 1)
    assert outcome.summary()["useful_gpu_s"] == pytest.approx(8 + 18)
    assert script.views[-1].rates.packed("m", "m", "fast") == (8.0, 8.0)


def test_a_pack_that_a_plan_takes_apart_was_undone() -> None:
    jobs = [model_spec(0, "m", 80), model_spec(1, "m", 80)]
    outcome, _ = play({0: {0: [2], 1: [2]}, 10: {0: [2], 1: [3]}}, jobs, APART)
    assert (outcome.counts["packs_undone"], outcome.counts["packs_kept"]) == (1, 0)
    assert ends_s(outcome) == [24.0, 24.0]


def test_rates_are_learnt_by_running_and_not_before() -> None:
    plans = {0: {0: [0]}, 0.05: {0: [0]}, 1: {0: [0]}, 2: {0: [2]}}
    _, script = play(plans, [model_spec(0, "m", 100)], APART)
    # at 0.05 s it has not yet done a mini-batch; at 2 s it is moved, and seen on the slow GPU by its end
    assert script.known == [(None, None), (None, None), (10.0, None), (10.0, None), (10.0, 5.0)]


def test_a_pair_that_does_not_fit_is_learnt_by_trying() -> None:
    jobs = [model_spec(0, "m", 100), model_spec(1, "big", 40)]
    outcome, script = play({0: {0: [0], 1: [0]}, 5: {0: [0], 1: [1]}}, jobs, APART)
    assert script.views[-1].rates.packed("m", "big", "fast") == (0.0, 0.0)
    assert ends_s(outcome) == [15.0, 15.0]


def test_noise_moves_ends_and_repeats_with_its_seed() -> None:
    def end_s(seed: int) -> float:
        costs = Costs(noise=0.1, seed=seed)
        return ends_s(play({0: {0: [0]}}, [model_spec(0, "m", 100)], APART, costs)[0])[0]

    assert end_s(1) == end_s(1) != end_s(2)
    assert end_s(1) != 10.0


def test_an_elastic_job_grows_and_shrinks() -> None:
    job = spec(0, size=2, length_s=10, min_size=1, max_size=4)
    outcome, _ = play({0: {0: [0]}, 4: {0: [0, 1, 2, 3]}, 6: {0: [0, 1]}}, [job], Cluster([("gpu", 4)]))
    assert ends_s(outcome) == [10.0]
    assert (outcome.counts["grows"], outcome.counts["shrinks"], outcome.counts["migrations"]) == (1, 1, 0)


def test_the_hundredth_mini_batch_is_timed() -> None:
    outcome, _ = play({0: {0: [0]}}, [model_spec(0, "m", 200)], APART)
    assert outcome.summary()["avg_first_100_minibatches_s"] == 10.0


def test_a_failed_node_puts_its_jobs_off_and_they_pay_a_restart() -> None:
    two = Cluster([("gpu", 1), ("gpu", 1)])
    faults = [Fault(4 * S, 0, True), Fault(100 * S, 0, False)]
    plans = {0: {0: [0]}, 4: {0: [1]}}
    outcome, script = play(plans, [spec(0)], two, Costs(restart_ns=2 * S), faults=faults)
    assert ends_s(outcome) == [12.0]
    assert script.views[1].down == {0} and not script.views[2].jobs
    assert outcome.counts["migrations"] == 0


def test_failures_by_chance_repeat_and_alternate() -> None:
    def first(seed: int) -> list[Fault]:
        faults = by_chance(3, 1000 * S, 10 * S, seed)
        return [next(faults) for _ in range(50)]

    assert first(1) == first(1) != first(2)
    assert first(1) == sorted(first(1), key=lambda fault: fault.at_ns)
    for host in range(3):
        mine = [fault.is_down for fault in first(1) if fault.host == host]
        assert mine == [n % 2 == 0 for n in range(len(mine))]


@pytest.mark.parametrize(
    ("plans", "jobs", "sentence"),
    [
        ({0: {0: [0]}}, [spec(0, size=2)], "it takes 2 GPUs"),
        ({0: {0: [1, 0]}}, [spec(0, size=2)], "GPUs are distinct, in order, 0..3"),
        ({0: {0: [3, 4]}}, [spec(0, size=2)], "GPUs are distinct, in order, 0..3"),
        ({0: {0: [0]}}, [spec(0, gpu_types=("slow",))], "it accepts only slow"),
        ({0: {0: [0], 1: [0, 1]}}, [spec(0), spec(1, size=2)], "two jobs may share all their GPUs"),
        ({0: {0: [0], 1: [0], 2: [0]}}, [spec(0), spec(1), spec(2)], "two jobs may share all their GPUs"),
        ({0: {0: [0], 1: [0]}}, [spec(0), spec(1, can_pack=False)], "may not be packed"),
    ],
)
def test_plans_that_cannot_be_are_refused(plans: dict, jobs: list, sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        play(plans, jobs, APART)


def test_a_plan_without_a_rate_is_refused_to_who_could_know() -> None:
    job = [model_spec(0, "big", 40)]
    with pytest.raises(PolicyError, match="big cannot run on slow"):
        play({0: {0: [2]}}, job, APART, takes_oracle=True)
    outcome, script = play({0: {0: [2]}, 5: {0: [0]}}, job, APART)
    assert ends_s(outcome) == [15.0] and script.views[-1].rates.alone("big", 1, "slow") == 0.0


def test_a_gpu_that_is_down_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"GPUs \[0\] are down"):
        play({0: {0: [0]}, 4: {0: [0]}}, [spec(0)], APART, faults=[Fault(4 * S, 0, True)])


def test_a_policy_that_leaves_jobs_waiting_is_named() -> None:
    with pytest.raises(
        PolicyError, match=r"script leaves 1 jobs waiting for ever at 0.000 s, the first is job 7"
    ):
        play({0: {}}, [spec(7)], TWO)
