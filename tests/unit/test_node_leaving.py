"""A gang told to leave saves itself in its turn and stays parked: ranks by hand, on a clock moved by hand."""


import pytest

from gandiva_slurm.client.rank import Rank as ClientRank
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node import leaving
from gandiva_slurm.node.adopt import Adoption
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import NodePlan, PlannedJob, decode_plan, encode
from tests.node_bench import QUANTUM_NS, TICKET, Bench

S = 1_000_000_000


class Floor(Bench):
    """A node of one GPU, told by plans; its ranks answer by `say`."""

    def __init__(self, directory):
        super().__init__(directory, 1, client_wait_ns=1000 * S)
        self.planned, self.number, self.pids = {}, 0, 1000

    def plan(self, job_id, is_leaving=False):
        self.planned[job_id] = PlannedJob(
            job_id, 0, f"user{job_id}", 0, (0,), 100 * TICKET, job_id, is_leaving=is_leaving
        )
        self.number += 1
        plan = NodePlan("n1", 1, self.number, QUANTUM_NS, 1, tuple(self.planned.values()), (), "", 0)
        self.planning.take(decode_plan(encode(plan)))
        self.settle()

    def forget(self, job_id):
        """The next plan is without this job."""
        del self.planned[job_id]
        self.plan(0)

    def train(self, job_id, world=1, kind=wire.KIND_RUN):
        """Add a job whose ranks train."""
        resident = self.add(job_id, f"user{job_id}", (0,))
        for number in range(world):
            page = Page.make(resident.key, number, world, 0)
            page.write([(wire.W_SEQ, 100), (wire.W_KIND, kind)])
            self.pids += 1
            resident.join(Rank(ProcId(self.pids, 1), number, page, None), world, "h:1")
        self.plan(job_id)
        self.settle()
        return resident

    def say(self, resident, state, tier=wire.TIER_HOLD, error="", which=None):
        """Let its ranks answer their order with this state, where they were told to or a boundary on."""
        for rank in resident.ranks if which is None else [resident.ranks[which]]:
            page, view = rank.page, rank.page.read()
            at = view[wire.W_AT] if 0 < view[wire.W_AT] < 1 << 60 else view[wire.W_SEQ] + 1
            text = error.encode().ljust(wire.ERROR_BYTES, b"\0")
            words = [int.from_bytes(text[n : n + 8], "little") for n in range(0, len(text), 8)]
            page.write([(wire.ERROR_OFFSET // 8 + n, word) for n, word in enumerate(words)])
            page.write([(wire.W_SEQ, at), (wire.W_STATE_SEQ, at), (wire.W_TIER_USED, tier)])
            gen = wire.generation_of(view[wire.W_WORD])
            page.write([(wire.W_STATE_GEN, gen), (wire.W_STATE, state)])
        self.settle()

    def park(self, resident, tier=None):
        """Let its ranks do what they were told: hold, save themselves if that was asked, park."""
        if len(resident.ranks) > 1:
            self.say(resident, wire.HOLD)
        self.say(resident, wire.PARKED, self.tier(resident) if tier is None else tier)

    def tier(self, resident):
        (tier,) = {rank.page.read()[wire.W_TIER] for rank in resident.ranks}
        return tier

    def told(self, job_id):
        return next(item for item in make_report(self.node).residents if item.job_id == job_id)

    def next_quantum(self):
        """A quantum ends; controllers send plans all the time."""
        self.node.contact_ns = self.clock.now_ns + QUANTUM_NS
        self.quantum()


@pytest.fixture
def floor(tmp_path):
    made = Floor(tmp_path)
    yield made
    for resident in made.node.residents.values():
        for rank in resident.ranks:
            rank.page.close()


@pytest.mark.parametrize("world", [1, 2])
def test_a_gang_that_runs_saves_itself_at_once_and_stays_parked(floor, world):
    job = floor.train(1, world)
    assert floor.told(1).is_movable and not floor.told(1).has_left
    floor.plan(1, is_leaving=True)
    assert floor.tier(job) == wire.TIER_REQUEUE
    assert (floor.told(1).state, floor.told(1).detail) == ("SUSPENDING", "saves itself, to be moved")
    floor.park(job)
    assert floor.told(1).has_left and floor.told(1).reason == "Parked"
    for _ in range(10):
        floor.next_quantum()
    assert job.state == SUSPENDED and job.counts.suspends == 1
    assert [line["event"] for line in floor.events() if line["event"] in ("saved", "unsaved")] == ["saved"]


def test_how_long_its_save_took_is_told_and_not_forgotten(floor):
    """From the order on; a save that failed is no part of it."""
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.clock.now_ns += 7 * S
    floor.say(job, wire.FAILED, error="disk full")
    floor.say(job, wire.RUN)
    assert floor.told(1).save_ns == 0
    floor.next_quantum()
    floor.next_quantum()
    began_ns = floor.clock.now_ns
    floor.clock.now_ns += 3 * S
    floor.park(job)
    assert floor.told(1).save_ns == floor.clock.now_ns - began_ns == 3 * S
    floor.forget(1)
    floor.next_quantum()
    again, _ = read_job(state_of(floor.node)["jobs"][0], "n1")
    assert (floor.told(1).save_ns, again.leave.save_ns) == (3 * S, 3 * S)


def test_a_parked_gang_waits_for_its_turn_to_save_itself(floor):
    one, two = floor.train(1), floor.train(2)
    assert (one.state, two.state) == (RUNNING, SUSPENDED)
    floor.say(two, wire.PARKED)
    floor.plan(2, is_leaving=True)
    assert two.state == SUSPENDED and not floor.told(2).has_left
    floor.next_quantum()
    floor.park(one)
    assert floor.tier(one) == wire.TIER_HOLD
    floor.say(two, wire.RUN)
    assert floor.tier(two) == wire.TIER_REQUEUE
    floor.park(two)
    floor.say(one, wire.RUN)
    assert floor.told(2).has_left and one.state == RUNNING
    for _ in range(5):
        floor.next_quantum()
    assert one.state == RUNNING, "nobody waits for its GPU"


def test_one_that_is_told_to_stay_goes_on(floor):
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.park(job)
    floor.plan(1)
    floor.say(job, wire.RUN)
    assert job.state == RUNNING and not floor.told(1).has_left
    other = floor.train(2)
    floor.next_quantum()
    assert floor.tier(job) == wire.TIER_HOLD
    floor.park(job)
    assert other.holds and not floor.told(1).has_left


def test_one_told_to_stay_while_it_saves_comes_back_when_it_has(floor):
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.plan(1)
    floor.park(job)
    assert job.holds


def test_one_that_was_requeued_does_not_train_on_until_slurm_ends_it(floor):
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.park(job)
    floor.forget(1)
    for _ in range(5):
        floor.next_quantum()
    assert job.state == SUSPENDED


def test_of_one_that_slurm_ends_rank_by_rank_none_trains_on(floor):
    job = floor.train(1, world=2)
    floor.plan(1, is_leaving=True)
    floor.park(job)
    floor.forget(1)
    job.ranks[0].is_alive = False
    for _ in range(5):
        floor.next_quantum()
    assert job.state == SUSPENDED and not floor.told(1).has_left


def test_a_save_that_fails_lets_it_train_on_and_is_tried_again(floor):
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.say(job, wire.FAILED, error="NotSaved: no space left")
    assert job.state == RUNNING and not floor.told(1).has_left
    assert floor.told(1).detail == "save failed: NotSaved: no space left; tried again in its next turn"
    assert not job.refusal.failures, "it is no fault of its parking"
    floor.say(job, wire.RUN)
    floor.next_quantum()
    assert job.state == RUNNING
    floor.next_quantum()
    assert floor.tier(job) == wire.TIER_REQUEUE
    floor.park(job)
    assert floor.told(1).has_left
    assert floor.told(1).detail == "has saved itself, to be moved"


def test_a_save_that_fails_keeps_no_other_waiting(floor):
    job, other = floor.train(1), floor.train(2)
    floor.plan(1, is_leaving=True)
    floor.say(job, wire.FAILED, error="no")
    assert not other.holds
    floor.next_quantum()
    assert floor.tier(job) == wire.TIER_HOLD
    floor.park(job)
    assert other.holds and not floor.told(1).has_left
    floor.next_quantum()
    floor.park(other)
    floor.say(job, wire.RUN)
    assert floor.tier(job) == wire.TIER_REQUEUE, "its next turn"


def test_all_ranks_must_have_saved_themselves(floor):
    job = floor.train(1, world=2)
    floor.plan(1, is_leaving=True)
    floor.say(job, wire.HOLD)
    floor.say(job, wire.PARKED, wire.TIER_REQUEUE, which=0)
    floor.say(job, wire.FAILED, error="disk", which=1)
    assert not floor.told(1).has_left and job.holds
    assert "save failed: disk" in floor.told(1).detail


def test_a_rank_that_parks_without_saving_has_not_left(floor):
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.park(job, tier=wire.TIER_HOLD)
    assert not floor.told(1).has_left
    assert job.holds, "it is given its turn again"
    assert "did not save itself" in floor.told(1).detail


def test_its_word_on_why_it_cannot_be_moved_is_told(floor):
    """As long as it cannot: one that is attached has nothing to say, whatever stands there."""
    job = floor.train(1, kind=wire.KIND_HOOK)
    assert not floor.told(1).is_movable and floor.told(1).unmoved == ""
    client = ClientRank("/nobody")
    client.words = memoryview(bytearray(wire.PAGE_BYTES)).cast("Q")
    client.tell_unmoved("transformers 5.99.0,\nknown are ünknown " + "." * 200)
    text = client.words[wire.UNMOVED_OFFSET // 8 :][: wire.UNMOVED_BYTES // 8]
    job.ranks[0].page.write([(wire.UNMOVED_OFFSET // 8 + n, word) for n, word in enumerate(text)])
    assert floor.told(1).unmoved == ("transformers 5.99.0, known are ünknown " + "." * 200)[:127]
    job.ranks[0].page.write([(wire.W_KIND, wire.KIND_RUN)])
    assert floor.told(1).is_movable and floor.told(1).unmoved == ""


@pytest.mark.parametrize(
    ("numbers", "want"),
    [((1, 1), "transformers"), ((0, 0), ""), ((1, 2), ""), ((99, 99), ""), ((2**64 - 1, 2**64 - 1), "")],
    ids=["theirs", "the script's own", "they differ", "not known", "nonsense"],
)
def test_the_framework_that_saves_it_is_told(floor, numbers, want):
    """By the numbers on its ranks' pages, whatever these write there, and only while it can be moved."""
    job = floor.train(1, 2, kind=wire.KIND_RUN)
    for rank, number in zip(job.ranks, numbers, strict=True):
        rank.page.write([(wire.W_FRAMEWORK, number)])
    assert floor.told(1).is_movable and floor.told(1).framework == want
    job.ranks[0].page.write([(wire.W_KIND, wire.KIND_HOOK)])
    assert not floor.told(1).is_movable and floor.told(1).framework == ""


def test_when_its_newest_file_was_written_is_told_as_its_ranks_say_and_never_from_the_future(floor):
    job = floor.train(1, 2, kind=wire.KIND_HOOK)
    assert floor.told(1).saved_s == 0
    now_s = floor.clock.real(floor.clock.mono()) // S
    job.ranks[0].page.write([(wire.W_FILE_S, now_s - 5)])
    assert floor.told(1).saved_s == now_s - 5
    for lie in (now_s + 60, (1 << 64) - 1):
        job.ranks[0].page.write([(wire.W_FILE_S, lie)])
        assert floor.told(1).saved_s == 0


def test_it_is_elastic_while_all_its_ranks_say_so_and_behind_that(floor):
    """Whoever has left keeps what he said last: that is what he saved."""
    job = floor.train(1, 2)
    assert not floor.told(1).is_elastic
    job.ranks[0].page.write([(wire.W_ELASTIC, 1)])
    assert not floor.told(1).is_elastic
    job.ranks[1].page.write([(wire.W_ELASTIC, 1)])
    assert floor.told(1).is_elastic
    floor.plan(1, is_leaving=True)
    floor.park(job)
    assert floor.told(1).has_left and floor.told(1).is_elastic


@pytest.mark.parametrize("kind", [wire.KIND_HOOK, wire.KIND_STEPS])
def test_a_job_that_is_not_attached_is_left_alone(floor, kind):
    job = floor.train(1, kind=kind)
    floor.plan(1, is_leaving=True)
    assert not floor.told(1).is_movable
    assert job.state == RUNNING


def test_a_save_may_take_longer_than_a_park_and_is_never_stopped_in_its_midst(floor):
    job = floor.train(1)
    settings = floor.node.settings
    floor.plan(1, is_leaving=True)
    floor.say(job, wire.RELEASING)
    floor.clock.now_ns += settings.park_deadline_ns + S
    floor.settle()
    assert floor.told(1).state == "SUSPENDING"
    floor.clock.now_ns += settings.save_deadline_ns
    floor.settle()
    assert job.holds and not job.stopped
    assert "save failed" in floor.told(1).detail


def test_its_parks_bound_does_not_wake_it_while_a_controller_is_heard(floor):
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.park(job)
    floor.clock.now_ns += 2 * floor.node.settings.max_park_ns
    floor.next_quantum()
    assert job.state == SUSPENDED
    assert floor.slicer._next_ns() > floor.clock.now_ns


def test_it_goes_back_to_its_turns_when_no_controller_is_heard_any_more(floor):
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.park(job)
    floor.clock.now_ns = floor.node.contact_ns + leaving.HEARD_NS - 2 * QUANTUM_NS
    floor.quantum()
    assert job.state == SUSPENDED
    floor.quantum(3)
    floor.say(job, wire.RUN)
    assert job.state == RUNNING, "nobody might ever requeue it"
    floor.plan(1, is_leaving=True)
    assert floor.tier(job) == wire.TIER_REQUEUE, "the controller is back"


@pytest.mark.parametrize("is_planned", [True, False])
def test_it_has_left_for_the_next_gandivad_too(floor, is_planned):
    """Though its plan may be without it, for it is requeued."""
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.park(job)
    if not is_planned:
        floor.forget(1)
    (row,) = state_of(floor.node)["jobs"]
    again, _ = read_job(row, "n1")
    again.sets, again.state = job.sets, SUSPENDED
    floor.node.residents[JobKey(1, 0)] = again
    floor.planning.restore(floor.node.plan)
    assert leaving.has_left(again)
    assert Adoption(floor.node, floor.slicer, floor.watcher, floor.planning)._is_parked(again, 0)
    floor.next_quantum()
    assert again.state == SUSPENDED


def test_a_rank_that_dies_has_not_left(floor):
    job = floor.train(1)
    floor.plan(1, is_leaving=True)
    floor.park(job)
    job.ranks[0].is_alive = False
    assert not floor.told(1).has_left
