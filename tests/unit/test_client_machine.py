"""The rank's half of the park protocol, transition by transition."""

import pytest

from gandiva_slurm.client import machine
from gandiva_slurm.client.machine import GO, RELEASE, RESTORE, WAIT, Bounds, Order, Place, advance
from gandiva_slurm.wire.page import (
    CMD_AIM,
    CMD_COMMIT,
    CMD_RUN,
    FAILED,
    HOLD,
    LEFT,
    NEVER,
    PARKED,
    RELEASING,
    RESTORING,
    RUN,
    W_MISSED_GEN,
    W_STATE,
    W_STATE_GEN,
    W_STATE_SEQ,
    word,
)

SECOND = 1_000_000_000
BOUNDS = Bounds(hold_ns=1 * SECOND, grace_ns=60 * SECOND)
HOLDING = Place(state=HOLD, gen=7, seq=100)
IS_PARKED = Place(state=PARKED, gen=7, seq=100)


def order(command, gen, at=100, wake_by_ns=0, beat_ns=0):
    return Order(at, word(gen, command), wake_by_ns, beat_ns)


@pytest.mark.parametrize(
    "place, seq, told, want_state, want_effect",
    [
        pytest.param(Place(), 99, order(CMD_AIM, 7), RUN, GO, id="aim ahead: train on"),
        pytest.param(Place(), 100, order(CMD_AIM, 7), HOLD, WAIT, id="aim here: hold"),
        pytest.param(Place(), 101, order(CMD_AIM, 7), RUN, GO, id="aim behind: missed, train on"),
        pytest.param(Place(), 100, order(CMD_RUN, 7, NEVER), RUN, GO, id="run"),
        pytest.param(Place(), 100, order(4, 7), RUN, GO, id="a command of a later version: train on"),
        pytest.param(Place(), 55, order(CMD_COMMIT, 7, 0), RELEASING, RELEASE, id="commit at any boundary"),
        pytest.param(
            Place(), 100, order(CMD_COMMIT, 7), RUN, GO, id="commit of a park not held for: train on"
        ),
        pytest.param(Place(served=7), 100, order(CMD_COMMIT, 7, 0), RUN, GO, id="commit served already"),
        pytest.param(
            Place(state=LEFT, gen=7, served=7), 101, order(CMD_AIM, 7), LEFT, GO, id="left this one"
        ),
        pytest.param(
            Place(state=LEFT, gen=7, served=7), 100, order(CMD_AIM, 8), HOLD, WAIT, id="holds again"
        ),
        pytest.param(HOLDING, 100, order(CMD_AIM, 7), HOLD, WAIT, id="holding: still waiting"),
        pytest.param(HOLDING, 100, order(CMD_COMMIT, 7), RELEASING, RELEASE, id="holding: committed"),
        pytest.param(HOLDING, 100, order(CMD_COMMIT, 8), RUN, GO, id="holding: another park is committed"),
        pytest.param(HOLDING, 100, order(CMD_RUN, 8, NEVER), RUN, GO, id="holding: called off"),
        pytest.param(HOLDING, 100, order(CMD_AIM, 8, 104), RUN, GO, id="holding: aimed anew ahead"),
        pytest.param(HOLDING, 100, order(CMD_AIM, 8, 100), HOLD, WAIT, id="holding: aimed anew here"),
        pytest.param(HOLDING, 100, order(CMD_AIM, 8, 90), RUN, GO, id="holding: aimed anew behind"),
        pytest.param(HOLDING, 100, order(CMD_AIM, 7, 103), RUN, GO, id="holding: half a command seen"),
        pytest.param(Place(RELEASING, 7, 100), 100, order(CMD_COMMIT, 7), PARKED, WAIT, id="released"),
        pytest.param(IS_PARKED, 100, order(CMD_COMMIT, 7), PARKED, WAIT, id="parked"),
        pytest.param(IS_PARKED, 100, order(CMD_RUN, 8, NEVER), RESTORING, RESTORE, id="parked: resumed"),
        pytest.param(
            IS_PARKED, 100, order(CMD_AIM, 9, 103), RESTORING, RESTORE, id="parked: lost the resume"
        ),
        pytest.param(Place(RESTORING, 7, 100), 100, order(CMD_RUN, 8, NEVER), RUN, GO, id="restored"),
        pytest.param(
            Place(RESTORING, 7, 100), 100, order(CMD_AIM, 9), HOLD, WAIT, id="restored: hold at once"
        ),
        pytest.param(Place(RESTORING, 7, 100), 100, order(CMD_COMMIT, 7), LEFT, GO, id="restored by itself"),
    ],
)
def test_advance(place, seq, told, want_state, want_effect):
    after, effect = advance(place, told, seq, 0, BOUNDS)
    assert (after.state, effect) == (want_state, want_effect)


