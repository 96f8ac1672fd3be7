"""A part of a span that is to be moved: its ranks save themselves between COMMIT and `released`."""

import asyncio
from dataclasses import replace

import pytest

from gandiva_slurm.model import span as words
from gandiva_slurm.model.job import RUNNING
from gandiva_slurm.node.leaving import HEARD_NS
from gandiva_slurm.node.report import make_report
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.span import SpanOrder
from tests.node_floor import SPAN, S, running


def attached(floor):
    """A part that is on, both of its ranks attached."""
    node = running(floor)
    for page in node.pages:
        page.write([(wire.W_KIND, wire.KIND_RUN)])
    return node


def tell(node, is_leaving=True, own_save_s=0):
    """Send the plan that tells the span to leave, or to stay."""
    node.planned[SPAN] = replace(node.planned[SPAN], is_leaving=is_leaving, own_save_s=own_save_s)
    node.plan()


def used(node, tier, which=None):
    """Note on the pages what the ranks have done to park."""
    for page in node.pages if which is None else [node.pages[which]]:
        page.write([(wire.W_TIER_USED, tier)])


def tiers(node):
    return {page.read()[wire.W_TIER] for page in node.pages}


def hold(node):
    """Bring it to COMMIT; its ranks have begun to save themselves."""
    node.order(words.AIM, at=110, saves=True)
    node.say(wire.HOLD)
    node.order(words.COMMIT)
    node.say(wire.RELEASING)
    assert node.phase() == words.RELEASING


def save(node):
    """All its ranks save themselves and park."""
    used(node, wire.TIER_REQUEUE)
    node.say(wire.PARKED)


def told(node):
    (row,) = [row for row in make_report(node.node).residents if row.job_id == SPAN]
    return row


def part(node):
    return node.order(words.GATHER, 0).parts[0]


def test_told_to_save_all_its_ranks_have_left_when_they_are_freed(floor):
    node = attached(floor)
    assert told(node).is_movable and not told(node).has_left
    tell(node)
    assert node.phase() == words.ON, "the controller says when, for all its nodes"
    hold(node)
    assert tiers(node) == {wire.TIER_REQUEUE}
    assert told(node).detail == "saves itself, to be moved"
    save(node)
    assert node.phase() == words.RELEASED
    assert not told(node).has_left and not part(node).has_saved, "others may have failed"
    assert node.order(words.FREE).ok
    assert told(node).has_left and part(node).has_saved
    assert [line["event"] for line in node.events() if "saved" in line["event"]] == ["saved"]


def test_one_that_is_to_be_signalled_keeps_its_turn_whatever_is_ordered(floor):
    """An order that was on its way when the plan came must not park it in the middle of its save."""
    node = running(floor)
    tell(node, own_save_s=20)
    assert told(node).has_floor
    for answer in (node.order(words.AIM, at=110), node.order(words.FREEZE)):
        assert (answer.code, answer.why) == (words.NO, "it keeps its turn, to save itself upon its signal")
    assert node.phase() == words.ON
    tell(node, is_leaving=False)
    assert not told(node).has_floor and node.order(words.AIM, at=110).code == words.LATE


def test_one_that_is_being_parked_does_not_keep_its_turn(floor):
    node = running(floor)
    node.order(words.AIM, at=110)
    tell(node, own_save_s=20)
    assert not told(node).has_floor
    node.order(words.RUN)
    node.say(wire.RUN)
    assert told(node).has_floor


def test_one_that_has_left_is_woken_by_no_bound_but_by_a_long_silence(floor):
    node = attached(floor)
    tell(node)
    hold(node)
    save(node)
    node.order(words.FREE)
    for _ in range(3):
        node.clock.now_ns += node.node.settings.max_park_ns
        node.plan()
        node.wait(0)
        assert node.phase() == words.OFF and told(node).has_left
    node.wait(HEARD_NS + 1)
    assert node.phase() == words.ON, "nobody might ever requeue it"


def test_told_to_stay_it_comes_in_again_and_parks_as_ever(floor):
    node = attached(floor)
    tell(node)
    hold(node)
    save(node)
    node.order(words.FREE)
    tell(node, is_leaving=False)
    assert not told(node).has_left
    node.come_in()
    node.say(wire.RUN)
    node.order(words.AIM, at=130)
    assert tiers(node) == {wire.TIER_HOLD}
    node.say(wire.HOLD)
    node.order(words.COMMIT)
    used(node, wire.TIER_HOLD)
    node.say(wire.PARKED)
    node.order(words.FREE)
    assert not part(node).has_saved


