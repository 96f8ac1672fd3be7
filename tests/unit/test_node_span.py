"""Parts of spans on one node: orders, phases, bounds, local gangs around them, on a clock moved by hand."""

import asyncio
import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.model import span as words
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import saved
from gandiva_slurm.node.binding import Admission, Peer
from gandiva_slurm.node.hello import Bind
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.part import phase_of
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.span import Spans
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import NodePlan, PlannedJob, decode_plan, encode
from gandiva_slurm.wire.span import SpanOrder, decode_answer, decode_order
from tests.unit.test_node_slicer import QUANTUM_NS, TICKET, Bench

S = 1_000_000_000
SPAN = 50
NODES = (("n1", (0, 1)), ("n2", (0, 1)))


class Floor(Bench):
    """A bench with two GPUs, a span planned on both, and a controller's pen."""

    def __init__(self, directory, gpus=2, client_wait_ns=0):
        super().__init__(directory, gpus, client_wait_ns)
        self.spans = Spans(self.node, self.slicer)
        self.seq = itertools.count(1)
        self.pages = []
        self.plans = itertools.count(1)
        self.planned = {SPAN: self.a_part(SPAN)}
        self.plan()

    def a_part(self, job_id, gpus=(0, 1), restart=0, nodes=NODES):
        return PlannedJob(job_id, restart, "span", 0, gpus, 100 * TICKET, job_id, span=nodes)

    def plan(self, **more):
        jobs = tuple(self.planned.values())
        plan = NodePlan("n1", 1, next(self.plans), QUANTUM_NS, self.node.gpus, jobs, (), "", 0)
        self.planning.take(decode_plan(encode(replace(plan, **more))))
        self.settle()

    def order(self, what, job_id=SPAN, **more):
        """Give an order that is not waited for; what moves afterwards arrives."""
        number = {"epoch_ns": 1, "seq": next(self.seq)} | more
        restart = number.pop("restart", 0)
        order = SpanOrder("n1", what=what, job_id=job_id, restart=restart, **number)
        answer = asyncio.run(self.spans.take(decode_order(encode(order))))
        self.settle()
        return decode_answer(encode(answer))

    def round(self, *told, lease_ms=0):
        spans = tuple((job_id, 0, where) for job_id, where in told)
        return self.order(words.ROUND, 0, spans=spans, lease_ms=lease_ms)

    def resident(self, job_id=SPAN):
        return self.node.residents[JobKey(job_id, 0)]

    def phase(self, job_id=SPAN):
        return phase_of(self.resident(job_id))

    def come_in(self, job_id=SPAN):
        self.round((job_id, words.IN))
        self.order(words.RESERVE, job_id)
        answer = self.order(words.GO, job_id)
        assert answer.ok, answer
        assert self.phase(job_id) == words.ON

    def begin(self, *numbers, world=4, job_id=SPAN, master="h:1"):
        """Ranks with these numbers of a world on several nodes say hello here and pass some boundaries."""
        resident = self.resident(job_id)
        resident.part.has_begun = resident.part.has_processes = True
        for number in numbers:
            page = Page.make(resident.key, number, world, 0)
            page.write([(wire.W_SEQ, 100)])
            proc = ProcId(1000 + len(self.pages), 1)
            resident.join(Rank(proc, number, page, None), world, master)
            self.pages.append(page)

    def say(self, state, seq=None, which=None):
        """Let the ranks answer the order on their pages with this state, at `seq` or where they were told."""
        for page in self.pages if which is None else [self.pages[which]]:
            view = page.read()
            told = view[wire.W_AT] if view[wire.W_AT] < 1 << 60 else view[wire.W_SEQ]
            at = told if seq is None else seq
            gen = wire.generation_of(view[wire.W_WORD])
            page.write([(wire.W_SEQ, at), (wire.W_STATE_SEQ, at), (wire.W_STATE_GEN, gen)])
            page.write([(wire.W_STATE, state)])
        self.settle()

    def commands(self):
        return [wire.command_of(page.read()[wire.W_WORD]) for page in self.pages]

    def park(self, until=words.OFF):
        """Park the span by orders up to a phase."""
        self.order(words.AIM, at=110)
        if until == words.AIMING:
            return
        self.say(wire.HOLD)
        if until == words.HOLDING:
            return
        self.order(words.COMMIT)
        if until == words.RELEASING:
            return
        self.say(wire.PARKED)
        if until == words.RELEASED:
            return
        self.order(words.FREE)

    def wait(self, ns):
        """Let time pass, bounds being looked at."""
        self.clock.now_ns += ns
        self.spans.look()
        self.settle()

    def holds(self, job_id=SPAN):
        """True while the part is in the hold ledger: exactly while it is on .. until FREE."""
        return JobKey(job_id, 0) in self.node.ledger.open


