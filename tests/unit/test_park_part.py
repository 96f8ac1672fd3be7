"""The ranks of a gang that live on one node of several: held at a boundary and released from outside."""

import pytest

from gandiva_slurm.node.park import HOLD_NS, SLIP_NS
from gandiva_slurm.node.park_part import HOLDING, MISSED, PartGang
from gandiva_slurm.wire.page import (
    CMD_AIM,
    CMD_COMMIT,
    CMD_RUN,
    FAILED,
    LEFT,
    PARKED,
    RUN,
    W_AT,
    W_STATE_GEN,
    W_WAKE_BY,
    W_WORD,
    word,
)
from tests.unit.test_park import MS, Pages


def commands(pages):
    return [view[W_WORD] & 0xFF for view in pages.views]


def aimed(at=105, world=2):
    pages, part = Pages(world), PartGang(world)
    pages.apply(part.aim(at, pages.views, 1, wake_by_ns=77))
    return pages, part


def holding(world=2):
    pages, part = aimed(world=world)
    for rank in range(world):
        pages.hold(rank, part)
    assert pages.apply(part.tick(pages.views, pages.alive, 5 * MS)) == []
    assert part.phase == HOLDING
    return pages, part


def committed(world=2):
    pages, part = holding(world)
    pages.apply(part.commit(pages.views, pages.alive, 6 * MS))
    assert part.phase == "committing"
    return pages, part


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_boundary_and_the_word_to_release_come_from_outside(world):
    pages, part = aimed(world=world)
    assert {view[W_AT] for view in pages.views} == {105}
    assert {view[W_WAKE_BY] for view in pages.views} == {77}
    assert commands(pages) == [CMD_AIM] * world
    for rank in range(world):
        pages.hold(rank, part)
        part.tick(pages.views, pages.alive, 5 * MS)
    assert part.phase == HOLDING
    # However long it holds, nothing is written without the word.
    assert part.tick(pages.views, pages.alive, 10**12) == []
    assert commands(pages) == [CMD_AIM] * world
    pages.apply(part.commit(pages.views, pages.alive, 6 * MS))
    assert commands(pages) == [CMD_COMMIT] * world
    for rank in range(world):
        pages.set(rank, state=PARKED)
    part.tick(pages.views, pages.alive, 7 * MS)
    assert (part.phase, part.park_seq) == ("parked", 105)
    pages.apply(part.resume(pages.views, 8 * MS))
    assert commands(pages) == [CMD_RUN] * world and part.phase == "resuming"


def test_no_word_before_all_hold():
    pages, part = aimed()
    pages.hold(0, part)
    part.tick(pages.views, pages.alive, 5 * MS)
    assert part.commit(pages.views, pages.alive, 6 * MS) == []
    assert part.phase == "aiming" and commands(pages) == [CMD_AIM] * 2


@pytest.mark.parametrize(
    "slip",
    [
        lambda pages, part: pages.set(0, seq=106),
        lambda pages, part: pages.set(0, missed=part.generation),
        lambda pages, part: pages.set(0, state=LEFT, gen=part.generation),
        lambda pages, part: pages.alive.__setitem__(0, False),
    ],
    ids=["passed", "missed", "left", "ended"],
)
def test_a_lost_aim_is_told_and_another_one_may_follow(slip):
    pages, part = aimed()
    pages.hold(1, part)
    slip(pages, part)
    assert part.tick(pages.views, pages.alive, 5 * MS) == []
    assert part.phase == MISSED and part.last_error
    assert part.commit(pages.views, pages.alive, 6 * MS) == []
    pages.alive = [True, True]
    pages.apply(part.aim(120, pages.views, 7 * MS, 78))
    assert (part.phase, part.reaims, part.last_error) == ("aiming", 1, "")
    for rank in range(2):
        pages.hold(rank, part)
    part.tick(pages.views, pages.alive, 8 * MS)
    assert (part.phase, part.park_seq) == (HOLDING, 120)


