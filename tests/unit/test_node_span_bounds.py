"""Nobody waits for ever for a controller: bounds of parts, the lease, and orders in any order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.wire import page as wire
from tests.node_floor import SPAN, Floor, S, running

# bounds


@pytest.mark.parametrize(
    ("phase", "bound_ns"),
    [
        (words.AIMING, words.HOLD_BOUND_NS),
        (words.HOLDING, words.HOLD_BOUND_NS),
        (words.RELEASED, words.RELEASED_BOUND_NS),
    ],
)
def test_a_silent_controller_holds_nobody(floor, phase, bound_ns):
    node = running(floor)
    node.add(1, "user1", (0,))
    node.round((SPAN, words.OUT))
    node.park(phase)
    node.wait(0)
    node.wait(bound_ns // 2)
    assert node.phase() == phase
    node.wait(bound_ns // 2 + 1)
    assert node.phase() == words.ON and node.commands() == [wire.CMD_RUN] * 2
    node.say(wire.RUN)
    # Its GPUs were given to nobody, its hold went on, and it is not asked again at once.
    assert node.holders() == {SPAN} and node.resident().must_stay(0)
    assert len([h for h in node.node.ledger.report(node.clock.real()) if h.job_id == SPAN]) == 1


def test_ranks_that_do_not_release_are_called_back(floor):
    node = running(floor)
    node.park(words.RELEASING)
    node.say(wire.PARKED, which=0)
    node.wait(0)
    node.wait(node.node.settings.park_deadline_ns + 1)
    assert node.phase() == words.ON and node.commands() == [wire.CMD_COMMIT] * 2
    node.say(wire.PARKED, which=1)
    assert node.commands() == [wire.CMD_RUN] * 2


def test_committed_again_a_release_is_waited_for_longer(floor):
    node = running(floor)
    node.park(words.RELEASED)
    node.wait(0)
    for _ in range(5):
        node.wait(words.RELEASED_BOUND_NS // 2)
        assert node.order(words.COMMIT).ok
    assert node.phase() == words.RELEASED


def test_cleared_gpus_are_given_back_when_no_go_comes(floor):
    node = floor()
    node.add(1, "user1", (0,))
    node.order(words.RESERVE)
    node.wait(words.READY_BOUND_NS - 1)
    node.order(words.RESERVE)
    node.wait(words.READY_BOUND_NS - 1)
    assert node.phase() == words.READY
    node.wait(2)
    assert node.phase() == words.OFF and node.holders() == {1}
    assert node.order(words.GO).code == words.NO


def test_gpus_that_do_not_come_free_are_not_waited_for_for_ever(floor):
    node = floor(client_wait_ns=1000 * S)
    node.add(1, "user1", (0,))
    node.order(words.RESERVE)
    node.wait(2 * node.node.settings.park_deadline_ns + 1)
    assert node.phase() == words.OFF and node.holders() == {1}


def test_a_park_ends_at_its_bound_whatever_the_controller_says(floor):
    node = running(floor)
    node.park()
    node.add(1, "user1", (0,))
    (stand,) = node.order(words.GATHER, 0).parts
    assert stand.left_ns == node.node.settings.max_park_ns
    node.resident(1).counts.blind_ns = 2000 * S
    node.wait(node.node.settings.max_park_ns - 1)
    assert node.phase() == words.OFF
    node.wait(1)
    assert node.phase() == words.ON and node.holders() == {SPAN}


def test_past_its_bound_it_waits_for_another_span_that_has_its_gpus(floor):
    node = running(floor)
    node.planned[51] = node.a_part(51, (1,))
    node.plan()
    node.park()
    node.come_in(51)
    node.wait(node.node.settings.max_park_ns)
    assert (node.phase(), node.phase(51)) == (words.OFF, words.ON)


def test_a_span_without_client_is_frozen_for_its_bound(floor):
    node = floor()
    node.come_in()
    node.resident().part.has_begun = True
    assert node.order(words.FREEZE).parts[0].phase == words.FREEZING
    assert node.order(words.FREEZE).ok and node.phase() == words.RELEASED
    assert node.order(words.FREE).ok and node.resident().is_frozen
    node.wait(node.node.settings.freeze_bound_ns - 1)
    assert node.phase() == words.OFF
    node.wait(1)
    assert node.phase() == words.ON and not node.resident().is_frozen


def test_a_frozen_span_is_called_back(floor):
    node = floor()
    node.come_in()
    node.order(words.FREEZE)
    assert node.order(words.RUN).ok
    assert node.phase() == words.ON and not node.resident().is_frozen


# the lease


def test_when_the_lease_is_over_what_was_to_be_on_comes_and_the_rest_stays_parked(floor):
    node = running(floor, 0)
    for job_id, gpus in ((51, (0,)), (52, (1,))):
        node.planned[job_id] = node.a_part(job_id, gpus)
    node.plan()
    node.park()
    for where, want in (("in", words.ON), ("back", words.ON), ("out", words.OFF)):
        node.round((SPAN, "out"), (51, where), (52, "out"), lease_ms=3000)
        node.wait(2 * S)
        node.round((SPAN, "out"), (51, where), (52, "out"), lease_ms=3000)
        node.wait(2 * S)
        assert node.phase(51) == (words.READY if where == "in" else words.OFF)
        node.wait(S)
        assert (node.phase(), node.phase(51), node.phase(52)) == (words.OFF, want, words.OFF)
        if want == words.ON:
            node.order(words.FREEZE, 51)
            node.order(words.FREE, 51)


@pytest.mark.parametrize("comes_back", [False, True])
def test_one_that_went_out_in_mid_quantum_comes_back_by_itself_where_it_was_told_so(floor, comes_back):
    """The round before had it on."""
    node = running(floor)
    node.round((SPAN, words.STAY), lease_ms=3000)
    node.park(words.RELEASED)
    node.order(words.FREE, comes_back=comes_back)
    node.wait(2 * S)
    assert node.phase() == words.OFF
    node.wait(2 * S)
    assert node.phase() == (words.ON if comes_back else words.OFF)


def test_when_the_lease_is_over_what_is_on_stays_though_it_was_told_out(floor):
    node = running(floor)
    node.add(1, "user1", (0,))
    node.round((SPAN, words.OUT), lease_ms=3000)
    assert node.slicer.wanted == [JobKey(1, 0)]
    node.wait(3 * S)
    assert node.slicer.wanted == [] and node.phase() == words.ON


# whatever comes

_HELD = (words.ON, words.AIMING, words.HOLDING, words.RELEASING, words.FREEZING, words.RELEASED)
_TOLD = [what for what in words.ORDERS if what != words.GATHER]


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_is_ordered_a_gpu_has_one_holder_and_every_hold_is_in_the_books(data, tmp_path_factory):
    node = Floor(tmp_path_factory.mktemp("floor"), client_wait_ns=1000 * S)
    node.planned[51] = node.a_part(51, (1,))
    node.plan()
    node.add(1, "user1", (0,)).counts.blind_ns = 2000 * S
    node.begin(0, 1)
    for _ in range(data.draw(st.integers(5, 40))):
        what = data.draw(st.sampled_from([*_TOLD, "say", "wait", "quantum", "in", "in", "out", "out"]))
        if what == "in":
            for order in (words.RESERVE, words.GO):
                node.order(order, data.draw(st.sampled_from([SPAN, 51])))
        elif what == "out":
            node.park(data.draw(st.sampled_from([words.AIMING, words.HOLDING, words.RELEASED, words.OFF])))
        elif what == "say":
            node.say(data.draw(st.sampled_from([wire.HOLD, wire.PARKED, wire.RUN, wire.FAILED])))
        elif what == "wait":
            node.wait(data.draw(st.sampled_from([0, S, 3 * S, 6 * S])))
        elif what == "quantum":
            node.quantum()
        elif what == words.ROUND:
            where = st.sampled_from([words.IN, words.STAY, words.OUT, words.BACK])
            node.round((SPAN, data.draw(where)), (51, data.draw(where)), lease_ms=10_000)
        else:
            node.order(what, data.draw(st.sampled_from([SPAN, 51])), at=110 if what == words.AIM else 0)
        for job_id in (SPAN, 51):
            assert node.holds(job_id) == (node.phase(job_id) in _HELD)
    # A silent controller: nothing is left in mid-turn.
    for _ in range(4):
        node.say(wire.PARKED)
        node.wait(30 * S + 1)
        node.say(wire.RUN)
    assert {node.phase(), node.phase(51)} <= {words.OFF, words.ON}
    for page in node.pages:
        page.close()
