"""Ranks that are asked to write themselves while they are parked: by hand, on a clock moved by hand."""

import asyncio
import itertools
import types
from dataclasses import replace

import pytest

from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node import behind
from gandiva_slurm.node.rest import WAKE_NS, Rest
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.wire import page as wire
from tests.node_bench import QUANTUM_NS
from tests.unit.test_node_leaving import Floor, S

EVERY_NS = 10 * S


class Loop:
    """Keeps what is to be called later, and does it when it is told to."""

    def __init__(self):
        self.later = []

    def call_later(self, _after_s, function, *args):
        self.later.append((function, args))

    def turn(self):
        todo, self.later = self.later, []
        for function, args in todo:
            function(*args)


@pytest.fixture
def floor(tmp_path, monkeypatch):
    made = Floor(tmp_path)
    made.node.settings = replace(made.node.settings, checkpoint_parked_ns=EVERY_NS)
    made.loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made.loop)
    #: how often each job was frozen
    made.shut = types.SimpleNamespace(count=0)
    real = made.slicer.switcher.shut

    def shut(resident):
        made.shut.count += 1
        real(resident)

    monkeypatch.setattr(made.slicer.switcher, "shut", shut)
    yield made
    for resident in made.node.residents.values():
        for rank in resident.ranks:
            rank.page.close()


def told(floor, event):
    return [line for line in floor.events() if line["event"] == event]


def write_and_park(floor, job, saving=1):
    """Its ranks park, and show that they write."""
    for rank in job.ranks:
        rank.page.write([(wire.W_SAVING, saving)])
    floor.park(job)


def to_a_park(floor, job, held_s=9.5):
    """Two jobs share the GPU; the first has held it for so long, and is asked to park."""
    other = floor.train(2)
    floor.park(other)
    floor.clock.now_ns += round(held_s * S) - QUANTUM_NS
    floor.next_quantum()
    assert job.state == "SUSPENDING"
    return other


def end(job, is_whole=True):
    """Its ranks are through."""
    for rank in job.ranks:
        page = rank.page.read()
        rank.page.write([(wire.W_SAVED, page[wire.W_STATE_SEQ] if is_whole else 0), (wire.W_SAVING, 0)])


@pytest.mark.parametrize("world", [1, 2])
def test_it_writes_beside_the_next_job_s_turn_and_is_frozen_then(floor, world):
    job = floor.train(1, world)
    other = to_a_park(floor, job)
    assert floor.tier(job) == wire.TIER_BEHIND
    write_and_park(floor, job)
    assert job.state == SUSPENDED and other.holds, "its GPU is given on at once"
    assert floor.shut.count == 0 and job.awake_until_ns
    held_ns = job.counts.held_ns
    floor.clock.now_ns += S // 2
    floor.loop.turn()
    assert floor.shut.count == 0 and floor.loop.later
    end(job)
    floor.loop.turn()
    assert floor.shut.count == 1 and not floor.loop.later and not job.awake_until_ns
    assert job.counts.written_ns == job.counts.held_ns - held_ns == S // 2, "it pays for that"
    assert len(told(floor, "written")) == 1 and not told(floor, "unwritten")
    assert floor.told(1).written_ns == S // 2
    assert read_job(state_of(floor.node)["jobs"][0], "n1")[0].counts == job.counts


def test_it_is_asked_again_when_it_has_held_its_gpus_for_as_long_again(floor):
    job = floor.train(1)
    other = to_a_park(floor, job)
    write_and_park(floor, job, saving=0)
    asked = [(9.5, wire.TIER_BEHIND)]
    for _ in range(80):
        for one in (job, other):
            if one.holds and one.state != "SUSPENDING":
                floor.say(one, wire.RUN)
        floor.next_quantum()
        for one in (job, other):
            if one.state == "SUSPENDING":
                asked += [(job.counts.held_ns / S, floor.tier(one))] if one is job else []
                floor.park(one)
        floor.loop.turn()
    due = [held_s for held_s, tier in asked if tier == wire.TIER_BEHIND]
    between = [later - held_s for held_s, later in itertools.pairwise(due)]
    assert len(due) >= 3 and all(EVERY_NS / S - 2 <= held_s <= EVERY_NS / S for held_s in between), due


@pytest.mark.parametrize("kind", [wire.KIND_HOOK, wire.KIND_STEPS])
def test_a_hook_s_boundary_is_no_place_to_write_at(floor, kind):
    job = floor.train(1, kind=kind)
    to_a_park(floor, job)
    assert floor.tier(job) == wire.TIER_HOLD
    floor.park(job)
    assert floor.shut.count == 1


def test_off_by_default(floor):
    floor.node.settings = replace(floor.node.settings, checkpoint_parked_ns=0)
    job = floor.train(1)
    to_a_park(floor, job)
    assert floor.tier(job) == wire.TIER_HOLD


def test_what_a_page_says_buys_a_bounded_time(floor):
    """A rank that always writes, by its page, is frozen, pays, and is asked no sooner again."""
    job = floor.train(1)
    to_a_park(floor, job)
    write_and_park(floor, job)
    rest = Rest(floor.node, floor.slicer.switcher)
    for _ in range(20):
        floor.clock.now_ns += S // 2
        rest.look_at(job, floor.clock.now_ns)
        floor.loop.turn()
    assert floor.shut.count == 1 and not floor.loop.later
    bound_ns = max(behind.LEAST_NS, EVERY_NS // behind.PART)
    assert bound_ns <= job.counts.written_ns <= bound_ns + S
    assert len(told(floor, "unwritten")) == 1
    assert job.counts.awake_ns == job.counts.written_ns
    job.counts.awake_ns += WAKE_NS - S
    assert rest._may_wake(job), "its time for signals is left to it"


def test_its_turn_ends_the_writing(floor):
    job = floor.train(1)
    other = to_a_park(floor, job)
    write_and_park(floor, job)
    floor.say(other, wire.RUN)
    began_ns = floor.clock.now_ns
    while other.state == RUNNING:
        floor.next_quantum()
    floor.park(other)
    assert job.holds
    for rank in job.ranks:
        rank.page.write([(wire.W_SAVING, 0)])
    floor.say(job, wire.RUN)
    assert job.state == RUNNING
    floor.loop.turn()
    assert floor.shut.count == 1, "the other's park alone"
    assert len(told(floor, "unwritten")) == 1 and not job.is_writing
    assert job.counts.written_ns == floor.clock.now_ns - began_ns


def test_of_a_job_that_ends_meanwhile_nothing_is_left(floor):
    job = floor.train(1)
    to_a_park(floor, job)
    write_and_park(floor, job)
    floor.remove(job)
    floor.loop.turn()
    assert not floor.loop.later and floor.shut.count == 0


def test_a_job_that_is_to_leave_saves_itself_instead(floor):
    job = floor.train(1)
    other = floor.train(2)
    floor.park(other)
    floor.clock.now_ns += 20 * S
    floor.plan(1, is_leaving=True)
    assert floor.tier(job) == wire.TIER_REQUEUE and not job.is_writing
