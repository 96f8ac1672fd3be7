"""engine.local with packs: two gangs that hold the same GPUs at the same time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from gandiva_slurm.engine import invariants
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.slicing.local import Gang, LocalStride
from tests.builders import SECOND_NS, TICKET, Slicer, a_gang


def key(job_id: int) -> JobKey:
    return JobKey(job_id, 0)


def packed(one: Gang, two: Gang) -> tuple[Gang, Gang]:
    return replace(one, mate=two.key.job_id), replace(two, mate=one.key.job_id)


def slicer(gpus: int, *gangs: Gang) -> Slicer:
    node = Slicer(gpus, yields=True)
    node.local.set_gangs(gangs)
    return node


def test_two_mates_hold_their_gpu_together_and_pay_half_each() -> None:
    node = slicer(1, *packed(a_gang(1, "a", (0,)), a_gang(2, "b", (0,))))
    node.run(10)
    assert [set(chosen) for chosen in node.rounds] == [{key(1), key(2)}] * 10
    assert node.by_job == {1: 5 * SECOND_NS, 2: 5 * SECOND_NS}


def test_only_who_is_named_back_is_a_mate() -> None:
    one, two = a_gang(1, "a", (0,)), a_gang(2, "b", (0,))
    node = slicer(1, replace(one, mate=2), two)
    assert node.local.mate_of(one.key) is None
    assert {len(chosen) for chosen in node.run(6).rounds} == {1}


def test_mates_have_the_same_gpus() -> None:
    node = slicer(2, *packed(a_gang(1, "a", (0, 1)), a_gang(2, "b", (1,))))
    assert {len(chosen) for chosen in node.run(6).rounds} == {1}


def test_equal_tickets_stay_equal_beside_others() -> None:
    """A pack of two among four has its GPU half the time, and is charged a quarter each."""
    others = [a_gang(3, "c", (0,)), a_gang(4, "d", (0,))]
    node = slicer(1, *packed(a_gang(1, "a", (0,)), a_gang(2, "b", (0,))), *others).run(400)
    assert node.shares() == pytest.approx(dict.fromkeys("abcd", 0.25), abs=0.01)
    together = sum(set(chosen) == {key(1), key(2)} for chosen in node.rounds)
    assert together == pytest.approx(200, abs=4)


@pytest.mark.parametrize("tickets", [(2, 1), (1, 5), (7, 1)])
def test_a_mate_is_not_carried_beyond_its_share(tickets: tuple[int, int]) -> None:
    """The one with more tickets holds the GPU alone where its mate has had its part."""
    one, two = (
        a_gang(n, user, (0,), own * TICKET) for n, user, own in zip((1, 2), "ab", tickets, strict=True)
    )
    others = [a_gang(3, "c", (0,), TICKET), a_gang(4, "d", (0,), TICKET)]
    node = slicer(1, *packed(one, two), *others).run(2000)
    total = sum(tickets) + 2
    want = {"a": tickets[0] / total, "b": tickets[1] / total, "c": 1 / total, "d": 1 / total}
    assert node.shares() == pytest.approx(want, abs=0.01)
    assert any(len(chosen) == 2 for chosen in node.rounds)


def test_what_users_hold_elsewhere_on_the_node_keeps_no_mates_apart() -> None:
    """A gang makes its user lead by more than half a quantum: no reason for mates to take turns."""
    mates = packed(a_gang(1, "a", (0,)), a_gang(2, "b", (0,)))
    others = [a_gang(3, "a", (0, 1)), a_gang(4, "b", (1,)), a_gang(5, "c", (1,))]
    node = slicer(2, *mates, *others).run(800)
    assert node.shares() == pytest.approx({"a": 0.4, "b": 0.4, "c": 0.2}, abs=0.01)
    together = sum({key(1), key(2)} <= set(chosen) for chosen in node.rounds)
    apart = sum(len({key(1), key(2)} & set(chosen)) == 1 for chosen in node.rounds)
    assert together > 600 and apart < 20


def test_a_mate_is_not_carried_far_on_a_large_node_either() -> None:
    one, two = a_gang(1, "a", (0,), 7 * TICKET), a_gang(2, "b", (0,), TICKET)
    others = [a_gang(3, "c", (0,), TICKET), a_gang(4, "d", (0,), TICKET)]
    node = slicer(4, *packed(one, two), *others).run(2000)
    assert node.shares() == pytest.approx({"a": 0.7, "b": 0.1, "c": 0.1, "d": 0.1}, abs=0.01)


def test_nobody_joins_a_pack_that_was_taken_apart() -> None:
    """In mid-quantum both may still hold the GPU when one of them is paired with another."""
    one, two = packed(a_gang(1, "a", (0,)), a_gang(2, "b", (0,)))
    node = slicer(1, *packed(one, a_gang(3, "c", (0,))), two)
    assert node.local.choose([key(3)], [key(1), key(2)], ()) == (key(1), key(2))


def test_a_user_packed_with_himself_gains_no_turn() -> None:
    mine = packed(a_gang(1, "a", (0,)), a_gang(2, "a", (0,)))
    node = slicer(1, *mine, a_gang(3, "a", (0,)), a_gang(4, "b", (0,), 300 * TICKET)).run(600)
    assert node.shares() == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.01)
    assert node.by_job[1] == pytest.approx(node.by_job[3], rel=0.03)


def test_the_mate_of_one_that_stays_comes_to_it() -> None:
    node = slicer(1, *packed(a_gang(1, "a", (0,)), a_gang(2, "b", (0,))), a_gang(3, "c", (0,)))
    assert node.local.choose([key(1), key(2), key(3)], [key(1)], ()) == (key(1), key(2))
    assert node.local.choose([key(1), key(3)], [key(1)], ()) == (key(1),)


def test_two_that_stay_take_their_gpu_once() -> None:
    """A pack that cannot be parked now leaves the node's other GPU to others."""
    node = slicer(2, *packed(a_gang(1, "a", (0,)), a_gang(2, "b", (0,))), a_gang(3, "c", (1,)))
    assert node.local.choose([key(3)], [key(1), key(2)], ()) == (key(1), key(2), key(3))


