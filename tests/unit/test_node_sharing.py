"""What a node writes on the pages of two jobs that share a GPU."""

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node import packs, sharing
from gandiva_slurm.node.gauge import ALONE
from gandiva_slurm.node.jobs import FIRST_STEPS, Resident
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.report import make_report
from gandiva_slurm.policy.packing.duty import FIRST, FULL
from gandiva_slurm.policy.packing.tally import LEAST_WINDOWS
from gandiva_slurm.slicing.stride import STRIDE1
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import PlannedJob
from tests.node_bench import Bench, NoProcesses

GIB = 1 << 30
S = 1_000_000_000
#: Mini-batches a second alone.
RATE = 100


class Shared(Bench):
    """Two jobs with a rank each on one GPU of 16 GiB, which both hold from the start."""

    def __init__(self, directory):
        super().__init__(directory, 1)
        object.__setattr__(self.node.settings, "card_bytes", 16 * GIB)
        self.one, self.two = self.train(1, 6 * GIB), self.train(2, 3 * GIB)
        now = self.clock.mono()
        for resident, mate in ((self.one, 2), (self.two, 1)):
            self.plan(resident, mate)
            self.node.ledger.begin(resident.key, resident.user, (0,), self.clock.real(now))
            resident.state, resident.charged_ns = RUNNING, now
        self.node.set_gangs()
        packs.join(self.node, self.two, now)

    def train(self, job_id, peak, held=0):
        key = JobKey(job_id, 0)
        processes = NoProcesses(key, 0, "n1", set(), set())
        resident = Resident(key, f"user{job_id}", (0,), 100, job_id, processes, 0, state=SUSPENDED)
        rank = Rank(ProcId(1000 + job_id, 1), 0, Page.make(key, 0, 1, 0), None)
        rank.page.write([(wire.W_PEAK, peak), (wire.W_HELD, held)])
        resident.join(rank, 1, "")
        self.node.residents[key] = resident
        return resident

    def plan(self, resident, mate, is_opportunistic=False):
        job = PlannedJob(resident.key.job_id, 0, resident.user, 0, (0,), 100, 0, mate=mate)
        packs.tell(resident, job.__class__(**{**vars(job), "is_opportunistic": is_opportunistic}))

    def told(self, resident):
        words = resident.ranks[0].look()
        return words[wire.W_THROTTLE], words[wire.W_MEM_CAP]

    def run(self, seconds, kept=1.0):
        """Let both train, the first with this part of its speed; a beat a second."""
        for _ in range(seconds):
            self.clock.now_ns += S
            (rank,) = self.one.ranks
            seq = rank.look()[wire.W_SEQ] + round(RATE * kept)
            rank.page.write([(wire.W_SEQ, seq), (wire.W_LAST_NS, self.clock.now_ns)])
            sharing.pace(self.node, self.clock.mono())
            sharing.tell(self.node)


@pytest.fixture
def shared(tmp_path):
    made = Shared(tmp_path / "node")
    yield made
    for resident in made.node.residents.values():
        resident.ranks[0].page.close()


def test_both_are_capped_above_their_peaks_and_within_the_card(shared):
    (duty, mine), (other, theirs) = shared.told(shared.one), shared.told(shared.two)
    assert (duty, other) == (FULL, FULL)
    assert mine - 6 * GIB == theirs - 3 * GIB > 0
    assert mine + theirs == 14 * GIB, "two contexts are no tensors"


def test_what_a_third_keeps_there_is_not_shared_out(shared):
    third = shared.train(3, 4 * GIB, held=2 * GIB)
    sharing.tell(shared.node)
    assert sum(shared.told(job)[1] for job in (shared.one, shared.two)) == 11 * GIB
    assert shared.told(third) == (0, 0)


def test_caps_follow_a_peak_that_grows(shared):
    before = shared.told(shared.two)[1]
    shared.two.ranks[0].page.write([(wire.W_PEAK, 5 * GIB)])
    sharing.tell(shared.node)
    assert shared.told(shared.two)[1] == before + GIB


def test_without_a_figure_there_is_no_cap(shared):
    shared.one.ranks[0].page.write([(wire.W_PEAK, 0)])
    sharing.tell(shared.node)
    assert shared.told(shared.one) == shared.told(shared.two) == (FULL, 0)


def test_all_is_lifted_when_the_mate_leaves_and_put_back_when_it_comes(shared):
    was = shared.told(shared.one)
    packs.leave(shared.node, shared.two, shared.clock.mono())
    assert shared.told(shared.one) == (0, 0)
    shared.node.ledger.end(shared.two.key, shared.clock.real())
    sharing.tell(shared.node)
    assert shared.told(shared.two) == (0, 0)
    shared.node.ledger.begin(shared.two.key, "user2", (0,), shared.clock.real())
    packs.join(shared.node, shared.two, shared.clock.mono())
    assert shared.told(shared.one) == was