def test_a_plan_that_comes_after_the_save_is_not_too_late(floor):
    node = attached(floor)
    hold(node)
    save(node)
    node.order(words.FREE)
    assert part(node).has_saved and not told(node).has_left
    tell(node)
    assert told(node).has_left


def test_a_rank_that_cannot_save_itself_lets_its_part_go_on(floor):
    node = attached(floor)
    tell(node)
    hold(node)
    used(node, wire.TIER_REQUEUE, which=0)
    node.say(wire.PARKED, which=0)
    assert node.phase() == words.RELEASING
    text = b"NotSaved: disk full".ljust(24, b"\0")
    words_ = [int.from_bytes(text[n : n + 8], "little") for n in range(0, len(text), 8)]
    node.pages[1].write([(wire.ERROR_OFFSET // 8 + n, word) for n, word in enumerate(words_)])

    async def waits():
        order = SpanOrder("n1", 1, next(node.seq), words.COMMIT, SPAN, 0, 110, wait_ms=60_000)
        task = asyncio.create_task(node.spans.take(order))
        await asyncio.sleep(0)
        assert not task.done()
        node.say(wire.FAILED, which=1)
        return await asyncio.wait_for(task, 60)

    answers = asyncio.run(waits()), node.order(words.COMMIT)
    assert {(answer.code, answer.why) for answer in answers} == {(words.NO, "NotSaved: disk full")}
    assert node.phase() == words.ON and node.commands() == [wire.CMD_RUN] * 2
    assert told(node).detail.startswith("save failed: NotSaved: disk full")
    assert not node.resident().refusal.failures, "it is no fault of its parking"


@pytest.mark.parametrize("is_done", [False, True], ids=["still saving", "saved"])
def test_what_another_node_failed_to_save_is_taken_back_here(floor, is_done):
    node = attached(floor)
    tell(node)
    hold(node)
    if is_done:
        save(node)
    assert node.order(words.RUN).ok
    assert node.phase() == words.ON
    if not is_done:
        assert node.commands() == [wire.CMD_COMMIT] * 2, "what saves itself is not disturbed"
        save(node)
    assert node.commands() == [wire.CMD_RUN] * 2
    node.say(wire.RUN)
    assert "save failed" in told(node).detail and not told(node).has_left
    assert not node.resident().refusal.failures


def test_one_called_back_that_saves_itself_for_long_still_finds_the_order_to_train(floor):
    node = attached(floor)
    tell(node)
    hold(node)
    node.order(words.RUN)
    node.wait(2 * node.node.settings.park_deadline_ns)
    assert node.resident().state == RUNNING, "its pages do not pin its GPUs to it"
    save(node)
    assert node.commands() == [wire.CMD_RUN] * 2, "its ranks would wait for ever"


def test_what_a_save_failed_by_is_not_said_of_a_park_that_fails_later(floor):
    node = attached(floor)
    tell(node)
    hold(node)
    node.say(wire.FAILED)
    assert "did not release" in node.order(words.COMMIT).why
    node.say(wire.RUN)
    node.order(words.AIM, at=130)
    node.say(wire.HOLD)
    node.order(words.COMMIT)
    node.say(wire.RELEASING)
    node.resident().sets[0].ranks[1].is_alive = False
    used(node, wire.TIER_HOLD)
    node.say(wire.PARKED, which=0)
    assert "its ranks do not hold" in node.order(words.COMMIT).why
    assert "save failed" not in told(node).detail


def test_a_save_that_fails_when_nobody_asks_for_it_any_more_is_not_said_to_be_tried_again(floor):
    node = attached(floor)
    tell(node)
    hold(node)
    tell(node, is_leaving=False)
    node.say(wire.FAILED)
    node.say(wire.RUN)
    assert "save failed" not in told(node).detail


def test_a_save_has_time_of_its_own_and_no_more(floor):
    node = attached(floor)
    hold(node)
    settings = node.node.settings
    node.wait(0)
    node.wait(settings.park_deadline_ns + S)
    assert node.phase() == words.RELEASING
    node.wait(settings.save_deadline_ns)
    assert node.phase() == words.ON


def test_a_gang_that_is_not_attached_is_not_asked_to_save(floor):
    node = running(floor)
    assert not told(node).is_movable
    tell(node)
    hold(node)
    assert tiers(node) == {wire.TIER_HOLD}
    used(node, wire.TIER_HOLD)
    node.say(wire.PARKED)
    node.order(words.FREE)
    assert not told(node).has_left and not part(node).has_saved


def test_one_that_is_frozen_has_not_left(floor):
    node = attached(floor)
    tell(node)
    node.order(words.FREEZE)
    node.order(words.FREE)
    assert node.phase() == words.OFF and not told(node).has_left and not part(node).has_saved
