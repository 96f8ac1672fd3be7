"""Gavel's linear programme: its own solver's objectives, cases worked out by hand, jobs that are alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="needs the extra `sim`")

from gandiva_slurm.policy.baselines.max_min import Allocation, Group, Kind, allocate, fair_rate

SNAPSHOTS = json.loads(
    (Path(__file__).parents[1] / "data/gavel/gavel_alloc_snapshots_dev.json").read_text(encoding="utf-8")
)["snapshots"]


def rates_of(kinds: list[Kind], allocation: Allocation, packed: dict[Any, Any] | None = None) -> list[float]:
    """Steps a second of one job of each kind."""
    rates = [0.0] * len(kinds)
    for (members, name), part in allocation.groups.items():
        both = (packed or {})[members][name] if len(members) == 2 else (kinds[members[0]].rates[name],)
        for index, rate in zip(members, both, strict=True):
            rates[index] += part * rate / kinds[index].jobs
    return rates


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda snapshot: f"seed{snapshot['seed']}")
def test_the_least_fair_rate_is_that_of_gavels_solver(snapshot: dict[str, Any]) -> None:
    counts, theirs = snapshot["cluster"], snapshot["policies"]["max_min_fairness_perf"]["effective_rate"]
    kinds = [Kind(1, job["gpus"], job["throughput"]) for job in snapshot["jobs"]]
    ours = allocate(kinds, counts)
    least = min(
        theirs[str(job["id"])] / fair_rate(kind, counts)
        for job, kind in zip(snapshot["jobs"], kinds, strict=True)
    )
    assert ours.value == pytest.approx(least, abs=1e-6)
    realised = [
        rate / fair_rate(kind, counts) for rate, kind in zip(rates_of(kinds, ours), kinds, strict=True)
    ]
    assert min(realised) == pytest.approx(ours.value, rel=1e-6)


@pytest.mark.parametrize("snapshot", SNAPSHOTS[:3], ids=lambda snapshot: f"seed{snapshot['seed']}")
def test_jobs_that_are_alike_may_be_one_kind(snapshot: dict[str, Any]) -> None:
    counts: dict[str, int] = snapshot["cluster"]
    alike: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for job in snapshot["jobs"]:
        alike.setdefault((job["type"], job["gpus"]), []).append(job)
    together = [Kind(len(jobs), size, jobs[0]["throughput"]) for (_, size), jobs in alike.items()]
    apart = [Kind(1, job["gpus"], job["throughput"]) for job in snapshot["jobs"]]
    assert allocate(together, counts).value == pytest.approx(allocate(apart, counts).value, rel=1e-6)


def test_limits_are_kept() -> None:
    for snapshot in SNAPSHOTS:
        counts = snapshot["cluster"]
        kinds = [Kind(1, job["gpus"], job["throughput"]) for job in snapshot["jobs"]]
        used, time = dict.fromkeys(counts, 0.0), [0.0] * len(kinds)
        for (members, name), part in allocate(kinds, counts).groups.items():
            used[name] += part * kinds[members[0]].size
            for index in members:
                time[index] += part
        assert all(used[name] <= counts[name] + 1e-6 for name in counts)
        assert max(time) <= 1 + 1e-6


def test_each_gets_the_type_that_helps_him() -> None:
    kinds = [Kind(1, 1, {"new": 4.0, "old": 1.0}), Kind(1, 1, {"new": 1.0, "old": 1.0})]
    groups = allocate(kinds, {"new": 1, "old": 1}).groups
    assert groups == {Group((0,), "new"): pytest.approx(1), Group((1,), "old"): pytest.approx(1)}


def test_two_jobs_on_one_gpu_are_packed_where_it_pays() -> None:
    kinds = [Kind(1, 1, {"gpu": 1.0}), Kind(1, 1, {"gpu": 1.0})]
    good = {(0, 1): {"gpu": (0.7, 0.7)}}
    allocation = allocate(kinds, {"gpu": 1}, good)
    assert allocation.groups == {Group((0, 1), "gpu"): pytest.approx(1)}
    assert allocation.value == pytest.approx(0.7)
    bad = {(0, 1): {"gpu": (0.4, 0.5)}}
    assert allocate(kinds, {"gpu": 1}, bad).value == pytest.approx(0.5)


def test_two_of_one_kind_are_packed_and_one_alone_is_not() -> None:
    pair = {(0, 0): {"gpu": (0.8, 0.8)}}
    assert allocate([Kind(2, 1, {"gpu": 1.0})], {"gpu": 1}, pair).value == pytest.approx(0.8)
    assert set(allocate([Kind(1, 1, {"gpu": 1.0})], {"gpu": 1}, pair).groups) == {Group((0,), "gpu")}


def test_weights_and_what_is_left() -> None:
    kinds = [Kind(1, 1, {"gpu": 1.0}, weight=3.0), Kind(1, 1, {"gpu": 1.0})]
    assert rates_of(kinds, allocate(kinds, {"gpu": 1})) == [pytest.approx(0.75), pytest.approx(0.25)]
    gang = [Kind(1, 2, {"gpu": 2.0}), Kind(1, 1, {"gpu": 1.0})]
    """Both can have all they can use."""
    assert rates_of(gang, allocate(gang, {"gpu": 4})) == [pytest.approx(2), pytest.approx(1)]


def test_nothing_is_given_to_who_can_run_nowhere() -> None:
    assert allocate([Kind(1, 1, {"gpu": 0.0})], {"gpu": 1}).groups == {}
    assert allocate([], {"gpu": 1}).groups == {}
    kinds = [Kind(1, 1, {}), Kind(1, 1, {"gpu": 1.0}), Kind(1, 9, {"gpu": 1.0})]
    assert allocate(kinds, {"gpu": 1}).groups == {Group((1,), "gpu"): pytest.approx(1)}
