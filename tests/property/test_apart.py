"""What finds nodes and pairs without a walk over all of them finds what the walk would."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.policy.moves.exchange import _blocks
from gandiva_slurm.policy.moves.merit import Merit
from gandiva_slurm.policy.moves.pace import Pace
from gandiva_slurm.policy.packing.pairs import Bench, Pair, PairBook
from gandiva_slurm.policy.placement.apart import Apart, SpareNodes
from gandiva_slurm.policy.placement.seating import Seating
from gandiva_slurm.policy.port import Cluster, JobView, Plan, View
from gandiva_slurm.policy.shares.rounds import Runs, Wanted
from tests.policy_world import FixedRates, S, a_job, a_view, check_plan, running
from tests.slow import DRAWN, drawn

TYPES = ("fast", "slow")
models = st.sampled_from("abc")
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


@st.composite
def crowds(draw: st.DrawFn) -> View:
    """Draw gangs in pieces and whole, some that live on the same GPUs, more than there is room for."""
    shape = draw(st.lists(st.tuples(st.sampled_from(TYPES), st.integers(1, 4)), min_size=2, max_size=4))
    cluster, jobs = Cluster(shape), []
    for number in range(draw(st.integers(1, 6))):
        where = draw(st.sampled_from([*cluster.counts]))
        able = [gpu for gpu, gpu_type in enumerate(cluster.type_of) if gpu_type == where]
        gpus = sorted(draw(st.sets(st.sampled_from(able), max_size=4)))
        fields = {
            "model": draw(models),
            "can_migrate": draw(st.sampled_from((True, True, False))),
            "hosts": draw(st.none() | st.frozensets(st.integers(0, len(shape) - 1), min_size=1)),
        }
        jobs.append(a_job(number, len(gpus) or draw(st.integers(1, 4)), **fields))
        if gpus:
            running(jobs[-1], tuple(gpus))
    down = draw(st.sampled_from([(), cluster.hosts[0].gpus]))
    return a_view(tuple(shape), jobs, rates=Apartment(), down=down)


class Apartment(FixedRates):
    """In pieces a gang of the model "a" is slow, one of "c" stands still."""

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return 1.0 if is_local else {"a": 0.1, "b": 1.0, "c": 0.0}[model]


def seat(view: View) -> Runs:
    """Seat all jobs of a view at a turn's beginning."""
    merit = Merit(view.cluster, Pace(60 * S, 0, 8 * S), by_type=True)
    merit.set_members(view.jobs, dict.fromkeys(view.jobs, 0.1))
    merit.learn(view, {}, 0)
    seating = Seating(view, merit, frozenset(view.jobs), is_turn=True, is_dear=False)
    return seating.anywhere(view.down)([Wanted(job, job.size) for job in view.jobs.values()], {})


@DRAWN
@settings(max_examples=drawn(400))
@given(crowds())
def test_whoever_is_seated_is_seated_whole_and_where_it_may_be(view: View) -> None:
    runs = seat(view)
    check_plan(view, Plan(runs))
    held = [gpu for gpus in runs.values() for gpu in gpus]
    assert len(held) == len({*held})
    for job_id, gpus in runs.items():
        job = view.jobs[job_id]
        if job.hosts is not None and gpus != job.gpus:
            assert view.cluster.hosts_of(gpus) <= job.hosts, (job_id, gpus)


@DRAWN
@settings(max_examples=drawn(400))
@given(crowds())
def test_none_loses_its_seat_where_others_go_together(view: View) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Apart, "together", lambda *_: set())
        before = seat(view)
    assert seat(view).keys() >= before.keys()


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
