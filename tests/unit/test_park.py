"""The coordinator of a gang: what it writes for what it sees. Interleavings are in test_park_explore."""

import pytest

from gandiva_slurm.node.park import HOLD_NS, MAX_REAIMS, SLIP_NS, Gang, beat
from gandiva_slurm.wire.page import (
    CMD_AIM,
    CMD_COMMIT,
    CMD_RUN,
    DONE,
    FAILED,
    HOLD,
    LEFT,
    NEVER,
    PARKED,
    RELEASING,
    RUN,
    W_AT,
    W_AT2,
    W_BEAT,
    W_LAST_NS,
    W_MISSED_GEN,
    W_PID,
    W_SEQ,
    W_STATE,
    W_STATE_GEN,
    W_STATE_SEQ,
    W_WAKE_BY,
    W_WORD,
    word,
)

MS = 1_000_000


class Pages:
    """The pages of a gang as a list of word lists, with the node's writes applied."""

    def __init__(self, world, seq=100):
        self.views = [[0] * 64 for _ in range(world)]
        self.alive = [True] * world
        for view in self.views:
            view[W_PID], view[W_SEQ], view[W_AT], view[W_AT2] = 1, seq, NEVER, NEVER

    def apply(self, writes):
        for rank, words in writes:
            for index, value in words:
                assert 0 <= value <= NEVER
                self.views[rank][index] = value
        return writes

    def set(self, rank, **words):
        names = {
            "seq": W_SEQ,
            "state": W_STATE,
            "gen": W_STATE_GEN,
            "state_seq": W_STATE_SEQ,
            "missed": W_MISSED_GEN,
        }
        for name, value in words.items():
            self.views[rank][names[name]] = value

    def hold(self, rank, gang):
        seq = gang.park_seq
        self.set(rank, seq=seq, state=HOLD, gen=gang.generation, state_seq=seq)


def aimed(world=2, seq=100):
    pages, gang = Pages(world, seq), Gang(world)
    pages.apply(gang.park(pages.views, 1, wake_by_ns=77))
    return pages, gang


def committed(world=2):
    pages, gang = aimed(world)
    for rank in range(world):
        pages.hold(rank, gang)
    pages.apply(gang.tick(pages.views, pages.alive, 5 * MS))
    return pages, gang


def parked(world=2):
    pages, gang = committed(world)
    for rank in range(world):
        pages.set(rank, state=PARKED)
    pages.apply(gang.tick(pages.views, pages.alive, 6 * MS))
    assert gang.phase == "parked"
    return pages, gang


def test_aim_is_ahead_of_the_fastest_rank_and_at_is_written_last():
    pages, gang = Pages(2), Gang(2)
    pages.set(1, seq=103)
    writes = gang.park(pages.views, 9, wake_by_ns=77)
    assert gang.phase == "aiming" and gang.park_seq > 103
    assert [rank for rank, _ in writes] == [0, 1]
    want = (
        (W_BEAT, 9),
        (W_WAKE_BY, 77),
        (W_AT2, gang.park_seq),
        (W_WORD, word(1, CMD_AIM)),
        (W_AT, gang.park_seq),
    )
    assert writes[0][1] == writes[1][1] == want


def test_commit_waits_for_every_rank():
    pages, gang = aimed()
    pages.hold(0, gang)
    assert gang.tick(pages.views, pages.alive, 2) == []
    pages.hold(1, gang)
    writes = gang.tick(pages.views, pages.alive, 3)
    assert [dict(words)[W_WORD] for _, words in writes] == [word(1, CMD_COMMIT)] * 2
    assert gang.phase == "committing"


@pytest.mark.parametrize(
    "wrong", [{"gen": 9}, {"state_seq": 1}, {"state": RELEASING}], ids=["generation", "boundary", "state"]
)
def test_commit_needs_an_exact_match(wrong):
    pages, gang = aimed()
    pages.hold(0, gang)
    pages.hold(1, gang)
    pages.set(1, **wrong)
    assert gang.tick(pages.views, pages.alive, 2) == []


def test_parked_when_all_have_released():
    pages, gang = committed()
    pages.set(0, state=PARKED)
    assert gang.tick(pages.views, pages.alive, 6 * MS) == []
    assert gang.phase == "committing"
    pages.set(1, state=PARKED)
    assert gang.tick(pages.views, pages.alive, 7 * MS) == []
    assert gang.phase == "parked" and gang.park_seq == pages.views[0][W_STATE_SEQ]


