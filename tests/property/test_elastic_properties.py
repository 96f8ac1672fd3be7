"""Global batches dealt out to changing numbers of ranks: nothing lost, seen twice or out of order."""

from hypothesis import given
from hypothesis import strategies as st

from gandiva_slurm.client.elastic import Deal

SIZES = st.integers(1, 40)


@given(
    samples=st.integers(0, 200),
    global_batch=SIZES,
    lives=st.lists(st.tuples(st.integers(1, 8), SIZES, st.integers(1, 6)), min_size=1, max_size=6),
)
def test_each_sample_once_in_the_global_batches_order(samples, global_batch, lives):
    """Each life has its number of ranks, its most samples at once, and so many global batches."""
    done, batches = 0, []
    for number, (world, most, stop) in enumerate(lives):
        deal = Deal(global_batch, most, world)
        ranks = [list(deal.pieces(rank, samples, done)) for rank in range(world)]
        assert {len(pieces) for pieces in ranks} == {deal.rounds(samples) - deal.rounds(done)}
        rounds = list(zip(*ranks, strict=True))
        for round_ in rounds:
            assert len({(piece.is_last, piece.done) for piece in round_}) == 1, "ranks stay in step"
            assert all(1 <= piece.stop - piece.start <= most for piece in round_)
        stop = len(rounds) if number == len(lives) - 1 else stop
        for batch in _batches(rounds)[:stop]:
            batches.append([n for piece in batch if piece.share for n in range(piece.start, piece.stop)])
            assert abs(sum(piece.share for piece in batch) / world - 1) < 1e-9
            weights = {piece.share / (piece.stop - piece.start) for piece in batch if piece.share}
            assert max(weights) - min(weights) < 1e-9, "each sample weighs the same"
            done = batch[0].done
    assert done == samples
    want = [list(range(n, min(n + global_batch, samples))) for n in range(0, samples, global_batch)]
    assert batches == want


def _batches(rounds):
    """The pieces of each global batch, all ranks' of the first round before those of the second."""
    batches, current = [], []
    for round_ in rounds:
        current += round_
        if round_[0].is_last:
            batches.append(current)
            current = []
    assert not current
    return batches
