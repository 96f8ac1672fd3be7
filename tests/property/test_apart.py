"""What finds nodes and pairs without a walk over all of them finds what the walk would."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gandiva_slurm.policy.moves.exchange import _blocks
from gandiva_slurm.policy.packing.pairs import Bench, Pair, PairBook
from gandiva_slurm.policy.placement.apart import SpareNodes
from gandiva_slurm.policy.port import Cluster, JobView
from tests.policy_world import FixedRates, a_job

TYPES = ("fast", "slow")
shapes = st.lists(st.tuples(st.sampled_from(TYPES), st.integers(1, 4)), min_size=1, max_size=8)


def walk(spare: Mapping[int, int], cluster: Cluster, gpu_type: str, size: int, own: list[int]) -> int | None:
    """Look at every node."""
    rooms = [
        (spare[index] + own.count(index), index)
        for index, host in enumerate(cluster.hosts)
        if host.gpu_type == gpu_type
    ]
    return min((room for room in rooms if room[0] >= size), default=(0, None))[1]


@given(shapes, st.data())
def test_a_node_is_found_as_a_walk_over_all_finds_it(
    shape: list[tuple[str, int]], data: st.DataObject
) -> None:
    cluster = Cluster(shape)
    nodes = range(len(cluster.hosts))
    used = data.draw(st.sets(st.integers(0, cluster.size - 1)))
    index = SpareNodes(cluster, used)
    spare = {node: len({*cluster.hosts[node].gpus} - used) for node in nodes}
    for _ in range(data.draw(st.integers(1, 6))):
        for gpu_type in cluster.counts:
            own = [cluster.host_of[gpu] for gpu in used if data.draw(st.booleans())]
            size = data.draw(st.integers(1, 5))
            counts = {node: own.count(node) for node in own}
            assert index.tightest(gpu_type, size, counts) == walk(spare, cluster, gpu_type, size, own)
        node = data.draw(st.sampled_from(nodes))
        more = data.draw(st.integers(0, len(cluster.hosts[node].gpus))) - spare[node]
        index.add(node, more)
        spare[node] += more


def eager(bench: Bench, rates: FixedRates, book: PairBook) -> list[tuple[float, int, int]]:
    """Make all offers before the first is looked at: loss, host, guest."""
    found = []
    for host, gpu_type in bench.hosts:
        for guest in bench.waiting:
            both = rates.packed(host.model, guest.model, gpu_type)
            assert both is not None
            gain = (both[0] - 1.0) * bench.worth(host, gpu_type) + both[1] * bench.worth(guest, gpu_type)
            if sum(both) > book.floor and min(both) >= 0.4 and gain > 0 and bench.admits(host, guest):
                found.append((-gain, host.job_id, guest.job_id))
    return sorted(found)


speeds = st.sampled_from((0.0, 0.4, 0.6, 0.8, 1.0))
models = st.sampled_from("abc")


@given(
    st.lists(st.tuples(models, st.sampled_from(TYPES)), max_size=6),
    st.sets(models, max_size=3),
    st.lists(st.integers(0, 3), min_size=16, max_size=16),
    st.lists(st.tuples(speeds, speeds), min_size=6, max_size=6),
    st.sets(st.tuples(st.integers(0, 5), st.integers(10, 12))),
)
def test_pairs_are_those_of_all_offers(
    hosts: list[tuple[str, str]],
    waiting: set[str],
    worth: list[int],
    kept: list[tuple[float, float]],
    refused: set[tuple[int, int]],
) -> None:
    """One guest of each model waits, so that none stands for another."""
    pairs = dict(zip([(a, b) for a in "abc" for b in "abc" if a <= b], kept, strict=True))
    pairs |= {(model, model): (both[0], both[0]) for (model, other), both in pairs.items() if model == other}
    rates, book = FixedRates(packed=pairs), PairBook()
    guests = [a_job(10 + number, model=model) for number, model in enumerate(sorted(waiting))]

    def admits(host: JobView, guest: JobView) -> bool:
        return (host.job_id, guest.job_id) not in refused

    bench = Bench(
        [(a_job(n, model=model), gpu_type) for n, (model, gpu_type) in enumerate(hosts)],
        guests,
        lambda job, gpu_type: float(worth[job.job_id]),
        admits=admits,
    )
    expected: list[Pair] = []
    for _, host, guest in eager(bench, rates, book):
        if all(host != pair.host and guest != pair.guest for pair in expected):
            expected.append(Pair(host, guest, False))
    assert book.match(bench, rates) == expected


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from((1, 2, 4))), max_size=12),
    st.sampled_from((1, 2, 4)),
    st.integers(0, 12),
)
def test_blocks_that_lose_more_than_others_gain_alone_are_left_out(
    jobs: list[tuple[int, int]], unit: int, most: int
) -> None:
    losses = sorted((float(loss), size, n) for n, (loss, size) in enumerate(jobs))
    whole, cut = _blocks(losses, unit, float("inf")), _blocks(losses, unit, most)
    assert [block for block in whole if block.gain >= -most or block.size < unit] == cut
