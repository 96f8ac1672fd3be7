"""A gang over two nodes: two daemons on one host, real ranks, and a controller that does as the test says."""

from __future__ import annotations

import time

import pytest

from gandiva_slurm.model import span as words
from gandiva_slurm.wire.messages import PlannedJob
from tests import patience
from tests.node.coordinator import Coordinator
from tests.node.gangs import ENDLESS, GANG, LIGHT_RANK, check_losses
from tests.node.harness import HERE, NODES, TICKET, a_planned_job, is_still, tree, uid_of
from tests.ports import free_port
from tests.slow import slow

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
SPAN, PARKS = 50, 5


def a_part(gpus=(0,)):
    nodes = tuple((name, gpus) for name in NODES)
    return PlannedJob(SPAN, 0, "user3", uid_of("user3"), gpus, 100 * TICKET, SPAN * 10**9, span=nodes)


class Pair:
    """Two nodes with one GPU each, a local job on each, and a span over both."""

    def __init__(self, make_node, **settings):
        settings = {"quantum_s": 60} | settings
        self.one = make_node(name=NODES[0], **settings)
        self.two = make_node(name=NODES[1], **settings)
        self.nodes = (self.one, self.two)
        self.control = Coordinator(*self.nodes)
        self.port = free_port()
        self.is_real = False
        for job_id, node in enumerate(self.nodes, start=1):
            node.plan(a_part(), a_planned_job(job_id, f"user{job_id}", (0,)))
            node.start_job(job_id, LOOP)
            node.wait(lambda node=node, job_id=job_id: node.resident(job_id).steps > 3)

    def start_ranks(self):
        """srun starts a task on each node, a rank each."""
        words = [GANG, "2", str(ENDLESS), str(self.port)] if self.is_real else [LIGHT_RANK]
        for rank, node in enumerate(self.nodes):
            env = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
            node.start_job(SPAN, words, step="0", env=env)

    def run_gang(self, trains=False):
        """Bring it in, all its ranks warm; with `trains` they are of real PyTorch."""
        self.is_real = trains
        self.start_ranks()
        self.control.come_in(SPAN)
        self.one.wait(lambda: self.control.is_parkable(SPAN))

    def park(self, until=words.OFF):
        """Park it, as often as it takes."""
        self.one.wait(lambda: self.control.park(SPAN, until))

    def steps(self):
        """Mini-batches by node."""
        return [node.resident(SPAN).steps for node in self.nodes]

    def trains(self):
        """Wait until both ranks go on."""
        before = self.steps()
        self.one.wait(lambda: all(now > was + 10 for now, was in zip(self.steps(), before, strict=True)))


@pytest.fixture
def pair(make_node):
    return lambda **settings: Pair(make_node, **settings)


@slow("15 s, torch starts on six ranks; cluster/test_spans compares losses, too")
def test_a_gang_over_nodes_takes_turns_and_loses_no_bit(pair):
    floor = pair()
    floor.run_gang(trains=True)
    for _ in range(PARKS):
        floor.park()
        floor.one.wait(lambda: [n.states()[i] for i, n in enumerate(floor.nodes, 1)] == ["RUNNING"] * 2)
        floor.control.come_in(SPAN)
        floor.trains()
    check_losses(floor.one, 2, SPAN)
    one, two = (node.events("parked", SPAN) for node in floor.nodes)
    assert [park["seqs"] for park in one] == [park["seqs"] for park in two]
    assert len(one) >= PARKS and sum(park["off_boundary"] for park in [*one, *two]) == 0


def test_tasks_wait_for_the_span_s_turn_but_its_batch_script_runs(pair):
    floor = pair()
    floor.one.start_job(SPAN, [*LOOP, "none"], step="batch")
    floor.one.wait(lambda: (floor.one.out / f"steps.{SPAN}.0").exists())
    floor.start_ranks()
    for node in floor.nodes:
        node.wait(lambda node=node: node.events("freeze", SPAN))
        stopped = [step.pid for step in node.steps[(SPAN, 0)]][-1]
        node.wait(lambda pid=stopped: all(map(is_still, tree(pid))))
    assert floor.control.phases(SPAN) == ["off", "off"]
    floor.control.come_in(SPAN)
    floor.one.wait(lambda: floor.control.is_parkable(SPAN))
    floor.park()
    # The script notes steps beside the local job: it has no GPU, and is not for the common check.
    (floor.one.out / f"steps.{SPAN}.0").unlink()


