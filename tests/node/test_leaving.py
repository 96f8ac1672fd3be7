"""A job that is to be moved saves itself in its turn and waits; what goes on is the same training."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from tests.node.gangs import ENDLESS
from tests.node.harness import HERE, NODES, NodeHarness, a_planned_job

SCRIPT = [str(HERE / "scripts" / "attached.py"), "4", str(ENDLESS)]
LOOP = [str(HERE / "scripts" / "loop.py"), "4"]

MakeNode = Callable[..., NodeHarness]


def leave(node: NodeHarness, job_id: int, is_leaving: bool = True, restart: int = 0) -> None:
    """Send the plan that tells a job to leave, or to stay."""
    job = a_planned_job(job_id, f"user{job_id}", (0,), restart)
    node.plan(dataclasses.replace(job, is_leaving=is_leaving))


def begin(node: NodeHarness, job_id: int, script: list[str] = SCRIPT, **env: str) -> None:
    """Start a job of the user of its number, and wait until it trains."""
    node.plan(a_planned_job(job_id, f"user{job_id}", (0,)))
    node.start_job(job_id, script, env=env)
    node.wait(lambda: node.resident(job_id).ranks == 1)


def losses(node: NodeHarness, job_id: int = 1) -> list[str]:
    """What it has written so far."""
    path = node.out / f"loss.{job_id}"
    return path.read_text().splitlines() if path.exists() else []


def check_losses(node: NodeHarness, before: Sequence[str] = ()) -> None:
    """Let job 1 train on to its end: with what it wrote before, its losses are those of a run alone."""
    steps = len(losses(node))
    node.wait(lambda: len(losses(node)) > steps + 10)
    (node.out / "stop.1").touch()
    node.wait(lambda: losses(node)[-1:] == ["end"])
    found, loss = [*before, *losses(node)], 1
    for step, line in enumerate(found[:-1]):
        loss = loss * 48271 % 2147483647
        assert line == f"{step} {loss}"


def has_left(node: NodeHarness, job_id: int = 1) -> bool:
    return node.resident(job_id).has_left


def quanta(node: NodeHarness, count: float) -> None:
    """Let so many quanta pass."""
    end = time.monotonic() + count * node.quantum_ns / 1e9
    node.wait(lambda: time.monotonic() > end)


def test_a_job_told_to_leave_saves_itself_and_one_told_to_stay_goes_on(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.2)
    begin(node, 1)
    node.wait(lambda: node.resident(1).is_movable)
    assert not has_left(node)
    leave(node, 1)
    node.wait(lambda: has_left(node))
    steps = losses(node)
    quanta(node, 5)
    assert losses(node) == steps and has_left(node)
    assert list((node.out / ".gandiva" / "1").glob("attached-*/rank-0-of-1.json"))
    leave(node, 1, is_leaving=False)
    check_losses(node)


def test_a_parked_job_leaves_in_its_next_turn_and_the_other_keeps_the_gpu(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.3)
    begin(node, 2, LOOP)
    begin(node, 1)
    node.give_turn(2)
    leave(node, 1)
    assert not has_left(node)
    node.set_quantum(0.3)
    node.wait(lambda: has_left(node))
    node.wait(lambda: node.resident(2).state == "RUNNING")
    parks = node.resident(2).suspends
    quanta(node, 4)
    assert node.resident(2).suspends == parks, "nobody else wants the GPU"


def test_one_of_a_pack_leaves_and_the_other_has_the_gpu_alone(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.3)
    begin(node, 2, LOOP)
    begin(node, 1)
    mates = {1: 2, 2: 1}
    jobs = {n: dataclasses.replace(a_planned_job(n, f"user{n}", (0,)), mate=mates[n]) for n in mates}
    node.plan(*jobs.values())
    node.wait(lambda: [node.resident(n).reason for n in mates] == ["Packed", "Packed"])
    node.wait(lambda: node.resident(1).is_movable)
    node.plan(dataclasses.replace(jobs[1], is_leaving=True))
    node.wait(lambda: has_left(node))
    parks = node.resident(2).suspends
    quanta(node, 4)
    assert has_left(node) and node.resident(2).state == "RUNNING"
    assert node.resident(2).suspends == parks and node.resident(2).reason == "Running"
    node.plan(jobs[1])
    node.wait(lambda: [node.resident(n).reason for n in mates] == ["Packed", "Packed"])


def test_one_that_has_left_is_so_for_the_next_gandivad(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.2)
    begin(node, 1)
    node.wait(lambda: node.resident(1).is_movable)
    leave(node, 1)
    node.wait(lambda: has_left(node))
    steps = losses(node)
    node.kill9()
    node.start()
    assert has_left(node)
    quanta(node, 4)
    assert losses(node) == steps
    leave(node, 1, is_leaving=False)
    node.wait(lambda: len(losses(node)) > len(steps))


def test_a_gandivad_that_dies_while_a_job_saves_itself_asks_it_again(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.2)
    begin(node, 1)
    node.wait(lambda: node.resident(1).is_movable)
    (node.out / "slow.1").touch()
    leave(node, 1)
    node.wait((node.out / "saving.1").exists)
    assert node.resident(1).state == "SUSPENDING"
    node.kill9()
    node.start()
    (node.out / "slow.1").unlink()
    node.wait(lambda: has_left(node))
    leave(node, 1, is_leaving=False)
    check_losses(node)


def test_what_was_killed_after_it_left_goes_on_elsewhere_and_here(make_node: MakeNode) -> None:
    """Slurm ends it, and starts it on the other node; from there it is moved back."""
    here, there = make_node(gpus=1, quantum_s=0.2), make_node(gpus=1, quantum_s=0.2, name=NODES[1])
    place = {"GANDIVA_CHECKPOINT_DIR": str(here.out / "kept" / "%j")}
    begin(here, 1, **place)
    written: list[str] = []
    for restart, (old, new) in enumerate([(here, there), (there, here)]):
        old.wait(lambda node=old: len(losses(node)) > 50)
        old.wait(lambda node=old, number=restart: node.resident(1, number).is_movable)
        leave(old, 1, restart=restart)
        old.wait(lambda node=old, number=restart: node.resident(1, number).has_left)
        written = losses(old) if restart == 0 else written + losses(old)
        (old.out / "loss.1").unlink()
        new.plan(a_planned_job(1, "user1", (0,), restart + 1))
        if old is here:
            old.kill_job(1, restart)
        new.start_job(1, SCRIPT, restart=restart + 1, env=place)
        new.wait(lambda node=new, number=restart + 1: node.resident(1, number).ranks == 1)
    there.kill_job(1, 1)
    check_losses(here, written)
    assert not here.events("loose") and not there.events("loose")


def test_a_save_that_fails_is_told_and_costs_nobody_his_turn(make_node: MakeNode) -> None:
    node = make_node(gpus=1, quantum_s=0.3)
    begin(node, 2, LOOP)
    begin(node, 1, GANDIVA_CHECKPOINT_DIR="/proc/none")
    node.wait(lambda: node.resident(1).is_movable)
    leave(node, 1)
    node.wait(lambda: "save failed: " in node.resident(1).detail)
    assert "/proc/none" in node.resident(1).detail
    turns = node.resident(1).suspends, node.resident(2).suspends
    node.wait(lambda: min(node.resident(1).suspends - turns[0], node.resident(2).suspends - turns[1]) >= 3)
    assert len(node.events("unsaved")) >= 2, "it is tried again"
    node.wait(lambda: node.resident(1).reason in ("Running", "Parked", "Parking", "Resuming"))
    leave(node, 1, is_leaving=False)
    node.wait(lambda: not node.resident(1).detail)  # it may be saving itself at this moment


def test_a_job_that_has_not_begun_leaves_at_once_and_stays_when_it_has(make_node: MakeNode) -> None:
    """It knows no way to be moved; until its first turn it begins elsewhere as well. gandivad is killed."""
    node = make_node(gpus=1, quantum_s=60)
    others = (a_planned_job(1, "user1", (0,)), a_planned_job(3, "user3", (0,)))
    node.plan(*others)
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    waiting = a_planned_job(2, "user2", (0,))
    node.plan(*others, waiting)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(2).reason == "WaitingTurn")
    node.kill9()
    node.start()
    node.wait(lambda: (node.resident(2).is_movable, node.resident(2).framework) == (True, "anew"))
    assert not node.resident(1).is_movable and not has_left(node, 2)
    node.plan(*others, dataclasses.replace(waiting, is_leaving=True))
    node.wait(lambda: has_left(node, 2))
    (node.out / "stop.1").touch()
    node.start_job(3, LOOP)
    node.wait(lambda: node.resident(3).ranks == 1)
    assert has_left(node, 2) and not node.events("grant", 2), "it has no turn that would have it begin"
    node.plan(*others, waiting)
    node.give_turn(2)
    node.wait(lambda: node.resident(2).ranks == 1)
    node.give_turn(3)
    node.plan(*others, dataclasses.replace(waiting, is_leaving=True))
    assert node.resident(2).state == "SUSPENDED" and not node.resident(2).is_movable and not has_left(node, 2)


def test_a_job_that_the_guard_let_go_before_its_first_turn_has_begun(make_node: MakeNode) -> None:
    """No gandivad came in time: its script has run, and is not to be run again elsewhere as if it had not."""
    node = make_node(gpus=1, quantum_s=60, guard_grace_ns=300_000_000)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(2).framework == "anew")
    node.kill9()
    node.wait((node.out / "steps.2.0").exists)
    node.start()
    node.wait(lambda: node.resident(2).framework != "anew" and not node.resident(2).is_movable)
