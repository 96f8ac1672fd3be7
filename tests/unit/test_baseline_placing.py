"""Where baselines put gangs: one type, the fewest nodes, the tightest; counts always find a place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.policy.baselines.placing import Ration, Types, settle
from gandiva_slurm.policy.placement.free import FreeGpus, extra_hosts
from gandiva_slurm.policy.port import Cluster, View
from tests.policy_world import FixedRates, a_job, a_view, running

FOURS = (("v", 4),) * 3


def test_place_takes_the_tightest_node_that_holds_the_gang() -> None:
    free = FreeGpus(Cluster(FOURS), (4, 5, 8))
    assert free.place(a_job(1, 2), ("v",)) == (6, 7)
    assert free.place(a_job(2, 3), ("v",)) == (9, 10, 11)
    assert free.left == 4


def test_place_of_a_large_gang_takes_the_emptiest_nodes_then_the_tightest_rest() -> None:
    free = FreeGpus(Cluster(FOURS), (0, 1, 4))
    assert free.place(a_job(1, 6), ("v",)) == (2, 3, 8, 9, 10, 11)


def test_place_prefers_a_type_on_which_the_gang_is_together() -> None:
    view = a_view((("v", 2), ("v", 2), ("k", 4)), [])
    assert FreeGpus(view.cluster, view.down.union((0, 2))).place(a_job(1, 2), ("v", "k")) == (4, 5)
    assert FreeGpus(view.cluster, view.down.union((0, 2))).place(a_job(1, 2), ("v",)) == (1, 3)
    assert FreeGpus(view.cluster, view.down.union((0, 2))).place(a_job(1, 2), ("v",), most_extra=0) is None


def test_place_is_the_old_one_where_that_is_free() -> None:
    job = running(a_job(1, 2), (1, 9))
    assert FreeGpus(Cluster(FOURS)).place(job, ("v",)) == (1, 9)
    assert FreeGpus(Cluster(FOURS), (9,)).place(job, ("v",)) == (8, 10)
    job.can_migrate = False
    assert FreeGpus(Cluster(FOURS), (9,)).place(job, ("v",)) is None


def test_free_gpus_leave_out_those_that_are_down() -> None:
    view = a_view((("v", 2),), [], down=(0,))
    free = FreeGpus(view.cluster, view.down)
    assert free.left == 1 and free.place(a_job(1, 2), ("v",)) is None
    with pytest.raises(ValueError):
        free.take((0,))


def test_types_leave_out_those_on_which_the_job_cannot_run() -> None:
    view = a_view((("v", 4), ("k", 2), ("p", 4)), [], rates=FixedRates({("m", 3, "p"): 0.0}))
    assert Types(view).of(a_job(1, 3, model="m")) == ("v",)
    assert Types(view).of(a_job(1, 2, model="m", gpu_types=("p", "k"))) == ("k", "p")


def test_types_leave_out_those_on_which_a_gang_cannot_be_put_apart() -> None:
    class Apart(FixedRates):
        def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
            return 1.0 if is_local == (model == "near") else 0.0

    view = a_view((("v", 4), ("v", 4)), [], rates=Apart())
    assert Types(view).of(a_job(1, 1, model="near")) == ("v",)
    assert Types(view).of(a_job(1, 2, model="near")) == ()
    assert Types(view).of(a_job(1, 8, model="far")) == ("v",)


def test_who_is_counted_in_later_takes_idle_gpus_before_those_of_who_runs() -> None:
    stays, comes = running(a_job(1, 2), (0, 1)), a_job(2, 2, at_s=1)
    view = a_view((("v", 2), ("k", 2)), [stays, comes])
    ration = Ration(view)
    picks = [ration.pick(job, ("v", "k")) for job in (comes, stays)]
    assert [pick.gpu_type for pick in picks if pick] == ["k", "v"]


@settings(max_examples=100)
@given(
    hosts=st.lists(st.sampled_from((1, 2, 4, 8)), min_size=1, max_size=5),
    taken=st.sets(st.integers(0, 39)),
    size=st.integers(1, 12),
)
def test_place_uses_the_fewest_nodes_there_are(hosts: list[int], taken: set[int], size: int) -> None:
    view: View = a_view(tuple(("v", count) for count in hosts), [])
    free = FreeGpus(view.cluster, view.down.union(taken))
    left = sorted((len(set(host.gpus) - taken) for host in view.cluster.hosts), reverse=True)
    place = free.place(a_job(1, size), ("v",))
    assert (place is not None) == (sum(left) >= size)
    if place is not None:
        fewest = next(n for n in range(1, len(left) + 1) if sum(left[:n]) >= size)
        assert len(view.cluster.hosts_of(place)) == fewest
        assert extra_hosts(view.cluster, place) >= 0
        assert taken.isdisjoint(place) and free.left == sum(left) - size


@settings(max_examples=100)
@given(data=st.data())
def test_who_is_counted_in_finds_a_place(data: st.DataObject) -> None:
    """Old places overlap, some jobs cannot move, some change size: counts decide, places follow."""
    shape = tuple((kind, 4) for kind in data.draw(st.lists(st.sampled_from("vk"), min_size=1, max_size=4)))
    gpus = range(4 * len(shape))
    jobs = []
    for job_id in range(data.draw(st.integers(1, 8))):
        node = data.draw(st.sampled_from(range(len(shape))))
        old = data.draw(st.sets(st.sampled_from(gpus[4 * node : 4 * node + 4]), max_size=4))
        job = a_job(job_id, len(old) or 1, can_migrate=data.draw(st.booleans()))
        jobs.append(running(job, tuple(sorted(old))) if old else job)
    view = a_view(shape, jobs, down=tuple(data.draw(st.sets(st.sampled_from(gpus), max_size=3))))
    ration, picks = Ration(view), []
    for job in jobs:
        wanted = data.draw(st.integers(1, 6)) if job.can_migrate else job.size
        pick = ration.pick(job, tuple(view.cluster.counts), wanted)
        picks += [pick] if pick else []
    runs = settle(view, picks)
    assert [len(runs[pick.job.job_id]) for pick in picks] == [pick.size for pick in picks]
    used = [gpu for place in runs.values() for gpu in place]
    assert len(used) == len(set(used)) and view.down.isdisjoint(used)
    assert all(
        pick.job.can_migrate or not pick.job.gpus or runs[pick.job.job_id] == pick.job.gpus for pick in picks
    )