@pytest.fixture
def floor(tmp_path):
    made = []

    def make(**more):
        made.append(Floor(tmp_path, **more))
        return made[-1]

    yield make
    for page in made[0].pages if made else ():
        page.close()


def running(floor, *numbers):
    node = floor(client_wait_ns=1000 * S)
    node.come_in()
    node.begin(*(numbers or (0, 1)))
    node.settle()
    return node


# planned, awaited, ended


def test_a_planned_part_is_here_before_any_process_and_holds_nothing(floor):
    node = floor()
    assert node.phase() == words.OFF and not node.holds()
    assert make_report(node.node).residents == ()
    stand = node.order(words.GATHER, 0).parts[0]
    assert (stand.job_id, stand.phase, stand.ranks, stand.left_ns) == (SPAN, words.OFF, (), -1)
    node.add(1, "user1", (0,))
    node.quantum(5)
    assert node.holders() == {1}


def test_a_plan_without_it_ends_an_awaited_part_and_a_requeue_replaces_it(floor):
    node = floor()
    node.come_in()
    assert node.holds()
    node.planned = {SPAN: node.a_part(SPAN, restart=1)}
    node.plan()
    assert list(node.node.residents) == [JobKey(SPAN, 1)]
    assert not node.node.ledger.open and not node.node.ended
    node.planned = {}
    node.plan()
    assert not node.node.residents


def test_a_part_that_nothing_came_of_may_be_planned_on_other_gpus(floor):
    node = floor(gpus=4)
    node.planned = {SPAN: node.a_part(SPAN, (2, 3))}
    node.plan()
    assert node.resident().gpus == (2, 3)
    node.come_in()
    node.planned = {SPAN: node.a_part(SPAN, (0, 1))}
    node.plan()
    assert node.resident().gpus == (2, 3)


def test_a_number_that_slurm_gives_again_begins_anew(floor):
    node = running(floor)
    node.clock.now_ns += S
    node.resident().is_ending = True
    node.watcher._finish(node.resident())
    node.pages.clear()
    make_report(node.node)
    node.planned = {}
    node.plan()
    node.planned = {SPAN: node.a_part(SPAN)}
    node.plan()
    (row,) = node.order(words.GATHER, 0).held
    assert (row.job_id, row.state, row.held_ns) == (SPAN, "off", 0)


@pytest.mark.parametrize("phase", [*words.PHASES[:1], words.READY, *words.PHASES[3:7], words.RELEASED])
def test_the_end_of_its_job_in_any_phase_gives_its_gpus_on(floor, phase):
    node = running(floor)
    if phase in (words.OFF, words.READY):
        node.park()
    if phase == words.READY:
        node.order(words.RESERVE)
    elif phase not in (words.OFF, words.ON):
        node.park(phase)
    assert node.phase() == phase
    node.add(1, "user1", (0,))
    resident = node.resident()
    resident.is_ending = True
    assert not node.order(words.GO).ok
    node.watcher._finish(resident)
    node.settle()
    assert node.holders() == {1} and not node.holds()
    assert JobKey(SPAN, 0) in node.node.ended
    # The plan still names it, and yet it does not come again.
    node.plan()
    assert JobKey(SPAN, 0) not in node.node.residents
    assert any(row.job_id == SPAN and row.state == "ended" for row in node.order(words.GATHER, 0).held)


def test_the_end_of_a_step_is_not_the_end_of_a_span(floor):
    node = running(floor)
    resident = node.resident()
    resident.is_ending = True
    assert node.watcher._is_awaited_again(resident)
    node.watcher._await_again(resident)
    node.settle()
    assert node.phase() == words.ON and node.holds() and not resident.ranks
    node.pages.clear()
    resident.part.has_script = True
    assert not node.watcher._is_awaited_again(resident)


def test_a_part_that_is_only_planned_does_not_vouch_for_a_restart_count(floor):
    """srun may bring another job's count: where the plan knows better, the plan counts."""
    node = floor()
    admission = Admission(node.node, node.slicer, node.watcher, lambda pid: None)
    bind = Bind(JobKey(SPAN, 3), "batch", 0, (), ())
    assert admission._with_true_restart(bind, Peer(ProcId(1, 1), 0)).key == JobKey(SPAN, 0)


# orders


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
    events = [line for line in node.node.events.path.read_text().splitlines() if '"parked"' in line]
    assert len(events) == 1 and '"off_boundary":0' in events[0]


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


# charges