def test_resume_is_over_when_every_rank_trains():
    pages, gang = parked()
    writes = pages.apply(gang.resume(pages.views, 8 * MS))
    assert dict(writes[1][1])[W_WORD] == word(2, CMD_RUN) and dict(writes[1][1])[W_AT] == NEVER
    gang.tick(pages.views, pages.alive, 9 * MS)
    assert gang.phase == "resuming"
    pages.set(0, state=RUN)
    pages.alive[1] = False
    gang.tick(pages.views, pages.alive, 10 * MS)
    assert gang.phase == "running" and gang.failed_parks == 0


def test_single_rank_parks_at_its_next_boundary():
    pages, gang = Pages(1), Gang(1)
    writes = pages.apply(gang.park(pages.views, 1, 77))
    assert gang.phase == "committing"
    assert dict(writes[0][1])[W_WORD] == word(1, CMD_COMMIT) and dict(writes[0][1])[W_AT] == 0
    pages.set(0, state=PARKED, gen=1, state_seq=101, seq=101)
    gang.tick(pages.views, pages.alive, 2)
    assert gang.phase == "parked" and gang.park_seq == 101


def test_single_rank_may_be_resumed_before_it_came():
    pages, gang = Pages(1), Gang(1)
    gang.park(pages.views, 1, 77)
    assert dict(gang.resume(pages.views, 2)[0][1])[W_WORD] == word(2, CMD_RUN)


def test_resume_while_committing_waits_for_all_to_release():
    pages, gang = committed()
    assert gang.resume(pages.views, 6 * MS) == []
    pages.set(0, state=PARKED)
    assert gang.tick(pages.views, pages.alive, 7 * MS) == []
    pages.set(1, state=PARKED)
    writes = gang.tick(pages.views, pages.alive, 8 * MS)
    assert dict(writes[0][1])[W_WORD] == word(2, CMD_RUN) and gang.phase == "resuming"


def miss_by_number(pages, gang):
    pages.set(1, missed=gang.generation)


def miss_by_counter(pages, gang):
    pages.set(1, seq=gang.park_seq + 1)


def leave(pages, gang):
    pages.set(1, state=LEFT, gen=gang.generation)


@pytest.mark.parametrize("miss", [miss_by_number, miss_by_counter, leave])
def test_miss_aims_anew_further_ahead(miss):
    pages, gang = aimed()
    first = gang.park_seq - 100
    miss(pages, gang)
    writes = pages.apply(gang.tick(pages.views, pages.alive, 2 * MS))
    newest = max(view[W_SEQ] for view in pages.views)
    assert gang.phase == "aiming" and gang.reaims == 1 and gang.failed_parks == 0
    assert dict(writes[0][1])[W_WORD] == word(2, CMD_AIM)
    assert gang.park_seq - newest >= 2 * first
    assert "rank 1" in gang.last_error


def test_rank_that_slipped_by_is_noticed():
    pages, gang = aimed()
    pages.hold(0, gang)
    pages.set(1, seq=gang.park_seq)
    assert gang.tick(pages.views, pages.alive, 2) == []
    assert gang.tick(pages.views, pages.alive, 2 + SLIP_NS) == []
    assert gang.tick(pages.views, pages.alive, 3 + SLIP_NS) != []
    assert gang.reaims == 1


def test_rank_slow_to_hold_is_no_slip():
    pages, gang = aimed()
    pages.set(1, seq=gang.park_seq)
    gang.tick(pages.views, pages.alive, 2)
    pages.hold(1, gang)
    gang.tick(pages.views, pages.alive, 3)
    assert gang.tick(pages.views, pages.alive, 3 + 2 * SLIP_NS) == []
    assert gang.reaims == 0


def test_hold_that_lasts_too_long_is_aimed_anew():
    pages, gang = aimed()
    pages.hold(0, gang)
    gang.tick(pages.views, pages.alive, 2)
    assert gang.tick(pages.views, pages.alive, 2 + HOLD_NS) == []
    assert gang.tick(pages.views, pages.alive, 3 + HOLD_NS) != []
    assert "250 ms" in gang.last_error


