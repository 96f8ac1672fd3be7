"""A job whose memory does not come back: it does not run, pays next to nothing, and is tried again."""

import pytest

from gandiva_slurm.model.job import RESUMING, RUNNING, SUSPENDED
from gandiva_slurm.node import leading
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.returning import FREE_NS, LEAST_RESUME_NS, LONGEST_REST_NS, REST_NS
from gandiva_slurm.wire import page as wire
from tests.node_bench import QUANTUM_NS, Bench

MS = 1_000_000
ANSWERS = {wire.CMD_AIM: wire.HOLD, wire.CMD_COMMIT: wire.PARKED}
WHY = "OutOfMemoryError: card out of memory"


class Rival(Bench):
    """Job 1 has ranks, which are parked at a boundary; job 2 has none, and holds the GPU."""

    def __init__(self, directory, world=1):
        super().__init__(directory, 1)
        self.watcher._look_for_members = lambda resident: None  # its processes are not here to be found
        self.job, self.other = self.add(1, "user1", (0,)), self.add(2, "user2", (0,))
        self.pages = [Page.make(self.job.key, rank, world, 0) for rank in range(world)]
        for rank, page in enumerate(self.pages):
            page.write([(wire.W_SEQ, 10)])
            self.job.join(Rank(ProcId(10 + rank, 1), rank, page, None), world, "host:1")
        while self.job.state != SUSPENDED:
            self.quantum()
            for _ in range(2):
                self.obey()
                self.settle()

    def obey(self):
        """All ranks do what their pages say."""
        for page in self.pages:
            view = page.read()
            state = ANSWERS.get(wire.command_of(view[wire.W_WORD]), wire.RUN)
            at = view[wire.W_AT] if state == wire.HOLD else view[wire.W_SEQ]
            page.write([(wire.W_SEQ, at), (wire.W_STATE_SEQ, at)])
            page.write([(wire.W_STATE_GEN, wire.generation_of(view[wire.W_WORD])), (wire.W_STATE, state)])

    def come_back(self, *which):
        """These ranks have their memory, and train."""
        for page in [self.pages[rank] for rank in which or range(len(self.pages))]:
            page.write([(wire.W_STATE, wire.RUN)])
        self.settle()

    def fail(self, *which):
        """These ranks tell that they could not restore."""
        for page in [self.pages[rank] for rank in which or range(len(self.pages))]:
            count = page.read()[wire.W_ERROR]
            text = WHY.encode().ljust(wire.ERROR_BYTES, b"\0")
            words = [int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8)]
            page.write([(wire.ERROR_OFFSET // 8 + n, word) for n, word in enumerate(words)])
            page.write([(wire.W_ERROR, count + 1), (wire.W_STATE, wire.PARKED)])
        self.settle()

    def until(self, holds, quanta=60):
        for _ in range(quanta):
            if holds():
                return
            self.quantum()
        raise AssertionError(f"not within {quanta} quanta")

    def granted(self):
        """Wait until it has its turn, and is about to come back."""
        self.until(lambda: self.job.state == RESUMING)

    def says(self):
        told = next(one for one in make_report(self.node).residents if one.job_id == 1)
        return told.reason, told.detail

    def begun(self):
        """How often it has begun to run."""
        return len([event for event in self.events() if event["event"] == "running" and event["job"] == 1])

    def rest_ns(self):
        return self.job.returning.again_ns - self.clock.mono()


@pytest.fixture
def rival(tmp_path):
    return lambda world=1: Rival(tmp_path / "node", world)


def held_ns(node):
    holds = [hold for hold in node.node.ledger.report(node.clock.real()) if hold.job_id == 1]
    return [hold.t1_ns - hold.t0_ns for hold in holds]


@pytest.mark.parametrize("world", [1, 2])
def test_it_does_not_run_is_not_charged_and_the_other_goes_on(rival, world):
    node = rival(world)
    node.granted()
    before = (node.job.counts.held_ns, node.node.local.passes())
    began = node.begun()
    node.clock.now_ns += 30 * MS
    node.fail()
    assert (node.job.state, node.job.is_frozen, node.holders()) == (SUSPENDED, True, {2})
    assert (node.job.counts.held_ns, node.node.local.passes()) == before
    assert held_ns(node)[-1] == 0 and node.job.key not in node.node.ledger.open
    assert node.begun() == began
    assert node.job.counts.off_boundary == 0 and node.job.counts.failed_parks == 0


def test_one_that_only_says_that_it_comes_back_is_asked_to_park_like_any_other(rival):
    """After a quantum, not after the deadline of a park: until then no other job has the GPU."""
    node = rival()
    node.granted()
    node.clock.now_ns += max(LEAST_RESUME_NS, QUANTUM_NS)
    node.settle()
    assert node.job.state == RESUMING and node.node.settings.park_deadline_ns > 2 * QUANTUM_NS
    node.clock.now_ns += 1
    node.settle()
    assert node.job.state == RUNNING


def test_why_tells_it_and_when_it_is_tried_again(rival):
    node = rival()
    node.granted()
    node.fail()
    code, detail = node.says()
    assert code == "ResumeFailed" and f"failed once ({WHY}); tried again at " in detail
    node.clock.now_ns += REST_NS
    assert node.says()[1].endswith("tried again in its next turn")
    node.granted()
    node.fail()
    assert "failed 2 times" in node.says()[1]


def test_it_is_tried_again_ever_more_seldom_and_comes_back(rival):
    node, rests = rival(), []
    for _ in range(8):
        node.granted()
        node.fail()
        rests.append(node.rest_ns())
        assert node.job.state == SUSPENDED
    assert rests == [min(REST_NS << n, LONGEST_REST_NS) for n in range(8)]
    node.granted()
    assert [wire.command_of(page.read()[wire.W_WORD]) for page in node.pages] == [wire.CMD_RUN]
    node.come_back()
    assert node.job.state == RUNNING and not node.job.is_frozen
    assert node.says()[0] == "Running" and node.job.returning.failures == 0


def test_alone_on_its_gpu_it_is_tried_as_soon_as_its_rest_is_over(rival):
    node = rival()
    node.granted()
    node.fail()
    node.remove(node.other)
    assert node.holders() == set()
    node.clock.now_ns += REST_NS
    node.watcher.beat()
    assert node.job.state == RESUMING


def test_where_a_plan_has_it_on_the_one_that_is_planned_off_goes_on(rival):
    node = rival()
    node.node.contact_ns = node.clock.mono()
    node.job.is_on, node.other.is_on = True, False
    node.granted()
    node.fail()
    node.node.contact_ns = node.clock.mono()
    assert not leading.is_out(node.node, node.other) and node.holders() == {2}


def test_a_gang_of_which_a_part_is_back_is_stopped_whole(rival):
    node = rival(2)
    node.granted()
    node.come_back(0)
    node.fail(1)
    assert node.job.state == SUSPENDED and node.job.is_frozen
    assert node.job.counts.off_boundary == 1, "one of its ranks may be in mid-step"
    node.granted()
    assert not node.job.is_frozen
    node.come_back(1)
    assert node.job.state == RUNNING


def test_who_works_first_and_then_tells_of_a_failure_pays(rival):
    node = rival()
    node.granted()
    before = node.job.counts.held_ns
    node.clock.now_ns += 5 * FREE_NS
    node.job.ordered_ns = node.clock.mono()  # its turn is as long as that
    node.fail()
    assert node.job.counts.held_ns - before == 4 * FREE_NS == held_ns(node)[-1]


def test_what_a_rank_told_before_its_turn_is_no_failure_of_it(rival):
    node = rival()
    node.pages[0].write([(wire.W_ERROR, 3)])
    node.granted()
    node.settle()
    assert node.job.state == RESUMING
    node.come_back()
    assert node.job.state == RUNNING
