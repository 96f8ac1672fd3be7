"""A node that Slurm does not hear: its jobs stand still until it is known whether they run elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.node import guard
from gandiva_slurm.node.peers import LONGEST_MS
from gandiva_slurm.wire.messages import encode
from gandiva_slurm.wire.peer import PEER_PATH, PeerQuestion, decode_peer_answer
from tests import patience
from tests.node import witness
from tests.node.harness import DEADLINE_S, HERE, NODES, NodeHarness, a_planned_job, is_still

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
#: Where the site asks for no bound: what would be one elsewhere.
SILENCE_NS = 3_000_000_000


def silence(seconds: float = 1.5) -> dict[str, Any]:
    """Settings of a node whose jobs stand still after so long; longer where all takes longer.

    3 s where the job is to work on by words that have to come in time.
    """
    return {"isolation_ns": round(seconds * 1e9 * patience.slowness()), "look_s": 0.2}


def show(node: NodeHarness, *lines: str) -> None:
    """Let Slurm answer with these lines, at once: an empty answer is that it shows no job."""
    new = node.base / "slurm-up.new"
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(node.slurm_up)


def running(node: NodeHarness, job_id: int = 1, **of_job: Any) -> Any:
    """Plan a job, start it as one that Slurm shows there, and wait until it trains; return its step."""
    job = replace(a_planned_job(job_id, f"user{job_id}", (job_id - 1,)), **of_job)
    # A node that stood still for a moment looks whether its jobs are shown yet.
    show(node, *node.slurm_up.read_text().splitlines(), f"{job_id} {job.restart}")
    node.plan(job)
    step = node.start_job(job_id, LOOP, restart=job.restart)
    node.wait(lambda: node.resident(job_id, job.restart).ranks == 1)
    node.wait(lambda: node.resident(job_id, job.restart).steps > 0)
    return step


def pid_of(node: NodeHarness, job_id: int = 1) -> int:
    """The process that trains."""
    return int(node.events("rank", job_id)[-1]["pid"])


def worked(node: NodeHarness, job_id: int = 1) -> list[tuple[int, int]]:
    """When the script worked by its own notes: (begin, end) of each step."""
    return [span for path in node.out.glob(f"steps.{job_id}.*") for span in witness.read_steps(path)]


def steps(node: NodeHarness, job_id: int = 1) -> int:
    """What the script itself has noted."""
    return len(worked(node, job_id))


def wait_halted(node: NodeHarness, job_id: int = 1) -> None:
    """Wait until the job is frozen for want of a word from Slurm."""
    node.wait(lambda: node.events("halt", job_id))
    node.wait(lambda: is_still(pid_of(node, job_id)))
    node.wait(lambda: node.states()[job_id] == "SUSPENDED")


def works_on(node: NodeHarness, more: int, job_id: int = 1) -> None:
    """Wait until the job has worked so much more."""
    first = steps(node, job_id)
    node.wait(lambda: steps(node, job_id) > first + more)


def works_on_for_long(node: NodeHarness, job_id: int = 1, renew: Callable[[], object] = int) -> None:
    """Wait until the job works half as much again as the silence from now; it is renewed meanwhile."""
    over_ns = time.monotonic_ns() + node.settings.get("isolation_ns", SILENCE_NS) * 3 // 2

    def is_done() -> bool:
        renew()
        return worked(node, job_id)[-1][0] > over_ns

    node.wait(is_done)


@pytest.mark.parametrize("slurm_asked", ["is away", "cannot be"])
def test_a_node_that_hears_nobody_lets_its_jobs_run_on(make_node, slurm_asked):
    """It is not asked to stop them; or whether a slurmctld is there cannot be found out."""
    settings = {"look_s": 0.05} if slurm_asked == "is away" else silence(3)
    node = make_node(**settings, slurm_asked=slurm_asked)
    running(node)
    node.slurm_up.unlink()
    works_on_for_long(node)
    assert not node.events("halt") and not node.events("fence")


@pytest.mark.parametrize("is_without_groups", [False, True], ids=["frozen", "stopped"])
def test_a_job_stands_still_until_slurm_shows_it_there(make_node, is_without_groups):
    node = make_node(**silence(), is_without_groups=is_without_groups)
    step = running(node)
    # Slurm answers, and hears the node: the job runs on, however long the controller is silent.
    works_on_for_long(node)
    node.slurm_up.unlink()
    wait_halted(node)
    done, held = steps(node), node.report().holds
    assert node.resident(1).reason == "Frozen" and "does not hear this node" in node.resident(1).detail
    node.wait(lambda: node.report().now_ns > held[-1].t1_ns + 3 * node.settings["isolation_ns"])
    # Nothing of it has worked, and it is not charged for that; it holds no GPU.
    assert steps(node) == done and node.report().holds == held
    show(node, "1 0")
    works_on(node, 100)
    assert step.poll() is None and not node.events("fence")
    assert node.events("unhalt", 1)


def test_a_job_that_slurm_shows_anew_ends_with_its_slurmstepd(make_node):
    node = make_node(**silence())
    step = running(node)
    node.slurm_up.unlink()
    wait_halted(node)
    show(node, "1 1")
    # Its slurmstepd would tell slurmctld that the job failed.
    assert step.wait(DEADLINE_S) == -signal.SIGKILL
    assert "does not show it on this node any more" in node.wait(lambda: node.events("fence", 1))[0]["why"]
    node.wait(lambda: node.events("ended", 1))


def test_a_job_that_may_not_be_requeued_runs_on_beside_one_that_may(make_node):
    node = make_node(gpus=2, **silence())
    running(node, 1)
    running(node, 2, is_requeueable=False)
    node.slurm_up.unlink()
    wait_halted(node, 1)
    works_on_for_long(node, 2)
    assert not node.events("halt", 2)


def test_a_slurm_that_answers_and_does_not_hear_the_node_keeps_nothing_alive(make_node):
    """Its clock for this node runs: what it shows there now it may requeue in a moment."""
    node = make_node(**silence())
    step = running(node)
    show(node, "1 0", NODES[0])
    works_on_for_long(node)
    show(node, NODES[0])
    assert step.wait(DEADLINE_S) == -signal.SIGKILL


def test_killed_with_its_guard_it_leaves_a_job_that_can_be_woken(make_node):
    node = make_node(**silence())
    running(node)
    node.slurm_up.unlink()
    wait_halted(node)
    os.kill(node.events("start")[-1]["guard"], signal.SIGKILL)
    node.kill9()
    done = steps(node)
    assert is_still(pid_of(node))
    guard.thaw(Path(node.state_dir))  # as `gandivad --thaw` does
    node.wait(lambda: steps(node) > done + 100)
    # The next gandivad knows that it may not work, and what to do when it may.
    node.start()
    wait_halted(node)
    show(node, "1 0")
    works_on(node, 100)


def test_its_guard_lets_a_job_go_when_no_gandivad_comes(make_node):
    node = make_node(**silence(), guard_grace_ns=500_000_000)
    running(node)
    node.slurm_up.unlink()
    wait_halted(node)
    node.kill9()
    done = steps(node)
    node.wait(lambda: steps(node) > done + 100)
    node.start()


def test_a_gandivad_that_starts_again_knows_how_long_the_node_was_not_heard(make_node):
    second_ns = round(1e9 * patience.slowness())
    node = make_node(isolation_ns=6 * second_ns, look_s=0.2)
    running(node)
    heard_ns = node.report().mono_ns
    node.slurm_up.unlink()
    for _ in range(3):
        at_ns = node.report().mono_ns
        node.wait(lambda at_ns=at_ns: node.report().mono_ns > at_ns + 1.5 * second_ns)
        node.kill9()
        node.start()
    started_ns = node.report().mono_ns
    wait_halted(node)
    halted_ns = node.events("halt", 1)[0]["mono_ns"]
    # It looks again only when it has not been heard for a while: it was heard a moment before.
    assert heard_ns + 4 * second_ns < halted_ns < started_ns + 5 * second_ns, "six since it was heard"


class Two:
    """A node and another that it may ask; `are_all`: there is no third."""

    def __init__(self, make_node: Any, are_all: bool) -> None:
        settings = silence(3)
        self.other = make_node(name=NODES[1], **settings)
        self.node = make_node(**settings)
        peer = (NODES[1], f"127.0.0.1:{self.other.settings['port']}")
        self.node.more_of_plan = {"peers": (peer,), "are_all_peers": are_all}


def test_what_another_node_sees_in_slurm_keeps_a_job_at_work(make_node):
    two = Two(make_node, are_all=False)
    step = running(two.node)
    show(two.other, "1 0")
    two.node.slurm_up.unlink()
    works_on_for_long(two.node)
    # Where one of both stood still for so long the word came late, and let it go on.
    two.node.wait(lambda: len(two.node.events("unhalt")) == len(two.node.events("halt")))
    show(two.other, "1 1")
    assert step.wait(DEADLINE_S) == -signal.SIGKILL
    fence = two.node.wait(lambda: two.node.events("fence", 1))[0]
    assert f"asked by {NODES[1]}" in fence["why"]


def test_a_newer_incarnation_that_another_node_knows_ends_a_job(make_node):
    two = Two(make_node, are_all=False)
    step = running(two.node)
    two.other.slurm_up.unlink()
    two.node.slurm_up.unlink()
    wait_halted(two.node)
    two.other.plan(a_planned_job(1, "user1", (0,), restart=1))
    assert step.wait(DEADLINE_S) == -signal.SIGKILL


@pytest.mark.parametrize("are_all", [True, False])
def test_where_no_node_hears_slurm_a_job_works_on_if_all_were_asked(make_node, are_all):
    """With others that were not asked one of them might work on its next incarnation."""
    two = Two(make_node, are_all)
    running(two.node)
    two.other.slurm_up.unlink()
    two.node.slurm_up.unlink()
    if not are_all:
        wait_halted(two.node)
        return
    works_on_for_long(two.node)
    assert not two.node.events("halt")
    # The other one holds a newer incarnation back for as long as this one may work on its word.
    show(two.other, "1 1")
    two.other.plan(a_planned_job(1, "user1", (0,), restart=1))
    newer = two.other.start_job(1, LOOP, restart=1)
    two.node.wait(lambda: two.node.events("ended", 1))
    two.other.wait(lambda: two.other.resident(1, 1).ranks == 1)
    assert newer.poll() is None
    works_on(two.other, 20)
    assert max(worked(two.node))[1] < min(worked(two.other))[0]


def test_a_newer_incarnation_waits_for_as_long_as_another_node_was_promised(make_node):
    node = make_node()
    works_ms = min(LONGEST_MS, round(5000 * patience.slowness()))
    question = encode(PeerQuestion("elsewhere", ((1, 0),), works_ms=works_ms))
    promised_ns = node.report().mono_ns
    answer = decode_peer_answer(asyncio.run(node.post(PEER_PATH, question)))
    assert (answer.node, answer.newer, answer.shown) == (NODES[0], (), None)
    running(node, restart=1)
    assert "another node may still work on 1.0" in node.log()
    assert min(worked(node))[0] > promised_ns + (works_ms - 100) * 1_000_000
    # Now it knows better, and is asked to promise nothing.
    assert decode_peer_answer(asyncio.run(node.post(PEER_PATH, question))).newer == ((1, 1),)


def test_an_old_plan_lets_nothing_go_on(make_node):
    """It may have been under way since before the node was cut off."""
    node = make_node(**silence())
    running(node)
    before_ns = node.report().mono_ns
    node.slurm_up.unlink()
    wait_halted(node)
    node.wait(lambda: node.report().mono_ns > before_ns + node.settings["isolation_ns"])
    unhalted = len(node.events("unhalt"))
    node.more_of_plan = {"echo_ns": before_ns}
    node.plan()
    at_ns = node.report().mono_ns
    node.wait(lambda: node.report().mono_ns > at_ns + 1_000_000_000)
    assert is_still(pid_of(node)) and len(node.events("unhalt")) == unhalted
    first = steps(node)

    def goes_on() -> bool:
        # Again and again: one that was read late is an old one, too.
        node.more_of_plan = {"echo_ns": node.report().mono_ns}
        node.plan()
        return len(node.events("unhalt", 1)) > unhalted and steps(node) > first + 20

    node.wait(goes_on)


def test_a_controller_that_cannot_look_at_slurm_keeps_a_job_at_work(make_node):
    """It starts nothing anew meanwhile."""
    node = make_node(**silence(3))
    running(node)
    node.more_of_plan = {"echo_ns": node.report().mono_ns}
    node.slurm_up.unlink()

    def renew() -> None:
        node.more_of_plan["contact_ns"] = node.report().mono_ns
        node.plan()

    works_on_for_long(node, renew=renew)
    assert not node.events("halt")
    wait_halted(node)