def test_an_aim_behind_a_rank_is_lost_at_once():
    _, part = aimed(at=99)
    assert part.phase == MISSED


def test_a_rank_that_slips_by_without_a_word_and_one_that_never_comes_lose_the_aim():
    pages, part = aimed()
    pages.hold(0, part)
    pages.set(1, seq=105)
    part.tick(pages.views, pages.alive, 5 * MS)
    part.tick(pages.views, pages.alive, 6 * MS + SLIP_NS)
    assert part.phase == MISSED
    pages, part = aimed()
    pages.hold(0, part)
    part.tick(pages.views, pages.alive, 5 * MS)
    part.tick(pages.views, pages.alive, 6 * MS + HOLD_NS)
    assert part.phase == MISSED


def test_a_rank_that_leaves_its_hold_loses_it_and_nobody_is_told_to_release():
    pages, part = holding()
    pages.set(1, state=LEFT)
    assert part.commit(pages.views, pages.alive, 6 * MS) == []
    assert part.phase == MISSED and commands(pages) == [CMD_AIM] * 2
    pages, part = holding()
    pages.set(1, state=RUN)
    part.tick(pages.views, pages.alive, 6 * MS)
    assert part.phase == MISSED


@pytest.mark.parametrize("phase", [HOLDING, MISSED, "aiming"])
def test_it_may_go_on_at_once_before_the_word(phase):
    pages, part = aimed() if phase == "aiming" else holding()
    if phase == MISSED:
        pages.set(0, seq=106)
        pages.set(0, state=RUN)
        part.tick(pages.views, pages.alive, 6 * MS)
    assert part.phase == phase
    generation = part.generation
    pages.apply(part.resume(pages.views, 7 * MS))
    assert [view[W_WORD] for view in pages.views] == [word(generation + 1, CMD_RUN)] * 2


@pytest.mark.parametrize("world", [1, 2])
def test_after_the_word_it_goes_on_only_when_all_have_answered(world):
    pages, part = committed(world)
    assert part.resume(pages.views, 7 * MS) == []
    assert part.tick(pages.views, pages.alive, 8 * MS) == []
    assert commands(pages) == [CMD_COMMIT] * world
    for rank in range(world):
        pages.set(rank, state=PARKED)
    pages.apply(part.tick(pages.views, pages.alive, 9 * MS))
    assert commands(pages) == [CMD_RUN] * world


def test_a_rank_that_cannot_release_lets_the_others_go_on():
    pages, part = committed()
    pages.set(0, state=PARKED)
    pages.set(1, state=FAILED)
    pages.apply(part.tick(pages.views, pages.alive, 7 * MS))
    assert part.phase == "resuming" and commands(pages) == [CMD_RUN] * 2
    assert "did not release" in part.last_error


def test_ranks_that_wait_for_nobody_stop_each_at_its_next_boundary():
    pages, part = aimed(at=0, world=1)
    assert part.phase == HOLDING and commands(pages) == [CMD_RUN]
    part.tick(pages.views, pages.alive, 10**12)
    assert part.phase == HOLDING
    pages.apply(part.commit(pages.views, pages.alive, 6 * MS))
    assert commands(pages) == [CMD_COMMIT] and pages.views[0][W_AT] == 0
    pages.set(0, seq=107, state=PARKED, gen=part.generation, state_seq=107)
    part.tick(pages.views, pages.alive, 7 * MS)
    assert (part.phase, part.park_seq) == ("parked", 107)


def test_a_part_is_adopted_parked_or_told_to_run():
    pages, part = committed()
    for rank in range(2):
        pages.set(rank, state=PARKED)
    heir = PartGang(2, generation=part.generation)
    assert heir.adopt(pages.views, 9 * MS) == [] and heir.phase == "parked"
    pages, part = holding()
    heir = PartGang(2, generation=part.generation)
    pages.apply(heir.adopt(pages.views, 9 * MS))
    assert commands(pages) == [CMD_RUN] * 2
    assert heir.generation > pages.views[0][W_STATE_GEN]