def test_what_was_held_is_counted_for_all_and_over_a_restart(floor):
    node = running(floor)
    node.clock.now_ns += 3 * S
    held = {row.job_id: row for row in node.order(words.GATHER, 0).held}
    assert held[SPAN].held_ns == 3 * S and held[SPAN].gpus == (0, 1)
    row = saved.state_of(node.node)["jobs"][0]
    heir, _ = saved.read_job(row, "n1")
    assert heir.counts.held_ns == 3 * S and heir.part.span == NODES and heir.part.has_begun


def test_a_span_pays_here_for_its_part(floor):
    node = running(floor)
    node.add(1, "span", (1,))
    node.add(2, "user2", (1,))
    for _ in range(10):
        node.clock.now_ns += QUANTUM_NS
        node.round((SPAN, words.STAY))
    before = node.node.local.passes()[0]
    assert before["span"] > before["user2"]
    node.park()
    node.quantum()
    assert node.holders() == {2}


def test_what_a_span_holds_after_it_was_told_out_is_past_its_quantum(floor):
    node = running(floor)
    node.clock.now_ns += S
    node.round((SPAN, words.OUT))
    node.clock.now_ns += S
    node.park()
    counts = node.resident().counts
    assert (counts.held_ns, counts.over_ns) == (2 * S, S)


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


def test_when_the_lease_is_over_what_is_on_stays_though_it_was_told_out(floor):
    node = running(floor)
    node.add(1, "user1", (0,))
    node.round((SPAN, words.OUT), lease_ms=3000)
    assert node.slicer.wanted == [JobKey(1, 0)]
    node.wait(3 * S)
    assert node.slicer.wanted == [] and node.phase() == words.ON


# ranks


def test_ranks_of_one_world_form_one_part_though_others_live_elsewhere(floor):
    node = running(floor, 2, 3)
    (stand,) = node.order(words.GATHER, 0).parts
    assert (stand.world, stand.ranks, stand.is_parkable, stand.must_stay) == (4, (2, 3), True, False)
    assert (stand.min_seq, stand.max_seq) == (100, 100)
    node.park()
    node.come_in()
    assert node.commands() == [wire.CMD_RUN] * 2


def test_a_part_is_not_parkable_before_its_ranks_are_warm_nor_with_several_groups(floor):
    node = running(floor, 0, 1)
    node.pages[1].write([(wire.W_SEQ, 2)])
    assert not node.order(words.GATHER, 0).parts[0].is_parkable
    assert node.order(words.AIM, at=110).code == words.NO
    node.pages[1].write([(wire.W_SEQ, 100)])
    node.begin(0, master="h:2")
    (stand,) = node.order(words.GATHER, 0).parts
    assert not stand.is_parkable and "2 process groups" in stand.error
    assert node.order(words.AIM, at=110).code == words.NO


def test_tasks_that_have_not_become_ranks_yet_are_waited_for(floor):
    node = running(floor, 0)
    node.resident().tasks[ProcId(900, 1)] = {ProcId(901, 1)}
    assert not node.order(words.GATHER, 0).parts[0].is_parkable


def test_ranks_that_wait_for_nobody_stop_at_their_next_boundary(floor):
    node = floor(client_wait_ns=1000 * S)
    node.come_in()
    node.begin(0, world=1)
    node.begin(0, world=1)
    assert node.order(words.GATHER, 0).parts[0].world == 1
    assert node.order(words.AIM, at=110).code == words.NO
    assert node.order(words.AIM, at=0).ok and node.phase() == words.HOLDING
    node.order(words.COMMIT)
    assert node.commands() == [wire.CMD_COMMIT] * 2
    node.say(wire.PARKED, seq=105)
    assert node.order(words.FREE).ok


def test_a_rank_that_dies_while_it_is_aimed_at_loses_the_aim(floor):
    node = running(floor)
    seq = next(node.seq)
    node.order(words.AIM, at=110, seq=seq)
    node.pages[0].write([(wire.W_STATE, wire.DONE)])
    node.settle()
    assert node.order(words.AIM, at=110, seq=seq).code == words.NO
    assert node.order(words.COMMIT).code == words.NO
    assert node.order(words.RUN).ok


def test_a_release_that_fails_is_told(floor):
    node = running(floor)
    node.park(words.RELEASING)
    node.say(wire.PARKED, which=0)
    node.say(wire.FAILED, which=1)
    answer = node.order(words.COMMIT)
    assert (answer.code, answer.parts[0].phase) == (words.NO, words.ON)
    assert "did not release" in answer.parts[0].error


# whatever comes

_HELD = (words.ON, words.AIMING, words.HOLDING, words.RELEASING, words.FREEZING, words.RELEASED)
_TOLD = [what for what in words.ORDERS if what != words.GATHER]


@settings(max_examples=60, deadline=None)
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