def test_nobody_holds_nobody_hurries():
    pages, gang = aimed()
    assert gang.tick(pages.views, pages.alive, 3_600_000 * MS) == []


def test_after_the_last_miss_the_gang_runs():
    pages, gang = aimed()
    for _ in range(MAX_REAIMS + 1):
        assert gang.phase == "aiming"
        miss_by_number(pages, gang)
        pages.apply(gang.tick(pages.views, pages.alive, 2))
    assert (gang.reaims, gang.failed_parks) == (MAX_REAIMS, 1)
    assert gang.phase == "resuming"
    gang.tick(pages.views, pages.alive, 3)
    assert gang.phase == "running"


@pytest.mark.parametrize("how", ["process gone", "script done"])
def test_end_of_a_rank_calls_the_park_off(how):
    pages, gang = aimed()
    pages.hold(0, gang)
    if how == "process gone":
        pages.alive[1] = False
    else:
        pages.set(1, state=DONE)
    writes = gang.tick(pages.views, pages.alive, 2)
    assert dict(writes[0][1])[W_WORD] == word(2, CMD_RUN)
    assert gang.failed_parks == 1 and gang.last_error.startswith("rank 1 has ended")


@pytest.mark.parametrize("state", [FAILED, LEFT])
def test_rank_that_does_not_release_resumes_all_once_all_have_answered(state):
    pages, gang = committed()
    pages.set(0, state=state)
    assert gang.tick(pages.views, pages.alive, 6 * MS) == [], "rank 1 may still begin to release"
    pages.set(1, state=PARKED)
    writes = gang.tick(pages.views, pages.alive, 7 * MS)
    assert dict(writes[1][1])[W_WORD] == word(2, CMD_RUN)
    assert gang.phase == "resuming" and gang.failed_parks == 1 and "rank 0" in gang.last_error


def test_rank_that_dies_while_releasing_resumes_the_others():
    pages, gang = committed()
    pages.alive[0] = False
    pages.set(1, state=PARKED)
    assert gang.tick(pages.views, pages.alive, 7 * MS) != []
    assert gang.phase == "resuming"


def test_only_a_running_gang_is_parked():
    pages, gang = aimed()
    with pytest.raises(ValueError, match="the gang is aiming"):
        gang.park(pages.views, 2, 3)


def test_parked_gang_is_adopted_whole():
    pages, _ = parked()
    gang = Gang(2)
    assert gang.adopt(pages.views, 9 * MS) == []
    assert gang.phase == "parked" and gang.generation == 1 and gang.stand.wake_by_ns == 77
    assert dict(gang.resume(pages.views, 10 * MS)[0][1])[W_WORD] == word(2, CMD_RUN)


def change_state(pages):
    pages.set(1, state=HOLD)


def change_generation(pages):
    pages.set(1, gen=3)


def change_order(pages):
    pages.views[0][W_WORD] = word(2, CMD_RUN)


@pytest.mark.parametrize("change", [change_state, change_generation, change_order])
def test_partly_parked_gang_is_resumed(change):
    pages, _ = parked()
    change(pages)
    newest = max(view[W_WORD] >> 8 for view in pages.views)
    gang = Gang(2)
    writes = gang.adopt(pages.views, 9 * MS)
    assert gang.phase == "resuming"
    assert {dict(words)[W_WORD] for _, words in writes} == {word(newest + 1, CMD_RUN)}


def test_running_gang_is_adopted_running():
    pages = Pages(2)
    gang = Gang(2)
    pages.apply(gang.adopt(pages.views, 1))
    gang.tick(pages.views, pages.alive, 2)
    assert gang.phase == "running"


def test_lies_in_a_page_stay_within_a_word():
    pages, gang = Pages(2), Gang(2)
    pages.views[1] = [NEVER] * 64
    pages.apply(gang.park(pages.views, 1, 2))
    for _ in range(MAX_REAIMS + 2):
        pages.apply(gang.tick(pages.views, pages.alive, 5 * MS))
        pages.views[1] = [NEVER] * 64
    assert gang.generation < 100 and gang.pace.slowest_ns < NEVER
    assert pages.views[0][W_LAST_NS] == 0


def test_beat_is_one_word():
    assert beat(5) == ((W_BEAT, 5),)
