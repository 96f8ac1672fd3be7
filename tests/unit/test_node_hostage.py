"""What a job writes into its pages: it cannot keep its GPUs by it, and its error is told."""

import os

import pytest

from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import Rank
from gandiva_slurm.wire import page as wire
from tests.unit.test_node_slicer import Bench

QUANTA = 300


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
    assert job.trouble == "rank 0 did not release its device; RuntimeError: pinned"