def test_a_boundary_that_has_passed_is_told_and_another_is_found(pair):
    floor = pair()
    floor.run_gang()
    answers = floor.control.tell(words.AIM, SPAN, at=3)
    assert {answer.code for answer in answers.values()} == {words.MISS}
    assert {answer.parts[0].phase for answer in answers.values()} == {words.AIMING}
    floor.one.wait(lambda: floor.control.aim(SPAN))
    floor.control.do(words.RUN, SPAN)
    floor.trains()
    floor.park()


@pytest.mark.parametrize("phase", [words.HOLDING, words.RELEASED])
def test_a_controller_that_falls_silent_stops_nobody_and_gives_nothing_on(pair, phase):
    floor = pair()
    floor.run_gang()
    grants = [len(node.events("grant")) for node in floor.nodes]
    # It is there for two seconds at the most: a look that comes late sees it on again.
    floor.one.wait(lambda: floor.control.park(SPAN, phase) and {*floor.control.phases(SPAN)} == {phase})
    floor.one.wait(lambda: floor.control.phases(SPAN) == ["on", "on"])
    floor.trains()
    assert [len(node.events("grant")) for node in floor.nodes] == grants


def test_cleared_gpus_and_a_lease_do_not_outlast_a_silent_controller(pair):
    floor = pair()
    floor.run_gang()
    floor.park()
    floor.control.do(words.RESERVE, SPAN)
    floor.one.wait(lambda: floor.control.phases(SPAN) == ["off", "off"])
    floor.one.wait(lambda: [n.states()[i] for i, n in enumerate(floor.nodes, 1)] == ["RUNNING"] * 2)
    floor.control.round((SPAN, "back"), lease_ms=round(5000 * patience.slowness()))
    assert floor.control.phases(SPAN) == ["off", "off"]
    floor.one.wait(lambda: floor.control.phases(SPAN) == ["on", "on"])
    floor.trains()


@pytest.mark.parametrize("phase", [words.ON, words.HOLDING, words.RELEASED, words.OFF])
def test_a_daemon_killed_in_any_phase_comes_back_to_it_or_lets_the_gang_go_on(pair, phase):
    floor = pair()
    floor.run_gang()
    if phase != words.ON:
        floor.park(until=phase)
    floor.two.kill9()
    floor.two.start()
    if phase == words.OFF:
        assert floor.control.phases(SPAN) == ["off", "off"]
        assert floor.two.states()[SPAN] == "SUSPENDED"
        floor.control.come_in(SPAN)
    elif phase != words.ON:
        # What had released or held there goes on; here the controller, or the bound, lets it.
        floor.one.wait(lambda: floor.control.phases(SPAN)[-1] == words.ON)
        assert floor.control.tell(words.FREE, SPAN, nodes=[floor.two])[NODES[1]].code == words.NO
        floor.control.tell(words.RUN, SPAN)
    floor.trains()
    floor.park()


def test_both_daemons_killed_while_the_span_is_parked_wake_nobody(pair):
    floor = pair()
    floor.run_gang()
    floor.park()
    steps = floor.steps()
    for node in floor.nodes:
        node.kill9()
    for node in floor.nodes:
        node.start()
    assert floor.control.phases(SPAN) == ["off", "off"]
    assert floor.steps() == steps
    held = {row.job_id: row.held_ns for row in floor.control.tell(words.GATHER)[NODES[0]].held}
    assert held[SPAN] > 0 and held[1] > 0
    floor.control.come_in(SPAN)
    floor.trains()


def test_a_job_killed_while_it_is_parked_is_gone_when_the_plan_says_so(pair):
    floor = pair()
    floor.run_gang()
    floor.park()
    for node in floor.nodes:
        node.kill_job(SPAN)
        node.wait(lambda node=node: node.events("awaited", SPAN))
    assert floor.control.phases(SPAN) == ["off", "off"]
    for number, node in enumerate(floor.nodes, start=1):
        node.plan(a_planned_job(number, f"user{number}", (0,)), forget=True)
    assert floor.control.phases(SPAN) == []
    assert [sorted(node.states()) for node in floor.nodes] == [[1], [2]]