def test_mates_survive_the_state_file() -> None:
    local = slicer(1, *packed(a_gang(1, "a", (0,)), a_gang(2, "b", (0,)))).local
    again = LocalStride.from_json(local.to_json())
    assert again.gangs == local.gangs
    assert again.mate_of(key(1)) == key(2)


def test_a_round_may_give_a_gpu_to_a_pack_and_to_nobody_else() -> None:
    one, two = packed(a_gang(1, "a", (0,)), a_gang(2, "b", (0,)))
    three = replace(a_gang(3, "c", (0,)), mate=1)
    assert invariants.round_is_sound([one, two, three], 1, [key(1), key(2)]) == []
    assert len(invariants.round_is_sound([one, two, three], 1, [key(1), key(3)])) == 1
    assert len(invariants.round_is_sound([one, two, three], 1, [key(1), key(2), key(3)])) == 1


@dataclass(frozen=True)
class Held:
    job_id: int
    t0_ns: int
    t1_ns: int
    shared_with: int = 0
    restart: int = 0
    gpus: tuple[int, ...] = (0,)

    @property
    def user(self) -> str:
        return f"user{self.job_id}"


def test_holds_of_a_pack_overlap_and_no_others() -> None:
    pack = [Held(1, 0, 10), Held(1, 10, 20, 2), Held(2, 10, 20, 1), Held(2, 20, 30)]
    assert invariants.no_gpu_held_twice(pack) == []
    assert invariants.packs_are_of_two(pack) == []
    assert len(invariants.no_gpu_held_twice([*pack, Held(3, 15, 16)])) == 2
    one_sided = [Held(1, 0, 10, 2), Held(2, 0, 10)]
    assert len(invariants.no_gpu_held_twice(one_sided)) == 1
    assert len(invariants.packs_are_of_two(one_sided)) == 1
    late = [Held(1, 0, 10, 2), Held(2, 0, 4, 1), Held(3, 5, 6)]
    assert len(invariants.no_gpu_held_twice(late)) == 1, "behind a mate's short hold it is seen too"


def test_each_of_a_pack_is_charged_half() -> None:
    pack = [Held(1, 0, 10), Held(1, 10, 21, 2), Held(2, 10, 21, 1)]
    assert invariants.every_gpu_second_is_charged_once(pack, {"user1": 15, "user2": 6}, 1) == []
    assert len(invariants.every_gpu_second_is_charged_once(pack, {"user1": 21, "user2": 11}, 1)) == 2