def test_hold_remembers_what_it_answers():
    after, _ = advance(Place(), order(CMD_AIM, 7), 100, 5, BOUNDS)
    assert after == Place(state=HOLD, gen=7, seq=100, since_ns=5)


@pytest.mark.parametrize("seq, at", [(101, 100), (100, 90)])
def test_missed_names_the_generation(seq, at):
    after, _ = advance(Place(), order(CMD_AIM, 7, at), seq, 0, BOUNDS)
    assert after.missed == 7


@pytest.mark.parametrize(
    "now_s, beat_s, want_state",
    [(0.9, 0.9, HOLD), (1.1, 1.1, LEFT)],
)
def test_hold_is_left_when_it_lasts_too_long(now_s, beat_s, want_state):
    told = order(CMD_AIM, 7, beat_ns=int(beat_s * SECOND))
    after, _ = advance(HOLDING, told, 100, int(now_s * SECOND), BOUNDS)
    assert after.state == want_state


@pytest.mark.parametrize("silence_s, want_state", [(4.9, HOLD), (5.1, LEFT)])
def test_hold_is_left_when_the_node_is_silent(silence_s, want_state):
    patient = Bounds(hold_ns=100 * SECOND, grace_ns=0)
    after, _ = advance(HOLDING, order(CMD_AIM, 7), 100, int(silence_s * SECOND), patient)
    assert after.state == want_state


@pytest.mark.parametrize(
    "now_s, wake_by_s, beat_s, want_effect",
    [
        pytest.param(159, 100, 0, WAIT, id="within the grace"),
        pytest.param(161, 100, 0, RESTORE, id="beyond it, node silent"),
        pytest.param(161, 100, 140, WAIT, id="beyond it, node alive"),
        pytest.param(59, 0, 0, WAIT, id="no wake-by time: the grace counts from the park"),
        pytest.param(61, 0, 0, RESTORE, id="no wake-by time, node silent"),
    ],
)
def test_parked_rank_restores_itself(now_s, wake_by_s, beat_s, want_effect):
    told = order(CMD_COMMIT, 7, wake_by_ns=wake_by_s * SECOND, beat_ns=beat_s * SECOND)
    after, effect = advance(IS_PARKED, told, 100, now_s * SECOND, BOUNDS)
    assert effect == want_effect
    if effect == RESTORE:
        assert advance(after, told, 100, now_s * SECOND, BOUNDS)[0] == Place(LEFT, 7, 100, served=7)


@pytest.mark.parametrize(
    "told, seq, want_missed",
    [
        pytest.param(order(CMD_AIM, 7), 100, 7, id="aimed here"),
        pytest.param(order(CMD_AIM, 7), 99, 0, id="aimed ahead"),
        pytest.param(order(CMD_COMMIT, 7, 0), 100, 0, id="any boundary will do: the next one"),
        pytest.param(order(CMD_RUN, 7, NEVER), 100, 0, id="run"),
    ],
)
def test_unfit_boundary_is_passed_by(told, seq, want_missed):
    assert machine.pass_by(Place(), told, seq) == Place(missed=want_missed)


def test_failed_park_is_not_tried_again():
    place = machine.failed(Place(state=RELEASING, gen=7, seq=100))
    assert place.state == FAILED
    assert advance(place, order(CMD_COMMIT, 7, 0), 101, 0, BOUNDS) == (place, GO)


@pytest.mark.parametrize(
    "before, after, want_words",
    [
        (Place(), Place(HOLD, 7, 100), [(W_STATE_SEQ, 100), (W_STATE_GEN, 7), (W_STATE, HOLD)]),
        (HOLDING, HOLDING._replace(state=RELEASING), [(W_STATE, RELEASING)]),
        (HOLDING, HOLDING._replace(gen=8), [(W_STATE_GEN, 8)]),
        (HOLDING, Place(RUN, 7, 100, missed=8), [(W_MISSED_GEN, 8), (W_STATE, RUN)]),
        (HOLDING, HOLDING._replace(since_ns=9, served=3), []),
        (
            Place(LEFT, 7, 100),
            Place(HOLD, 9, 120),
            [(W_STATE, RUN), (W_STATE_SEQ, 120), (W_STATE_GEN, 9), (W_STATE, HOLD)],
        ),
    ],
)
def test_publish_writes_state_last(before, after, want_words):
    assert list(machine.publish(before, after)) == want_words
