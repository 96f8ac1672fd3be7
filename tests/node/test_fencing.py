"""At most one incarnation of a job runs: fences, late and early incarnations."""

from __future__ import annotations

import dataclasses
import os
import signal

import pytest

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.wire.messages import NodePlan
from tests.node.harness import DEADLINE_S, HERE, NODES, a_planned_job

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]


def test_a_fenced_incarnation_is_killed_with_what_has_left_its_session(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    step = node.start_job(1, [str(HERE / "scripts" / "stray.py")])
    stray = int(node.wait(lambda: (node.out / "stray.1").read_text()))
    node.plan(fence=[(1, 0)], forget=True)
    assert step.wait(DEADLINE_S) == 1
    node.wait(lambda: not node.states())
    assert (1, 0) in node.report().ended
    with pytest.raises(ProcessLookupError):
        node.wait(lambda: os.kill(stray, 0))
    assert node.events("ended", 1)[0]["fenced"] is True


def test_what_a_job_leaves_behind_is_killed_when_slurm_has_ended_it(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    node.start_job(1, [str(HERE / "scripts" / "stray.py")])
    stray = int(node.wait(lambda: (node.out / "stray.1").read_text()))
    node.kill_job(1)
    node.wait(lambda: not node.states())
    with pytest.raises(ProcessLookupError):
        node.wait(lambda: os.kill(stray, 0))


def test_an_older_incarnation_is_refused_and_stopped(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,), restart=2))
    late = node.start_job(1, LOOP, restart=1, user="user1")
    assert late.wait(DEADLINE_S) == 1
    assert not node.states()
    assert "not the newest" in node.log()
    assert not list(node.out.glob("steps.*"))


def test_a_newer_incarnation_ends_the_older(make_node):
    node = make_node(gpus=1, quantum_s=0.3)
    node.plan(a_planned_job(1, "user1", (0,)))
    old = node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(1, LOOP, restart=1, user="user1", env={"RANK": "1"})
    assert old.wait(DEADLINE_S) == 1
    node.wait(lambda: node.resident(1, 1).ranks == 1)
    assert [event["restart"] for event in node.events("fence", 1)] == [0]


def test_a_step_that_does_not_know_the_restart_count_is_of_its_job(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,), restart=2))
    node.start_job(1, LOOP, restart=2)
    node.wait(lambda: node.resident(1, 2).ranks == 1)
    node.start_job(1, LOOP, restart=0, step="0", user="user1", env={"RANK": "1"})
    node.wait(lambda: node.resident(1, 2).ranks == 2)
    assert node.events("fence") == []


def test_one_restarted_without_gandivactld_is_the_next_incarnation(make_node):
    """Its plan still names the one before: taken for that, it would be ended when gandivactld is back."""
    node = make_node(gpus=2)
    node.plan(a_planned_job(1, "user1", (1,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.kill_job(1)
    node.wait(lambda: not node.states())
    node.start_job(1, LOOP, restart=1, user="user1", env={"RANK": "1"})
    registered = node.wait(lambda: node.events("register", 1)[1:])
    assert [event["restart"] for event in registered] == [1]
    node.wait(lambda: node.resident(1, 1).ranks == 1)
    assert node.resident(1, 1).gpus == (1,)
    assert (1, 0) in node.report().ended


def test_a_restart_count_that_came_from_another_job_is_not_believed(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    node.start_job(1, LOOP, restart=3, user="user1")
    node.wait(lambda: node.resident(1, 0).ranks == 1)


def test_plans_older_or_of_another_node_change_nothing(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.plan()
    report = node.report()
    old = _plan(node, generation=1, fence=((1, 0),))
    assert node.send(old).generation == report.generation
    with pytest.raises(PeerError, match=f"this is node {NODES[0]}"):
        node.send(dataclasses.replace(old, node=NODES[1], generation=99))
    with pytest.raises(PeerError, match="is given GPUs"):
        node.send(dataclasses.replace(old, generation=99, jobs=(a_planned_job(5, "user2", (7,)),)))
    assert node.states() == {1: "RUNNING"}
    assert node.plan(forget=True).residents[0].detail.startswith("in no plan")
    assert node.states() == {1: "RUNNING"}


def _plan(node, **changes):
    base = NodePlan(NODES[0], node._epoch_ns, 0, node.quantum_ns, node.gpus, (), (), "", 0)
    return dataclasses.replace(base, **changes)


def test_steps_that_follow_each_other_are_one_job(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    for step in range(4):
        process = node.start_job(1, LOOP, step=str(step), env={"RANK": str(step)})
        node.wait(lambda n=step: (node.out / f"steps.1.{n}").exists())
        (node.out / "stop.1").touch()
        assert process.wait(DEADLINE_S) == 0
        (node.out / "stop.1").unlink()
    node.wait(lambda: not node.states())
    assert node.events("fence") == []
    holds = [hold for hold in node.report().holds if hold.job_id == 1]
    assert all(hold.seq for hold in holds)


def test_a_parked_job_whose_ranks_die_is_not_let_run_on(make_node):
    node = make_node(gpus=1, quantum_s=60)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, [str(HERE / "scripts" / "again.py"), *LOOP])
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.states()[2] == "SUSPENDED")
    node.give_turn(2)
    os.kill(node.events("rank", 1)[-1]["pid"], signal.SIGKILL)
    node.wait(lambda: node.events("freeze", 1))
    # The next training is stopped at its hello, after one step: that is not for the common check.
    (node.out / "steps.1.0").unlink()


def test_a_number_that_is_another_users_now_is_handed_on_with_nothing_alive(make_node):
    """slurmctld has lost what it knew, and gives the number again while the old processes live."""
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    old = node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.plan(a_planned_job(1, "user2", (0,)))
    assert old.wait(DEADLINE_S) == 1
    assert node.events("fence", 1)[0]["why"] == "its number is another user's job's now"
    for left in node.out.glob("*.1*"):
        left.unlink()
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    assert {hold.user for hold in node.report().holds} == {"user1", "user2"}
