"""engine.local: the node's slicing, quantum by quantum."""

from __future__ import annotations

import json

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.sim.paper.result import published
from gandiva_slurm.slicing.local import LocalStride
from tests.builders import SECOND_NS, TICKET, Slicer, a_gang

GANG_TABLE = published("stride")["gang"]


def keys(*job_ids: int) -> list[JobKey]:
    return [JobKey(job_id, 0) for job_id in job_ids]


def slicer(gpus: int, *gangs: object) -> Slicer:
    node = Slicer(gpus)
    node.local.set_gangs(gangs)  # type: ignore[arg-type]
    return node


def test_gang_table_comes_out_with_fixed_gpus_too() -> None:
    """A on GPU 0, B on 1, C and D on 2 and 3, E on all: the same rounds as by count."""
    places = {"A": (0,), "B": (1,), "C": (2, 3), "D": (2, 3), "E": (0, 1, 2, 3)}
    order = GANG_TABLE["order"]
    node = slicer(4, *[a_gang(n, name, places[name], 1) for n, name in enumerate(order)])
    node.run(len(GANG_TABLE["rounds"]))
    got = [sorted(order[key.job_id] for key in chosen) for chosen in node.rounds]
    assert got == [row["run"] for row in GANG_TABLE["rounds"]]


def test_equal_claims_change_hands_each_quantum_though_a_switch_costs_time() -> None:
    """A park ends after the choice: without yielding the newcomer would look cheaper again."""
    node = Slicer(1, yields=True)
    node.local.set_gangs([a_gang(1, "a", (0,)), a_gang(2, "b", (0,))])
    node.run(1)
    for _ in range(40):
        (parked,) = node.rounds[-1]
        node.run(1)
        assert node.rounds[-1] != (parked,), node.rounds
        node.local.charge(parked, SECOND_NS // 50, SECOND_NS // 50)


def test_yielding_moves_no_share() -> None:
    """3 tickets against 1 are 3 to 1, whoever yields."""
    node = Slicer(1, yields=True)
    node.local.set_gangs([a_gang(1, "a", (0,), 3 * TICKET), a_gang(2, "b", (0,), TICKET)])
    assert node.run(400).shares()["a"] == pytest.approx(0.75, abs=0.01)


def test_pinned_gangs_are_always_in() -> None:
    node = slicer(2, a_gang(1, "a", (0, 1)), a_gang(2, "b", (0,)), a_gang(3, "c", (1,)))
    node.run(1)
    assert set(node.rounds[0]) == set(keys(1)), "a gang that fills the node wins ties"
    assert node.local.choose(keys(1, 2, 3), keys(1), ()) == tuple(keys(1))


def test_overdue_gangs_go_before_the_lowest_pass() -> None:
    node = slicer(1, a_gang(1, "a", (0,)), a_gang(2, "b", (0,)))
    node.local.charge(JobKey(2, 0), 100 * SECOND_NS, 0)
    assert node.local.choose(keys(1, 2), (), ()) == tuple(keys(1))
    assert node.local.choose(keys(1, 2), (), keys(2)) == tuple(keys(2))


def test_pinned_comes_before_overdue() -> None:
    node = slicer(1, a_gang(1, "a", (0,)), a_gang(2, "b", (0,)))
    assert node.local.choose(keys(1, 2), keys(1), keys(2)) == tuple(keys(1))


def test_what_is_not_runnable_does_not_run() -> None:
    node = slicer(1, a_gang(1, "a", (0,)), a_gang(2, "b", (0,)))
    assert node.local.choose(keys(2), (), ()) == tuple(keys(2))
    assert node.local.choose((), (), ()) == ()


def test_unknown_gangs_are_ignored() -> None:
    node = slicer(1, a_gang(1, "a", (0,)))
    node.local.charge(JobKey(77, 0), SECOND_NS, 0)
    assert node.local.choose(keys(1, 77), keys(77), keys(77)) == tuple(keys(1))


def test_setting_the_same_gangs_again_changes_nothing() -> None:
    node = slicer(1, a_gang(1, "a", (0,)), a_gang(2, "b", (0,))).run(7)
    before = node.local.to_json()
    node.local.set_gangs(node.local.gangs)
    assert node.local.to_json() == before


def test_job_keeps_its_pass_over_a_requeue() -> None:
    """Of two jobs of one user, the one requeued does not come first for having been requeued."""
    node = slicer(1, a_gang(1, "a", (0,)), a_gang(2, "a", (0,)))
    node.local.charge(JobKey(1, 0), 3 * SECOND_NS, 0)
    node.local.set_gangs([a_gang(2, "a", (0,))])
    node.local.set_gangs([a_gang(1, "a", (0,), restart=1), a_gang(2, "a", (0,))])
    assert node.local.choose([JobKey(1, 1), JobKey(2, 0)], (), ()) == tuple(keys(2))


def test_two_to_one_tickets_give_two_to_one_time() -> None:
    node = slicer(1, a_gang(1, "a", (0,), 200 * TICKET), a_gang(2, "b", (0,), 100 * TICKET)).run(300)
    assert node.by_user == {"a": 200 * SECOND_NS, "b": 100 * SECOND_NS}


@pytest.mark.parametrize(("one", "other"), [(9, 8), (17, 16), (101, 100)])
def test_tickets_that_differ_little_buy_time_that_differs_little(one: int, other: int) -> None:
    """Who held the last quantum yields a little: that must not make equals of them."""
    node = Slicer(1, yields=True)
    node.local.set_gangs([a_gang(1, "a", (0,), one), a_gang(2, "b", (0,), other)])
    node.run(10 * (one + other))
    assert abs(node.by_user["a"] - 10 * one * SECOND_NS) <= SECOND_NS


def test_overrunning_gains_nothing_in_the_long_run() -> None:
    """Job 1 holds its GPU 8 s longer than each 1 s quantum; both users still get the same time."""
    node = slicer(1, a_gang(1, "a", (0,)), a_gang(2, "b", (0,))).run(1000, {1: 8 * SECOND_NS})
    assert abs(node.by_user["a"] - node.by_user["b"]) <= 9 * SECOND_NS


def test_a_long_start_up_is_paid_back() -> None:
    """A gang pinned for 60 quanta before its first boundary waits until the other has had as much."""
    node = slicer(1, a_gang(1, "a", (0,)), a_gang(2, "b", (0,)))
    for _ in range(60):
        assert node.local.choose(keys(1, 2), keys(1), ()) == tuple(keys(1))
        node.local.charge(JobKey(1, 0), SECOND_NS, SECOND_NS)
        node.local.settle()
    node.run(60)
    assert node.by_user == {"b": 60 * SECOND_NS}
    node.forget().run(20)
    assert node.by_user == {"a": 10 * SECOND_NS, "b": 10 * SECOND_NS}


def test_uncontended_time_locks_nobody_out_for_long() -> None:
    """A 1-GPU and a 2-GPU gang alone for 100 rounds, then two 2-GPU gangs: else 100 rounds of lock-out.

    With a gap of a round at the most it is four rounds; ours is an eighth wider, for those who yield.
    """
    incumbents = [a_gang(1, "a", (0,), 1), a_gang(2, "b", (1, 2), 1)]
    node = slicer(4, *incumbents).run(100)
    node.local.set_gangs([*incumbents, a_gang(3, "c", (1, 2), 1), a_gang(4, "d", (1, 2), 1)])
    node.forget().run(20)
    first = next(n for n, chosen in enumerate(node.rounds) if JobKey(2, 0) in chosen)
    assert first <= 6
    node.run(280)
    got = {user: round(work / SECOND_NS) for user, work in node.by_user.items()}
    assert got["a"] == 300
    assert all(abs(got[user] - 200) <= 6 for user in "bcd")


def test_users_who_lead_together_share_evenly() -> None:
    """b and c share GPUs 1-3, seven users share GPU 0: they lag behind both, ever further.

    A clamp from above makes equals of b and c in every round; then the tie-break gives b nearly all.
    """
    gangs = [a_gang(gpu0, f"user{gpu0}", (0,), 3 * TICKET) for gpu0 in range(7)]
    gangs += [a_gang(10 + gpu, "b", (gpu,), TICKET) for gpu in (1, 2, 3)]
    gangs += [a_gang(20 + gpu, "c", (gpu,), TICKET) for gpu in (1, 2, 3)]
    node = slicer(4, *gangs).run(400)
    assert abs(node.by_user["b"] - node.by_user["c"]) <= 4 * SECOND_NS


def test_leaving_and_returning_gains_nothing() -> None:
    """User a leaves after each of his turns and comes back in the next round."""
    stayer, mover = a_gang(1, "b", (0,)), a_gang(2, "a", (0,))
    node = slicer(1, stayer, mover)
    for _ in range(200):
        node.run(1)
        if node.rounds[-1] == (mover.key,):
            node.local.set_gangs([stayer])
            node.local.set_gangs([stayer, mover])
    assert node.by_user["a"] <= node.by_user["b"]


def test_state_survives_json_at_any_moment() -> None:
    gangs = [
        a_gang(1, "a", (0, 1)),
        a_gang(2, "b", (0,), 33 * TICKET + 1),
        a_gang(3, "b", (1,)),
        a_gang(4, "c", (1,)),
    ]
    node = slicer(2, *gangs)
    for turn in range(30):
        node.local.set_gangs(gangs[: 2 + turn % 3])
        node.run(1, {3: 7})
        data = json.loads(json.dumps(node.local.to_json()))
        assert LocalStride.from_json(data).to_json() == node.local.to_json()
        node.local = LocalStride.from_json(data)


def test_passes_of_those_long_gone_are_forgotten() -> None:
    """A node that has run ten thousand jobs remembers the few it has."""
    node = slicer(1)
    for job_id in range(200):
        node.local.set_gangs([a_gang(0, "stayer", (0,)), a_gang(1 + job_id, f"user{job_id % 7}", (0,))])
        node.run(4)
    users, jobs = node.local.passes()
    assert len(users) <= 9
    assert len(jobs) <= 9


@pytest.mark.parametrize("gpus, tickets", [((), 1), ((0, 0), 1), ((2,), 1), ((0,), 0)])
def test_impossible_gangs_are_refused(gpus: tuple[int, ...], tickets: int) -> None:
    with pytest.raises(ValueError, match=r"gang 1\.0: "):
        LocalStride(2, SECOND_NS).set_gangs([a_gang(1, "a", gpus, tickets)])


def test_state_of_another_version_is_refused() -> None:
    data = LocalStride(2, SECOND_NS).to_json() | {"version": 2}
    with pytest.raises(ValueError, match="version 2, 1 expected"):
        LocalStride.from_json(data)
