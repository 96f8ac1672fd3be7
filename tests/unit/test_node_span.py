"""Parts of spans on one node: planned, with ranks, ended, and charged."""

import pytest

from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import saved
from gandiva_slurm.node.binding import Admission, Peer
from gandiva_slurm.node.hello import Bind
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.report import make_report
from gandiva_slurm.wire import page as wire
from tests.node_bench import QUANTUM_NS, Bench
from tests.node_floor import NODES, SPAN, S, running
from tests.unit.test_node_slicer import a_plan

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


@pytest.mark.parametrize(("is_ending", "is_told", "restart"), [(0, 0, 0), (1, 0, 3), (0, 1, 3)])
def test_what_ends_here_is_followed_by_a_later_incarnation(tmp_path, is_ending, is_told, restart):
    """Slurm starts it before gandivactld has a plan for it: the batch script's count is believed."""
    node = Bench(tmp_path, 1)
    node.planning.take(a_plan(gpus=1))
    (job,) = node.node.plan.jobs
    if is_ending:
        node.add(job.job_id, job.user, (0,)).is_ending = True
    if is_told:
        node.node.ended[job.key] = 0
    admission = Admission(node.node, node.slicer, node.watcher, lambda pid: None)
    bind = Bind(JobKey(job.job_id, 3), "batch", 0, (), ())
    assert admission._with_true_restart(bind, Peer(ProcId(1, 1), job.uid)).key.restart == restart


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
