"""A gang that does not park: borne for a bound, then frozen where it is, and asked again (ADR 0018)."""

import dataclasses
import itertools
import json

import pytest

from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.slicing.refusal import Refusal
from gandiva_slurm.wire import page as wire
from tests.node_bench import QUANTUM_NS, Bench

BOUND = 10
ANSWERS = {wire.CMD_AIM: wire.HOLD, wire.CMD_COMMIT: wire.PARKED}
MOMENT_NS = QUANTUM_NS // 10


class Refuser:
    """A job of two ranks; they pass no boundary together, or stop as they are told once `is_willing`."""

    def __init__(self, bench: Bench, job_id: int, gpus: tuple[int, ...], world: int = 2) -> None:
        self.job = bench.add(job_id, f"user{job_id}", gpus)
        self.pages = [Page.make(self.job.key, rank, world, 0) for rank in range(world)]
        self.is_willing = False
        for rank, page in enumerate(self.pages):
            page.write([(wire.W_SEQ, 10)])
            self.job.join(Rank(ProcId(job_id * 10 + rank, 1), rank, page, None), world, "host:1")

    def orders(self):
        return [wire.command_of(page.read()[wire.W_WORD]) for page in self.pages]

    def obey(self):
        """Do at once what the pages say, where it is willing."""
        for page in self.pages:
            order = page.read()[wire.W_WORD]
            state = ANSWERS.get(wire.command_of(order), wire.RUN)
            at = page.read()[wire.W_AT] if state == wire.HOLD else page.read()[wire.W_SEQ]
            if self.is_willing and not self.job.is_frozen:
                words = [(wire.W_STATE_GEN, order >> 8), (wire.W_STATE_SEQ, at), (wire.W_STATE, state)]
                page.write([(wire.W_SEQ, at), *words])


class Scene(Bench):
    """GPUs that some refuse to give back: parks fail after half a quantum."""

    def __init__(self, directory, gpus=2, bound=BOUND, freeze_bound=100):
        super().__init__(directory, gpus)
        self.refusers = []
        self.node.settings = dataclasses.replace(
            self.node.settings,
            park_deadline_ns=QUANTUM_NS // 2,
            refusal_bound_ns=bound * QUANTUM_NS,
            freeze_bound_ns=freeze_bound * QUANTUM_NS,
        )

    def refuser(self, job_id, gpus, world=2):
        self.refusers.append(Refuser(self, job_id, gpus, world))
        return self.refusers[-1]

    def quantum(self, times=1):
        for _ in range(times):
            for _ in range(9):
                self.clock.now_ns += MOMENT_NS
                for refuser in self.refusers:
                    refuser.obey()
                self.settle()
            self.clock.now_ns += MOMENT_NS
            self.slicer.quantum()
            self.settle()

    def until(self, holds, quanta=200):
        for _ in range(quanta):
            if holds():
                return
            self.quantum()
        raise AssertionError(f"not within {quanta} quanta")

    def freezes(self, job):
        """How long each freeze of a job lasted that is over, in quanta."""
        times = {"parked": [], "grant": []}
        for event in self.events():
            if event.get("job") == job.key.job_id and event["event"] in times:
                times[event["event"]].append(event["mono_ns"])
        began = [at for at in times["grant"] if times["parked"] and at > times["parked"][0]]
        return [(on - off) / QUANTUM_NS for off, on in zip(times["parked"], began, strict=False)]

    def close(self):
        for page in (page for refuser in self.refusers for page in refuser.pages):
            page.close()


