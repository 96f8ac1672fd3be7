"""What a job writes into its pages: it cannot keep its GPUs by it, and its error is told."""

import os

import pytest

from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node.orders import order_run
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.wire import page as wire
from tests.node_bench import Bench

QUANTA = 300
S = 1_000_000_000


@pytest.mark.parametrize("state", [wire.HOLD, wire.RELEASING, wire.RESTORING, wire.RUN, 77])
def test_a_rank_that_never_tells_the_truth_pays_for_all_it_holds(tmp_path, state):
    bench = Bench(tmp_path, 1)
    liar = bench.add(1, "user1", (0,))
    rank = Rank(ProcId(10, 1), 0, Page.make(liar.key, 0, 1, 0), None)
    rank.page.write([(wire.W_SEQ, 10), (wire.W_STATE, state)])
    liar.join(rank, 1, "")
    bench.add(2, "user2", (0,))
    bench.quantum(QUANTA)
    rank.page.close()
    assert bench.held_s("user2") > 0.4 * QUANTA


def test_what_a_rank_says_when_it_cannot_release_is_told(tmp_path):
    bench = Bench(tmp_path, 1)
    job = bench.add(1, "user1", (0,))
    page = Page.make(job.key, 0, 1, 0)
    page.write([(wire.W_SEQ, 10)])
    job.join(Rank(ProcId(10, 1), 0, page, None), 1, "")
    switcher = bench.slicer.switcher
    switcher.park(job)
    os.pwrite(page.fd, b"RuntimeError: pinned", wire.ERROR_OFFSET)
    page.write([(wire.W_STATE_GEN, page.read()[wire.W_WORD] >> 8), (wire.W_STATE, wire.FAILED)])
    switcher._tick(job)
    page.close()
    assert job.refusal.why == "rank 0 did not release its device; RuntimeError: pinned"


@pytest.mark.parametrize("was_silent", [True, False])
def test_a_parked_rank_that_says_it_runs_gets_no_gpus_by_it(tmp_path, was_silent):
    """Only a daemon that was silent has true strays: those have their GPUs back; a liar is frozen whole."""
    bench = Bench(tmp_path, 1)
    bench.slicer.switcher.follow = lambda resident: None
    job = bench.add(1, "user1", (0,))
    page = Page.make(job.key, 0, 1, 0)
    page.write([(wire.W_SEQ, 10), (wire.W_STATE, wire.RUN)])
    job.join(Rank(ProcId(os.getpid(), 1), 0, page, None), 1, "")
    bench.slicer.switcher.release(job, bench.clock.mono())
    job.state, job.since_ns, job.is_frozen = SUSPENDED, bench.clock.mono(), False
    if was_silent:
        bench.watcher._silent_ns = bench.clock.mono()
    bench.watcher._look_at_suspended(job, bench.clock.mono())
    page.close()
    assert (job.holds, job.is_frozen) == ((True, False) if was_silent else (False, True))


def test_a_gang_formed_anew_in_the_middle_of_a_park_is_told_to_run(tmp_path):
    """A dead rank's successor joins while the others are parked: they must not wait for an order for ever."""
    bench = Bench(tmp_path, 1)
    job = bench.add(1, "user1", (0,))
    pages = [Page.make(job.key, rank, 2, 0) for rank in range(2)]
    for rank, page in enumerate(pages):
        order = wire.word(4, wire.CMD_COMMIT)
        page.write([(wire.W_SEQ, 10), (wire.W_STATE, wire.PARKED), (wire.W_WORD, order)])
        job.join(Rank(ProcId(10 + rank, 1), rank, page, None), 2, "host:1")
    pages[1].write([(wire.W_STATE, wire.RUN)])
    assert job.sets[0].gang is None
    order_run(job.sets[0], bench.clock.mono(), False)
    orders = [wire.command_of(page.read()[wire.W_WORD]) for page in pages]
    generations = [wire.generation_of(page.read()[wire.W_WORD]) for page in pages]
    for page in pages:
        page.close()
    assert orders[0] == wire.CMD_RUN and generations[0] > 4


def test_a_release_is_not_stamped_before_it_was_seen(tmp_path, monkeypatch):
    """The daemon may lose the processor between its clock and the pages: a step may end in between."""
    bench = Bench(tmp_path, 1)
    job = bench.add(1, "user1", (0,))
    page = Page.make(job.key, 0, 1, 0)
    page.write([(wire.W_SEQ, 10)])
    job.join(Rank(ProcId(10, 1), 0, page, None), 1, "")
    bench.slicer.switcher.park(job)
    generation = page.read()[wire.W_WORD] >> 8
    read, step_ended_ns = Page.read, bench.clock.mono() + 5_000_000

    def late(self):
        bench.clock.now_ns = max(bench.clock.now_ns, step_ended_ns + 1)
        return read(self)

    page.write([(wire.W_STATE_GEN, generation), (wire.W_STATE_SEQ, 10), (wire.W_STATE, wire.PARKED)])
    monkeypatch.setattr(Page, "read", late)
    bench.slicer.switcher._tick(job)
    page.close()
    (parked,) = [event for event in bench.events() if event["event"] == "parked"]
    assert parked["mono_ns"] > step_ended_ns


def frozen(bench, world, group_ms):
    """A gang of so many ranks that is frozen whole, and what each says of its group's time-out."""
    job = bench.add(1, "user1", (0,))
    for number in range(world):
        page = Page.make(job.key, number, world, 0)
        page.write([(wire.W_SEQ, 10), (wire.W_GROUP_MS, group_ms)])
        rank = Rank(ProcId(10 + number, 1), number, page, None)
        rank.look()
        job.join(rank, world, "host:1")
        page.close()
    job.state, job.since_ns, job.is_frozen, job.stopped = SUSPENDED, 0, True, {ProcId(10, 1)}
    return job


def test_a_lone_rank_says_nothing_of_a_groups_timeout(tmp_path):
    job = frozen(Bench(tmp_path, 1), 1, 2)
    assert job.bound_ns(3600 * S, 300 * S, 4 * S) == 300 * S


def test_a_gang_is_frozen_for_a_quantum_at_least(tmp_path):
    assert frozen(Bench(tmp_path, 1), 2, 2).bound_ns(3600 * S, 300 * S, 4 * S) == 4 * S
    assert frozen(Bench(tmp_path / "b", 1), 2, 60_000).bound_ns(3600 * S, 300 * S, 4 * S) == 30 * S
