"""What a node does at each order about its part of a span, and what it answers."""

import asyncio
from dataclasses import replace

import pytest

from gandiva_slurm.model import span as words
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.node.part import Part
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.span import SpanOrder
from tests.node_bench import QUANTUM_NS
from tests.node_floor import SPAN, S, running


def test_in_by_round_reserve_and_go(floor):
    node = floor()
    one, two = node.add(1, "user1", (0,)), node.add(2, "user2", (1,))
    node.quantum()
    assert node.holders() == {1, 2}
    node.clock.now_ns += QUANTUM_NS
    order = SpanOrder("n1", 1, next(node.seq), words.ROUND, spans=((SPAN, 0, words.IN),))
    asyncio.run(node.spans.take(order))
    assert node.phase() == words.RESERVED and not node.holds()
    node.settle()
    assert (one.holds, two.holds, node.phase()) == (False, False, words.READY)
    assert node.order(words.RESERVE).ok
    node.wait(QUANTUM_NS // 2)
    assert node.holders() == set()
    answer = node.order(words.GO)
    assert answer.ok and answer.parts[0].phase == words.ON
    assert node.holders() == {SPAN}


def test_reserve_without_a_round_clears_only_its_gpus(floor):
    node = floor(gpus=3)
    for job_id in (1, 2, 3):
        node.add(job_id, f"user{job_id}", (job_id - 1,))
    assert node.holders() == {1, 2, 3}
    node.order(words.RESERVE)
    assert node.phase() == words.READY and node.holders() == {3}
    assert node.order(words.UNRESERVE).ok
    assert node.phase() == words.OFF and node.holders() == {1, 2, 3}


def test_a_gpu_that_cannot_be_cleared_is_told_at_once(floor):
    node = floor(client_wait_ns=1000 * S)
    node.add(1, "user1", (0,))
    answer = node.order(words.RESERVE, wait_ms=60_000)
    assert (answer.ok, answer.code, answer.parts[0].phase) == (False, words.NO, words.RESERVED)
    assert "job 1.0" in answer.why
    held = {row.job_id: row for row in node.order(words.GATHER, 0).held}
    assert held[1].must_stay and held[1].state == "on" and held[1].left_ns == -1
    # As soon as it can be parked it is, for the span still waits.
    node.resident(1).counts.blind_ns = 2000 * S
    node.wait(1)
    assert node.phase() == words.READY


def test_a_span_is_never_chosen_nor_parked_by_its_node(floor):
    node = running(floor)
    node.add(1, "user1", (0,))
    node.quantum(20)
    assert node.holders() == {SPAN} and node.phase() == words.ON
    node.park()
    assert node.holders() == {1}
    node.quantum(20)
    assert node.holders() == {1} and node.phase() == words.OFF


def test_out_by_aim_commit_and_free(floor):
    node = running(floor)
    node.add(1, "user1", (0,))
    node.round((SPAN, words.OUT))
    assert node.holders() == {SPAN}
    answer = node.order(words.AIM, at=110)
    assert answer.code == words.LATE and answer.parts[0].phase == words.AIMING
    node.say(wire.HOLD)
    assert node.phase() == words.HOLDING and node.commands() == [wire.CMD_AIM] * 2
    answer = node.order(words.COMMIT)
    assert answer.code == words.LATE and node.commands() == [wire.CMD_COMMIT] * 2
    assert not node.resident().is_at_rest
    node.say(wire.PARKED)
    assert node.order(words.COMMIT).ok and node.phase() == words.RELEASED
    # What comes to it now is stopped, as if its GPUs were given on already.
    assert node.resident().is_at_rest
    # Its GPUs are nobody's until FREE.
    node.quantum()
    assert node.holders() == {SPAN} and node.holds()
    answer = node.order(words.FREE)
    assert answer.ok and answer.parts[0].phase == words.OFF
    assert node.holders() == {1} and not node.holds()
    (parked,) = [event for event in node.events() if event["event"] == "parked"]
    assert parked["off_boundary"] == 0


def test_aim_is_answered_when_all_hold(floor):
    node = running(floor)

    async def aim():
        order = SpanOrder("n1", 1, next(node.seq), words.AIM, SPAN, 0, 110, wait_ms=10_000)
        task = asyncio.create_task(node.spans.take(order))
        await asyncio.sleep(0)
        assert not task.done()
        node.say(wire.HOLD)
        return await asyncio.wait_for(task, 5)

    answer = asyncio.run(aim())
    assert answer.ok and answer.parts[0].phase == words.HOLDING and answer.parts[0].at == 110


def test_a_miss_is_told_at_once_and_aimed_again(floor):
    node = running(floor)
    node.order(words.AIM, at=110)
    node.say(wire.RUN, seq=111, which=0)
    answer = node.order(words.AIM, at=90)
    assert answer.code == words.MISS and answer.parts[0].max_seq == 111 and "boundary 90" in answer.why
    node.order(words.AIM, at=130)
    node.say(wire.HOLD)
    assert node.phase() == words.HOLDING and node.holds()


def test_a_newer_order_ends_the_wait_of_an_older_one_and_an_older_one_is_refused(floor):
    node = running(floor)

    async def both():
        old = SpanOrder("n1", 1, next(node.seq), words.AIM, SPAN, 0, 110, wait_ms=10_000)
        new = replace(old, seq=next(node.seq), at=130)
        waiting = asyncio.create_task(node.spans.take(old))
        await asyncio.sleep(0)
        fresh = asyncio.create_task(node.spans.take(new))
        stale = await asyncio.wait_for(waiting, 5)
        again = await node.spans.take(old)
        node.say(wire.HOLD)
        return stale, again, await asyncio.wait_for(fresh, 5)

    stale, again, fresh = asyncio.run(both())
    assert (stale.code, again.code) == (words.STALE, words.STALE)
    assert fresh.ok and fresh.parts[0].at == 130


def test_the_same_order_again_changes_nothing_and_is_answered(floor):
    node = running(floor)
    seq = next(node.seq)
    node.order(words.AIM, at=110, seq=seq)
    generation = node.pages[0].read()[wire.W_WORD] >> 8
    node.order(words.AIM, at=110, seq=seq)
    assert node.pages[0].read()[wire.W_WORD] >> 8 == generation
    node.say(wire.HOLD)
    assert node.order(words.AIM, at=110, seq=seq).ok


@pytest.mark.parametrize(
    ("phase", "obeyed"),
    [
        (words.OFF, {"RESERVE", "UNRESERVE", "FREE"}),
        (words.READY, {"RESERVE", "UNRESERVE", "GO"}),
        (words.ON, {"RESERVE", "GO", "RUN", "AIM", "FREEZE"}),
        (words.AIMING, {"AIM", "RUN", "FREEZE"}),
        (words.HOLDING, {"AIM", "COMMIT", "RUN", "FREEZE"}),
        (words.RELEASING, {"COMMIT", "RUN"}),
        (words.RELEASED, {"COMMIT", "FREEZE", "FREE", "RUN"}),
    ],
)
@pytest.mark.parametrize("what", [w for w in words.ORDERS if w not in (words.GATHER, words.ROUND)])
def test_each_order_is_obeyed_from_its_phases_only(floor, phase, obeyed, what):
    node = running(floor)
    if phase in (words.OFF, words.READY):
        node.park()
    if phase == words.READY:
        node.order(words.RESERVE)
    elif phase not in (words.OFF, words.ON):
        node.park(phase)
    assert node.phase() == phase
    commands = node.commands()
    answer = node.order(what, at=120 if what == words.AIM else 0)
    if what in obeyed:
        assert answer.code in ("", words.LATE)
    else:
        assert answer.code == words.NO and node.commands() == commands and node.phase() == phase


def test_orders_of_an_older_controller_or_for_another_node_are_refused(floor):
    node = floor()
    node.plan(epoch_ns=7)
    assert node.order(words.GATHER, 0, epoch_ns=6).code == words.STALE
    assert node.order(words.RESERVE, epoch_ns=6).code == words.STALE
    assert node.order(words.RESERVE, 99, epoch_ns=7).code == words.NO
    assert node.order(words.RESERVE, restart=1, epoch_ns=7).code == words.NO
    for order in (SpanOrder("n2", 7, 99, words.GATHER), SpanOrder("n1", 7, 99, "DANCE")):
        with pytest.raises(PeerError):
            asyncio.run(node.spans.take(order))


def test_a_round_is_a_quantum_once_and_an_older_one_nothing(floor):
    node = floor()
    for job_id in (1, 2):
        node.add(job_id, f"user{job_id}", (0,))
    node.clock.now_ns += QUANTUM_NS
    node.order(words.ROUND, 0, seq=100)
    assert node.holders() == {2}
    node.clock.now_ns += QUANTUM_NS
    node.order(words.ROUND, 0, seq=100)
    assert node.order(words.ROUND, 0, seq=99).code == words.STALE
    assert node.holders() == {2}
    node.order(words.ROUND, 0, seq=101)
    assert node.holders() == {1}


def test_rounds_are_waited_for_half_a_quantum_longer_then_the_node_goes_on_alone(floor):
    node = floor(gpus=2)
    node.add(1, "user1", (0,))
    start = node.clock.now_ns
    node.round()
    assert node.slicer.quantum_end_ns == start + QUANTUM_NS * 3 // 2
    node.clock.now_ns += QUANTUM_NS
    node.slicer.fill()
    assert node.slicer.quantum_end_ns == start + QUANTUM_NS * 3 // 2
    node.clock.now_ns = start + QUANTUM_NS * 3 // 2
    node.slicer.quantum()
    assert node.slicer.quantum_end_ns == node.clock.now_ns + QUANTUM_NS


def test_orders_of_an_older_controller_or_from_before_the_last_are_not_obeyed():
    part = Part(())
    assert part.obey(epoch_ns=2, seq=5) and part.obey(2, 6)
    assert not part.obey(2, 5) and not part.obey(1, 7)
    assert part.obey(3, 1), "a new controller counts anew"