@pytest.fixture
def scene(tmp_path):
    made = []

    def make(**settings):
        made.append(Scene(tmp_path, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_it_is_frozen_where_it_is_when_others_have_borne_it_for_the_bound(scene):
    bench = scene()
    gang = bench.refuser(1, (0, 1))
    bench.quantum(5)
    assert gang.job.refusal.failures == 0, "nobody waits, nobody asks"
    beside = bench.add(2, "user2", (0,))
    waits_from_ns = bench.clock.mono()
    bench.until(lambda: gang.job.refusal.failures)
    bench.until(lambda: beside.state == RUNNING)
    assert (gang.job.state, gang.job.is_frozen) == (SUSPENDED, True)
    assert BOUND - 1 < (bench.clock.mono() - waits_from_ns) / QUANTUM_NS <= BOUND + 3
    assert gang.orders() == [wire.CMD_RUN] * 2, "no rank is left to hold"
    (parked,) = [event for event in bench.events() if event["event"] == "parked"]
    assert (parked["frozen"], parked["off_boundary"]) == (True, 1)


def test_nothing_counts_while_nobody_waits(scene):
    bench = scene()
    gang = bench.refuser(1, (0, 1))
    beside = bench.add(2, "user2", (1,))
    bench.until(lambda: gang.job.refusal.refused_ns > 3 * QUANTUM_NS)
    bench.remove(beside)
    bench.quantum(2)
    counted_ns = gang.job.refusal.refused_ns
    bench.quantum(5 * BOUND)
    assert gang.job.refusal.refused_ns == counted_ns and not gang.job.counts.suspends
    later = bench.add(3, "user3", (0,))
    bench.quantum()
    assert gang.job.refusal.refused_ns - counted_ns <= bench.clock.mono() - later.since_ns


def test_a_park_that_works_ends_the_count(scene):
    bench = scene()
    gang = bench.refuser(1, (0, 1))
    bench.add(2, "user2", (0,))
    bench.until(lambda: gang.job.refusal.refused_ns > 3 * QUANTUM_NS)
    gang.is_willing = True
    bench.until(lambda: gang.job.state == SUSPENDED)
    assert not gang.job.is_frozen and gang.job.refusal == Refusal()


def test_it_is_asked_after_each_freeze_and_no_longer_frozen_once_it_parks(scene):
    bench = scene()
    gang = bench.refuser(1, (0, 1))
    bench.add(2, "user2", (0,))
    bench.until(lambda: gang.job.refusal.freezes == 3)
    ends = [e["event"] for e in bench.events() if e["event"] in ("parked", "unparkable") and e["job"] == 1]
    assert ("parked", "parked") not in itertools.pairwise(ends), "frozen without being asked"
    bench.until(lambda: gang.job.state == RUNNING)
    gang.is_willing = True
    bench.until(lambda: gang.job.state == SUSPENDED)
    assert not gang.job.is_frozen and not gang.job.refusal.failures


@pytest.mark.parametrize("others", [1, 2, 3])
def test_it_holds_at_least_as_long_as_it_was_frozen(scene, others):
    bench = scene(freeze_bound=20)
    gang = bench.refuser(1, (0, 1))
    for job_id in range(2, 2 + others):
        bench.refuser(job_id, (0,)).is_willing = True  # its parks have no such bound as a freeze has
    bench.quantum(250)
    holds = [e["held_ms"] / 1000 for e in bench.events() if e["event"] == "release" and e["job"] == 1]
    frozen = bench.freezes(gang.job)
    assert len(frozen) > 3
    for held, before in zip(holds[1:], frozen, strict=False):
        assert held >= before * 0.999


def test_two_users_have_about_equal_parts_though_one_never_parks(scene):
    bench = scene()
    bench.refuser(1, (0,))
    bench.add(2, "user2", (0,))
    bench.quantum(400)
    one, two = bench.held_s("user1"), bench.held_s("user2")
    assert 0.9 < one / two < 1.1


def test_a_lone_rank_that_says_at_once_that_it_cannot_is_no_exception(scene):
    bench = scene()
    gang = bench.refuser(1, (0,), world=1)
    beside = bench.add(2, "user2", (0,))
    page = gang.pages[0]

    def refuse():
        order = page.read()[wire.W_WORD]
        page.write([(wire.W_STATE_GEN, order >> 8), (wire.W_STATE, wire.FAILED)])
        if wire.command_of(order) != wire.CMD_COMMIT:
            page.write([(wire.W_STATE, wire.RUN)])

    gang.obey = refuse
    bench.until(lambda: beside.state == RUNNING)
    assert gang.job.refusal.freezes == 1


def test_two_that_refuse_leave_each_other_frozen_no_longer_than_the_bound(scene):
    """The count of the one that holds would let the other stand for longer than its ranks can bear."""
    bench = scene(bound=60, freeze_bound=20)
    one, two = bench.refuser(1, (0, 1)), bench.refuser(2, (0,))
    bench.until(lambda: two.job.refusal.freezes == 3, 600)
    frozen = bench.freezes(one.job) + bench.freezes(two.job)[1:]
    assert len(frozen) > 3 and max(frozen) < 20 + 2


def test_a_bound_of_nothing_bears_it_for_ever(scene):
    bench = scene(bound=0)
    gang = bench.refuser(1, (0, 1))
    bench.add(2, "user2", (0,))
    bench.quantum(10 * BOUND)
    assert not gang.job.counts.suspends and gang.job.refusal.refused_ns > 8 * BOUND * QUANTUM_NS


def test_what_is_counted_outlives_the_daemon(scene):
    bench = scene()
    gang = bench.refuser(1, (0, 1))
    bench.add(2, "user2", (0,))
    bench.until(lambda: gang.job.refusal.is_frozen)
    rows = json.loads(json.dumps(state_of(bench.node)))["jobs"]
    read, _ = read_job(rows[0], "n1")
    assert (read.refusal, read.is_frozen) == (gang.job.refusal, True)
    assert read.bound_ns(1, 7, 5) == gang.job.bound_ns(1, 7, 5)


@pytest.mark.parametrize(("told_ms", "bound_ms"), [(0, 7000), (60_000, 7000), (9000, 4500), (100, 1000)])
def test_no_freeze_outlasts_a_process_group(scene, told_ms, bound_ms):
    bench = scene(freeze_bound=7)
    gang = bench.refuser(1, (0, 1))
    gang.job.ranks[1].page.write([(wire.W_GROUP_MS, told_ms)])
    bench.add(2, "user2", (0,))
    bench.until(lambda: gang.job.refusal.is_frozen)
    settings = bench.node.settings
    bound_ns = gang.job.bound_ns(settings.max_park_ns, settings.freeze_bound_ns, settings.quantum_ns)
    assert bound_ns == gang.job.since_ns + bound_ms * 1_000_000


def test_why_it_holds_and_why_it_is_frozen_is_told(scene):
    bench = scene()
    gang = bench.refuser(1, (0, 1))
    bench.add(2, "user2", (0,))
    bench.until(lambda: gang.job.state == RUNNING and gang.job.refusal.failures == 3)
    told = make_report(bench.node).residents[0]
    assert told.reason == "NotParkable"
    assert told.detail.startswith("failed to park 3 times in a row, the last time: no boundary")
    assert "while others waited, frozen at 10 s" in told.detail
    bench.until(lambda: gang.job.refusal.is_frozen)
    told = make_report(bench.node).residents[0]
    assert told.reason == "Frozen"
    assert "frozen where it is since 20" in told.detail and "at the latest" in told.detail


def test_one_that_is_frozen_before_all_its_ranks_could_be_asked_has_missed_no_boundary(tmp_path):
    """Its last rank comes while it is being stopped, as on a busy machine."""
    bench = Bench(tmp_path, 1, client_wait_ns=QUANTUM_NS)
    job = bench.add(1, "user1", (0,))
    pages = [Page.make(job.key, rank, 2, 0) for rank in range(2)]
    for page in pages:
        page.write([(wire.W_SEQ, 10)])
    job.join(Rank(ProcId(10, 1), 0, pages[0], None), 2, "host:1")
    come = iter([lambda: job.join(Rank(ProcId(11, 1), 1, pages[1], None), 2, "host:1")])
    job.processes.stop = lambda only: (next(come, lambda: None)(), (set(), set()))[1]
    bench.add(2, "user2", (0,))
    bench.quantum(8)
    (parked,) = [event for event in bench.events() if event["event"] == "parked" and event["job"] == 1][:1]
    assert (parked["frozen"], parked["seqs"], parked["off_boundary"]) == (True, [[0, 0]], 0)
    assert job.counts.suspends and not job.counts.off_boundary
    for page in pages:
        page.close()