def opportunistic(shared, alone=RATE):
    shared.plan(shared.two, 1, is_opportunistic=True)
    shared.one.gauge.look(0, shared.clock.mono(), ALONE)
    for _ in range(LEAST_WINDOWS):
        shared.one.gauge.alone.add(2 * alone, 2 * S)
    sharing.tell(shared.node)


def test_an_opportunistic_one_begins_small_and_grows_where_it_does_no_harm(shared):
    opportunistic(shared)
    assert [shared.told(job)[0] for job in (shared.one, shared.two)] == [FULL, FIRST]
    shared.run(40)
    assert shared.told(shared.two)[0] == FULL
    assert sharing.duty_of(shared.node, shared.two) == FULL
    assert any(event["event"] == "duty" and event["kept"] == 1.0 for event in shared.events())


def test_it_is_cut_when_the_guaranteed_one_is_slowed_down(shared):
    opportunistic(shared)
    shared.run(20)
    grown = shared.told(shared.two)[0]
    assert grown > FIRST
    shared.run(3, kept=0.8)
    assert shared.told(shared.two)[0] < grown / 2
    assert shared.told(shared.one)[0] == FULL


def test_nothing_is_judged_by_while_one_of_them_moves(shared):
    opportunistic(shared)
    shared.one.state = SUSPENDED
    shared.run(10, kept=0.1)
    shared.one.state = RUNNING
    shared.run(1)
    assert shared.told(shared.two)[0] == FIRST


def test_without_a_rate_alone_the_duty_stays_small(shared):
    shared.plan(shared.two, 1, is_opportunistic=True)
    shared.run(10)
    assert shared.told(shared.two)[0] == FIRST


def test_what_a_mini_batch_takes_beside_the_other_is_told_with_its_slowest(shared):
    opportunistic(shared)
    packs.measure(shared.node, shared.clock.mono())
    page, now = shared.one.ranks[0].page, shared.clock.now_ns
    for number in range(100):
        now += 10_000_000 if number % 50 else 30_000_000
        page.write([(wire.W_STAMPS + number, now)])
    shared.clock.now_ns = now
    told = {item.job_id: item for item in make_report(shared.node).residents}
    assert told[1].step_packed_ns == (10_000_000, 30_000_000) and told[1].step_alone_ns == (0, 0)
    assert told[2].step_packed_ns == (0, 0), "too few"
    shared.plan(shared.one, 7)
    assert shared.one.gauge.steps_packed == (0, 0), "beside another mate it is another"


def test_two_opportunistic_ones_slow_nobody_down(shared):
    shared.plan(shared.one, 2, is_opportunistic=True)
    opportunistic(shared)
    assert [shared.told(job)[0] for job in (shared.one, shared.two)] == [FULL, FULL]


def test_with_another_mate_it_begins_anew(shared):
    opportunistic(shared)
    shared.run(30)
    shared.plan(shared.two, 7, is_opportunistic=True)
    assert shared.two.pacing.percent == FIRST


def test_one_that_has_never_told_its_memory_is_asked_for_it_once(shared):
    third = shared.train(3, 0)
    page = third.ranks[0].page
    sharing.tell(shared.node)
    assert shared.told(third) == (0, 0), "it has only begun"
    page.write([(wire.W_SEQ, FIRST_STEPS)])
    sharing.tell(shared.node)
    assert shared.told(third) == (FULL, 0)
    page.write([(wire.W_PEAK, 1)])
    sharing.tell(shared.node)
    assert shared.told(third) == (0, 0)


def test_when_the_first_mini_batches_were_done_is_kept(shared):
    shared.run(1)
    shared.watcher._look_at_running(shared.one, shared.clock.mono())
    first = shared.one.counts.first_ns
    assert first == shared.clock.real()
    shared.run(2)
    shared.watcher._look_at_running(shared.one, shared.clock.mono())
    assert shared.one.counts.first_ns == first
    assert shared.two.counts.first_ns == 0


def test_a_report_tells_what_is_held_by_now_though_it_is_charged_later(shared):
    """Of what both hold half."""
    shared.clock.now_ns += 2 * S
    assert {job.gpu_ns for job in make_report(shared.node).residents} == {1 * S}
    shared.slicer.charge(shared.clock.mono())
    shared.two.state = SUSPENDED
    shared.node.ledger.end(shared.two.key, shared.clock.real())
    shared.clock.now_ns += S
    told = {job.job_id: job.gpu_ns for job in make_report(shared.node).residents}
    assert told == {1: 2 * S, 2: 1 * S}


def test_both_of_a_pack_are_charged_half_of_what_both_held(shared):
    shared.clock.now_ns += 2 * S
    shared.slicer.charge(shared.clock.mono())
    users = shared.node.local.passes()[0]
    assert users["user1"] == users["user2"] == 2 * S * STRIDE1 // 2 // 100
    assert [one.counts.shared_ns for one in (shared.one, shared.two)] == [2 * S, 2 * S]
