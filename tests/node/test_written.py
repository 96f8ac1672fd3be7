"""A parked job is written to disk, and goes on from that on another node when its own is lost."""

from __future__ import annotations

import statistics

from tests import patience
from tests.node.gangs import ENDLESS
from tests.node.harness import HERE, NODES, NodeHarness, a_planned_job
from tests.node.test_leaving import LOOP, MakeNode, begin, check_losses, losses
from tests.slow import slow

STEP_MS = 4
SCRIPT = [str(HERE / "scripts" / "attached.py"), str(STEP_MS), str(ENDLESS)]
#: Seconds of a job's turns between two writings, and of a turn.
EVERY_S, QUANTUM_S = 0.5, 0.2


def a_node(make_node: MakeNode, name: str = NODES[0], **settings: object) -> NodeHarness:
    settings = {"checkpoint_parked_ns": round(EVERY_S * 1e9)} | settings
    return make_node(gpus=1, quantum_s=QUANTUM_S, name=name, **settings)


def lines(node: NodeHarness) -> list[int]:
    return [int(line.split()[0]) for line in losses(node) if line[0].isdigit()]


def lose(node: NodeHarness, job_id: int) -> None:
    """All of it is gone at once, and nobody of it is asked."""
    node.kill9()
    node.kill_job(job_id)


def test_a_lost_node_costs_a_job_no_more_than_that_time(make_node: MakeNode) -> None:
    """Written while parked, its node lost, it goes on elsewhere; its losses are those of a run alone."""
    here, there = a_node(make_node), a_node(make_node, NODES[1])
    place = {"GANDIVA_CHECKPOINT_DIR": str(here.out / "kept" / "%j")}
    begin(here, 1, SCRIPT, **place)
    begin(here, 2, LOOP)
    here.wait(lambda: len(here.events("written", 1)) >= 2)
    steps = len(losses(here))
    here.wait(lambda: len(losses(here)) > steps + 5)
    # What runs on between the two kills was no node's to write.
    known = len(losses(here))
    lose(here, 1)
    before = losses(here)
    there.plan(a_planned_job(1, "user1", (0,), restart=1))
    there.start_job(1, SCRIPT, restart=1, env=place)
    there.wait(lambda: len(losses(there)) > 10)
    first = lines(there)[0]
    assert 0 < first <= len(before), "it goes on from what was written"
    lost_s = (len(before) - first) * STEP_MS / 1000
    there.wait(lambda: there.resident(1, 1).begun == first)
    check_losses(there, before[:first])
    limit_s = EVERY_S + 2 * QUANTUM_S
    print(f"lost {len(before) - first} mini-batches, {lost_s:.2f} s of its turns; {EVERY_S} s were asked")
    most = 3 * limit_s * patience.slowness() / STEP_MS * 1000
    assert known - first < most, "a machine with other load runs longer turns"
    told = here.events("written", 1)
    assert all(event["took_ms"] > 0 for event in told)


@slow("8 s; unit/test_node_behind has it by hand")
def test_it_stands_still_when_it_is_written_and_others_turns_begin_as_ever(make_node: MakeNode) -> None:
    """Its GPU is given on before it is written; what that costs the next turn is told, not judged."""
    node = a_node(make_node)
    begin(node, 1, SCRIPT)
    begin(node, 2, LOOP)
    node.wait(lambda: len(node.events("written", 1)) >= 4)
    events = node.events()
    written = {event["mono_ns"] for event in node.events("written", 1)}
    granted = [event["mono_ns"] for event in node.events("grant", 1)]
    gaps: dict[bool, list[float]] = {True: [], False: []}
    released = None
    for event in events:
        if (event["event"], event.get("job")) == ("release", 1):
            released = event["mono_ns"]
        if (event["event"], event.get("job")) == ("running", 2) and released:
            again = next((at for at in granted if at > released), event["mono_ns"] + round(QUANTUM_S * 1e9))
            is_written = any(released < at < again for at in written)
            gaps[is_written].append((event["mono_ns"] - released) / 1e6)
            released = None
    shown = {key: round(statistics.median(times), 2) for key, times in gaps.items() if times}
    print(f"from a park to the next job's first moment, ms, median: {shown}")
    assert len(gaps[True]) >= 3
    assert not node.events("loose"), "nothing was found running that should stand still"
    node.give_turn(2)
    steps = lines(node)
    turns = node.resident(2).steps
    node.wait(lambda: node.resident(2).steps > turns + 20)
    assert lines(node) == steps
    node.set_quantum(QUANTUM_S)
    check_losses(node)


@slow("6 s")
def test_a_gandivad_killed_in_the_writing_leaves_it_frozen_and_whole(make_node: MakeNode) -> None:
    node = a_node(make_node)
    begin(node, 1, SCRIPT)
    begin(node, 2, LOOP)
    node.wait(lambda: node.events("written", 1))
    parks = len(node.events("parked", 1))
    node.wait(lambda: len(node.events("parked", 1)) > parks)
    node.kill9()
    node.start()
    count = len(node.events("written", 1))
    node.wait(lambda: len(node.events("written", 1)) > count)
    check_losses(node)


@slow("6 s; attach/test_parked has full and strange disks")
def test_a_disk_without_rights_costs_nobody_a_turn(make_node: MakeNode) -> None:
    node = a_node(make_node)
    begin(node, 1, SCRIPT, GANDIVA_CHECKPOINT_DIR="/proc/none")
    begin(node, 2, LOOP)
    node.wait(lambda: len(node.events("unwritten", 1)) >= 2)
    turns = node.resident(1).suspends, node.resident(2).suspends
    node.wait(lambda: min(node.resident(1).suspends - turns[0], node.resident(2).suspends - turns[1]) >= 2)
    assert "not saved while parked, training goes on" in next(node.out.glob("1*.batch.log")).read_text()
    check_losses(node)
