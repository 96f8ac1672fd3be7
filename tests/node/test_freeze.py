"""Jobs without a client, and what cannot stop at a boundary: frozen whole, within bounds, guarded."""

from __future__ import annotations

import os
import signal
import time

from gandiva_slurm.node import procs
from tests.node import witness
from tests.node.harness import DEADLINE_S, HERE, a_planned_job, is_still, tree
from tests.records import share_of_turns

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
BLIND = [*LOOP, "none"]
NO_WAIT_NS = 300_000_000


def test_a_job_without_client_is_frozen_whole_and_pays_like_the_rest(make_node):
    node = make_node(gpus=1, quantum_s=0.3, client_wait_ns=NO_WAIT_NS)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, BLIND)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(1).suspends >= 4)
    for told in (("RUNNING", "NoClient"), ("SUSPENDED", "Frozen")):
        node.wait(lambda told=told: (seen := node.resident(1)) and (seen.state, seen.reason) == told)
    node.wait(lambda: 0.4 < share_of_turns(node.events(), 1, (2,)) < 0.6)
    assert max(e["park_ms"] for e in node.events("parked", 1)) < 10_000, "no park's deadline was waited for"


def test_what_its_user_stopped_stays_so_and_none_of_many_processes_is_signalled(make_node):
    """A group is frozen by one order, however many are in it."""
    node = make_node(gpus=1, quantum_s=0.3, client_wait_ns=NO_WAIT_NS)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, [str(HERE / "scripts/family.py"), "40"])
    node.wait((node.out / "family.1").exists)
    node.start_job(2, LOOP)
    (step,) = node.steps[(1, 0)]
    child = max(tree(step.pid))
    os.kill(child, signal.SIGSTOP)
    node.wait(lambda: node.resident(1).suspends >= 3)
    node.give_turn(1)
    assert procs.read_proc(child).is_stopped
    assert {e["processes"] for e in node.events("freeze", 1) if e["whole"]} == {0}
    assert not any(procs.read_proc(pid).is_stopped for pid in tree(step.pid) if pid != child)


def test_a_start_up_keeps_its_gpu_beyond_the_quantum_and_pays_for_it(make_node):
    node = make_node(gpus=1, quantum_s=0.2)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, BLIND)
    node.wait(lambda: node.resident(1).reason == "WarmingUp")
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(2).reason == "WaitingTurn")
    waits_ns = node.report().holds[0].t1_ns
    node.wait(lambda: node.report().holds[0].t1_ns - waits_ns > 5 * node.quantum_ns)
    assert node.events("park") == [] and node.events("grant", 2) == []
    node.kill_job(1)
    node.wait(lambda: node.resident(2).ranks == 1)
    assert node.events("grant", 2)[0]["mono_ns"] >= node.events("release", 1)[0]["mono_ns"]


def test_a_task_is_stopped_before_its_program_begins_until_its_turn(make_node):
    node = make_node(gpus=1, quantum_s=60)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(2).state == "SUSPENDED")
    node.wait(lambda: node.stands_still(2))
    node.give_turn(2)
    node.wait(lambda: node.resident(2).ranks == 1)
    registered, granted = node.events("register", 2)[0], node.events("grant", 2)[0]
    begun = witness.read_steps(node.out / "steps.2.0")[0][0]
    assert registered["mono_ns"] < granted["mono_ns"] < begun


def test_a_step_that_comes_while_its_job_is_parked_waits_with_it(make_node):
    node = make_node(gpus=1, quantum_s=60)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.states()[2] == "SUSPENDED")
    node.give_turn(2)
    step = node.start_job(1, LOOP, step="0", env={"RANK": "5"})
    node.wait(lambda: node.events("freeze", 1))
    node.wait(lambda: all(map(is_still, tree(step.pid))))
    assert not (node.out / "steps.1.5").exists()
    node.give_turn(1)
    node.wait(lambda: (node.out / "steps.1.5").exists() and node.resident(1).ranks == 2)


def test_a_lone_rank_in_an_endless_step_is_frozen_at_the_deadline(make_node):
    node = make_node(gpus=1, quantum_s=0.3, park_deadline_ns=500_000_000)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, [str(HERE / "scripts" / "stall.py"), "300"])
    node.wait(lambda: (node.out / "stalls.1").exists())
    node.start_job(2, LOOP)
    parked = node.wait(lambda: node.events("parked", 1))[0]
    assert parked["frozen"] and parked["off_boundary"] == 1
    assert 500 <= parked["park_ms"] < 100_000
    seen = node.wait(lambda: (job := node.resident(1)).suspends >= 2 and job)
    assert seen.off_boundary == seen.suspends


def test_a_gang_that_finds_no_common_boundary_keeps_its_gpus_and_pays(make_node):
    node = make_node(gpus=2, quantum_s=0.3, park_deadline_ns=500_000_000)
    node.plan(a_planned_job(1, "user1", (0, 1)), a_planned_job(2, "user2", (0,)))
    for rank in "01":
        env = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
        node.start_job(1, [str(HERE / "scripts" / "stall.py"), rank * 2], step=rank, env=env)
    node.wait(lambda: (node.out / "stalls.1").exists())
    node.start_job(2, LOOP)
    failed = node.wait(lambda: node.events("unparkable", 1))
    assert "boundary" in failed[0]["why"]
    node.wait(lambda: (node.resident(1).state, node.resident(1).reason) == ("RUNNING", "NotParkable"))
    assert node.events("grant", 2) == []
    hold = next(hold for hold in node.report().holds if hold.job_id == 1)
    assert hold.seq == 0 and hold.gpus == (0, 1)


def test_a_freeze_is_over_at_its_bound_though_the_quantum_is_not(make_node):
    node = make_node(gpus=1, quantum_s=60, freeze_bound_ns=1_000_000_000)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).steps > 10)
    node.start_job(2, BLIND)
    granted = node.wait(lambda: node.events("grant", 2))[0]
    waited_ns = granted["mono_ns"] - node.events("freeze", 2)[0]["mono_ns"]
    assert 0.5e9 < waited_ns < 30e9
    assert node.resident(1).state == "SUSPENDED"


def test_what_its_owner_continues_does_not_run(make_node):
    node = make_node(gpus=1, quantum_s=60, client_wait_ns=1)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, BLIND)
    node.wait(lambda: node.stands_still(2))
    for _ in range(30):
        for pid in tree(node.steps[(2, 0)][0].pid):
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)  # as long as it would need to run
    assert not (node.out / "steps.2.0").exists(), "its group is frozen, and only root can thaw it"
    node.give_turn(2)
    node.wait(lambda: (node.out / "steps.2.0").exists())


def test_the_guard_lets_go_what_a_killed_daemon_froze(make_node):
    node = make_node(gpus=1, quantum_s=60, guard_grace_ns=500_000_000)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.stands_still(2))
    assert node.resident(2).reason == "WaitingTurn", "it has answered the task, which it stopped before that"
    (node.out / "stop.1").touch()
    node.kill9()
    node.steps[(1, 0)][0].wait(DEADLINE_S)
    node.wait(lambda: (node.out / "steps.2.0").exists())
    node.start()


def test_the_guard_leaves_it_to_a_daemon_that_comes_back(make_node):
    node = make_node(gpus=1, quantum_s=60, guard_grace_ns=600_000_000_000)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.stands_still(2))
    guard = node.events("start")[0]["guard"]
    node.kill9()
    node.start()
    node.wait(lambda: (procs.read_proc(guard) or procs.Proc(0, 0, 0, "Z")).state in procs.ENDED)
    assert node.stands_still(2)
    assert node.resident(2).reason == "WaitingTurn"