def test_a_job_killed_while_it_is_on_gives_its_gpus_on_with_the_plan(pair):
    floor = pair()
    floor.run_gang()
    floor.one.wait(lambda: floor.control.aim(SPAN))
    for node in floor.nodes:
        node.kill_job(SPAN)
        node.wait(lambda node=node: node.events("awaited", SPAN))
    for number, node in enumerate(floor.nodes, start=1):
        node.plan(a_planned_job(number, f"user{number}", (0,)), forget=True)
        node.wait(lambda node=node, n=number: node.states() == {n: "RUNNING"})


def test_a_span_without_client_is_frozen_on_all_nodes(pair):
    floor = pair(client_wait_ns=300_000_000)
    for node in floor.nodes:
        node.start_job(SPAN, [*LOOP, "none"], step="0")
    floor.control.come_in(SPAN)

    def is_blind():
        parts = [part for answer in floor.control.tell(words.GATHER).values() for part in answer.parts]
        return min(part.blind_ns for part in parts) >= 300_000_000

    floor.one.wait(is_blind)
    floor.control.do(words.FREEZE, SPAN)
    for node in floor.nodes:
        pid = node.steps[(SPAN, 0)][0].pid
        node.wait(lambda pid=pid: all(map(is_still, tree(pid))))
        assert node.states()[SPAN] == "SUSPENDING"
    floor.control.do(words.FREE, SPAN)
    floor.one.wait(lambda: [n.states()[i] for i, n in enumerate(floor.nodes, 1)] == ["RUNNING"] * 2)
    floor.control.come_in(SPAN)
    for node in floor.nodes:
        pid = node.steps[(SPAN, 0)][0].pid
        assert not any(map(is_still, tree(pid)))
        # A step that was frozen in its middle seems to last as long as the freeze. A slow machine's had none.
        (node.out / f"steps.{SPAN}.0").unlink(missing_ok=True)


def test_a_gang_that_refuses_is_frozen_on_both_nodes_and_no_rank_is_left_to_hold(pair):
    """One rank holds at an aim that the other never heard of, and so neither comes any further."""
    floor = pair()
    floor.run_gang()
    floor.control.tell(words.AIM, SPAN, at=3)
    floor.control.do(words.RUN, SPAN)
    floor.trains()
    at = max(part.max_seq for part in floor.control.tell(words.GATHER)[NODES[0]].parts) + 300
    floor.control.tell(words.AIM, SPAN, nodes=[floor.one], at=at)
    assert floor.control.phases(SPAN)[0] in ("aiming", "holding")
    floor.control.do(words.FREEZE, SPAN)
    for node in floor.nodes:
        pid = node.steps[(SPAN, 0)][0].pid
        node.wait(lambda pid=pid: all(map(is_still, tree(pid))))
    beside = [node.resident(number).steps for number, node in enumerate(floor.nodes, start=1)]
    floor.control.do(words.FREE, SPAN)
    for number, node in enumerate(floor.nodes, start=1):
        # For so long that the step in which it was frozen is known by its length.
        node.wait(lambda node=node, n=number: node.resident(n).steps > beside[n - 1] + 100)
        found = node.resident(SPAN)
        assert found.reason == "Frozen" and "failed to park once" in found.detail
        assert [(e["frozen"], e["off_boundary"]) for e in node.events("parked", SPAN)] == [(True, 1)]
    floor.control.come_in(SPAN)
    floor.trains()
    floor.park()
    floor.one.wait(lambda: floor.control.phases(SPAN) == ["off", "off"])
    assert floor.one.resident(SPAN).reason == "Parked"


def test_ranks_by_torchrun_form_one_part_on_each_node(pair):
    floor = pair()
    run = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    for rank, node in enumerate(floor.nodes):
        script = [*run, f"--master-port={floor.port}", f"--node-rank={rank}", GANG, "2", str(ENDLESS), "0"]
        node.start_job(SPAN, script, step="0")
    floor.control.come_in(SPAN)
    floor.one.wait(lambda: floor.control.is_parkable(SPAN))
    began = time.monotonic()
    floor.park()
    print(f"parked in {time.monotonic() - began:.3f} s")
    assert [node.events("parked", SPAN)[0]["off_boundary"] for node in floor.nodes] == [0, 0]
    floor.control.come_in(SPAN)
    floor.trains()
