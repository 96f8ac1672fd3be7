"""A job cannot keep its GPUs by what it writes into its pages."""

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
