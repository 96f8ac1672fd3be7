"""gandivad killed and started again: jobs go on, parked ones stay parked, no GPU-second is lost."""

from __future__ import annotations

import itertools

from tests.node import witness
from tests.node.harness import DEADLINE_S, HERE, NODES, a_planned_job

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]


def three_jobs(node):
    """Job 1 is parked, job 2 runs, job 3 waits for its first turn, all on GPU 0."""
    node.plan(*[a_planned_job(n, f"user{n}", (0,)) for n in (1, 2, 3)])
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.states()[2] == "SUSPENDED")
    node.give_turn(2)
    node.wait(lambda: node.resident(2).ranks == 1)
    node.start_job(3, LOOP)
    node.wait(lambda: node.events("freeze", 3))


def test_running_and_parked_jobs_are_taken_over_and_not_disturbed(make_node):
    node = make_node(gpus=1, quantum_s=60)
    three_jobs(node)
    before = node.report()
    node.kill9()
    steps = len(witness.read_steps(node.out / "steps.2.0"))
    node.wait(lambda: len(witness.read_steps(node.out / "steps.2.0")) > steps + 50)
    node.start()
    after = node.report()
    assert node.states() == {item.job_id: item.state for item in before.residents}
    assert {e["job"] for e in node.events("adopt")} == {1, 2, 3}
    assert {item.ranks for item in after.residents if item.job_id != 3} == {1}
    assert after.generation == before.generation
    steps = node.resident(2).steps
    node.wait(lambda: node.resident(2).steps > steps + 50)
    told = [event["event"] for event in node.events(job_id=2)]
    assert not {"park", "freeze"} & {*told[told.index("adopt") :]}


def test_a_hold_goes_on_over_a_kill_and_is_charged_once(make_node):
    node = make_node(gpus=1, quantum_s=60)
    three_jobs(node)
    before = next(hold for hold in node.report().holds if hold.seq == 0)
    node.kill9()
    node.start()
    after = next(hold for hold in node.report().holds if hold.seq == 0)
    assert (after.job_id, after.t0_ns) == (2, before.t0_ns)
    assert after.t1_ns > before.t1_ns
    node.set_quantum(0.3)
    node.wait(lambda: node.resident(2).suspends >= 3)
    node.kill9()
    node.start()
    node.wait(lambda: len(node.report().holds) > 6)
    report = node.report()
    assert [hold.seq for hold in report.holds if hold.seq] == list(range(1, len(report.holds)))
    spans = sorted((hold.t0_ns, hold.t1_ns) for hold in report.holds)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
    held = sum(end - begin for begin, end in spans)
    assert held / (spans[-1][1] - spans[0][0]) > 0.5, "the rest is parks and a start of gandivad"


def test_holds_are_told_until_they_are_acknowledged(make_node):
    node = make_node(gpus=1, quantum_s=0.2)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.start_job(2, LOOP)
    node.wait(lambda: len(node.report().holds) > 4)
    first = node.report()
    node.acknowledge(first)
    second = node.plan()
    known = {hold.seq for hold in first.holds if hold.seq}
    assert known and not known & {hold.seq for hold in second.holds}
    node.kill9()
    node.start()
    third = node.report()
    assert third.boot == first.boot
    assert not known & {hold.seq for hold in third.holds}


def test_a_job_that_ends_while_the_daemon_is_away_is_ended_when_it_is_back(make_node):
    node = make_node(gpus=1, quantum_s=0.3)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(2).ranks == 1)
    node.kill9()
    node.kill_job(1)
    node.start()
    node.wait(lambda: node.states() == {2: "RUNNING"})
    assert (1, 0) in node.report().ended
    assert [hold.job_id for hold in node.report().holds if hold.seq == 0] == [2]


def test_an_orderly_stop_leaves_everything_as_it_is(make_node):
    node = make_node(gpus=1, quantum_s=60)
    three_jobs(node)
    assert node.stop() == 0
    # It is still by the signal that stops it or by its group, whichever reached it first.
    node.wait(lambda: node.stands_still(3))
    steps = {job: len(witness.read_steps(node.out / f"steps.{job}.0")) for job in (1, 2)}
    node.wait(lambda: len(witness.read_steps(node.out / "steps.2.0")) > steps[2] + 50)
    assert len(witness.read_steps(node.out / "steps.1.0")) == steps[1]
    assert not (node.out / "steps.3.0").exists()
    node.start()
    assert node.states()[2] == "RUNNING"


def test_a_second_daemon_on_the_same_state_is_refused(make_node):
    node = make_node(gpus=1)
    first = node.daemon
    try:
        node.spawn()
        assert node.daemon.wait(DEADLINE_S) == 1
    finally:
        node.daemon = first
    assert f"another gandivad of this node is running (pid {first.pid})" in node.log()
    assert node.report().node == NODES[0]


def test_a_job_slices_on_when_its_daemon_is_killed_in_the_middle_of_a_switch(make_node):
    node = make_node(gpus=1, quantum_s=0.1)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1 and node.resident(2).ranks == 1)
    for _ in range(3):
        switches = len(node.events("park"))
        node.wait(lambda count=switches: len(node.events("park")) > count)
        node.kill9()
        node.start()
    done = node.resident(1).suspends, node.resident(2).suspends
    node.wait(lambda: node.resident(1).suspends > done[0] and node.resident(2).suspends > done[1])
    spans = sorted((hold.t0_ns, hold.t1_ns) for hold in node.report().holds)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
