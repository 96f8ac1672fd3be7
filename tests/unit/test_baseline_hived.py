"""HiveD as a baseline: equal cells for each VC, opportunistic jobs that give back, reconfiguration."""

from __future__ import annotations

import pytest

from gandiva_slurm.policy.baselines.hived import Hived, make
from gandiva_slurm.policy.port import OPPORTUNISTIC, Cluster, Plan, PolicySettings, View
from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster
from gandiva_slurm.policy.virtual_clusters.deal import members_of, spec_for
from gandiva_slurm.policy.virtual_clusters.site import CellGrant
from tests.policy_world import SETTINGS, Case, PolicyWorld, S, a_job, a_view, check_on, on_cases, running

TWO = PolicySettings(quantum_ns=60 * S, tickets={"a": 1, "b": 1})
NODES_OF_4 = (("v", 4), ("v", 4))


def hosts_of(view: View, plan: Plan, *jobs: int) -> set[int]:
    return set(view.cluster.hosts_of(gpu for job in jobs for gpu in plan.runs[job]))


def test_hived_shares_are_cells_that_fit_together() -> None:
    spec = spec_for(Cluster((("v", 8),) * 3 + (("k", 6),)), ["a", "b"])
    assert spec.vcs["a"] == spec.vcs["b"]
    assert spec.vcs["a"].grants == (
        CellGrant("v node of 8", "v node of 8", 1),
        CellGrant("v node of 8", "4 v", 1),
        CellGrant("k node of 6", "2 k", 1),
        CellGrant("k node of 6", "k", 1),
    )


@pytest.mark.parametrize("vcs", range(1, 12))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 12])
def test_hived_equal_shares_always_fit(size: int, vcs: int) -> None:
    cluster = Cluster((("v", size),) * 3)
    built = CellCluster(spec_for(cluster, [f"u{number}" for number in range(vcs)]))
    owned = sum(root.size for roots in built.vcs["u0"].roots.values() for level in roots for root in level)
    assert owned == cluster.size // vcs


def test_hived_members_fill_nodes() -> None:
    assert members_of(3, 4) == (3,)
    assert members_of(8, 4) == (4, 4)
    assert members_of(6, 4) == (4, 2)


def test_hived_keeps_one_vcs_small_jobs_off_the_others_node() -> None:
    small = [a_job(n, user="a") for n in range(1, 5)]
    view = a_view(NODES_OF_4, [*small, a_job(5, 4, at_s=1, user="b")], at_s=1)
    plan = make(TWO).decide(view)
    assert sorted(plan.runs) == [1, 2, 3, 4, 5]
    assert len(hosts_of(view, plan, 1, 2, 3, 4)) == 1


def test_hived_gives_a_vc_no_more_than_its_cells_and_holds_nobody_up() -> None:
    jobs = [a_job(1, 3, user="a"), a_job(2, 3, user="a"), a_job(3, 1, user="a"), a_job(4, 4, user="b")]
    plan = make(TWO).decide(a_view(NODES_OF_4, jobs))
    assert sorted(plan.runs) == [1, 3, 4]
    assert "not enough free cells" in plan.notes[2]


def test_hived_opportunistic_jobs_borrow_and_give_back() -> None:
    policy = make(TWO)
    borrower = a_job(1, 4, user="a", job_class=OPPORTUNISTIC)
    own = a_job(2, 4, user="a")
    first = policy.decide(a_view(NODES_OF_4, [borrower, own]))
    assert sorted(first.runs) == [1, 2]
    running(borrower, first.runs[1]), running(own, first.runs[2])
    owner = a_job(3, 4, at_s=5, user="b")
    second = policy.decide(a_view(NODES_OF_4, [borrower, own, owner], at_s=5))
    assert sorted(second.runs) == [2, 3]
    assert second.runs[3] == first.runs[1]
    assert "b needs its cells" in second.notes[1]
    borrower.is_running = False
    third = policy.decide(a_view(NODES_OF_4, [borrower, own], at_s=9))
    assert third.runs[1] == first.runs[1], "where it was parked"


def test_hived_opportunistic_jobs_stay_away_from_guaranteed_ones() -> None:
    view = a_view(NODES_OF_4, [a_job(1, user="a"), a_job(2, user="a", job_class=OPPORTUNISTIC)])
    plan = make(TWO).decide(view)
    assert hosts_of(view, plan, 1).isdisjoint(hosts_of(view, plan, 2))


def test_hived_runs_by_chance_what_its_vcs_cells_could_never_hold() -> None:
    wide = a_job(1, 8, user="a")
    policy = make(TWO)
    assert policy.decide(a_view(NODES_OF_4, [wide])).runs == {1: tuple(range(8))}
    running(wide, tuple(range(8)))
    plan = policy.decide(a_view(NODES_OF_4, [wide, a_job(2, user="b", at_s=1)], at_s=1))
    assert sorted(plan.runs) == [2], "the owner of a cell comes first"


def test_hived_a_newcomer_gets_equal_cells_at_once() -> None:
    policy = Hived(SETTINGS)
    jobs = [a_job(n, 4, user="a") for n in (1, 2)]
    first = policy.decide(a_view(NODES_OF_4, jobs))
    assert sorted(first.runs) == [1, 2]
    for job in jobs:
        running(job, first.runs[job.job_id])
    plan = policy.decide(a_view(NODES_OF_4, [*jobs, a_job(3, 4, at_s=7, user="b")], at_s=7))
    assert sorted(plan.runs) == [1, 3]


def test_hived_goes_around_a_bad_node_and_comes_back() -> None:
    policy = Hived(SETTINGS)
    job = a_job(1, 4, user="a")
    first = policy.decide(a_view(NODES_OF_4, [job]))
    job.gpus, job.is_running = (), False
    second = policy.decide(a_view(NODES_OF_4, [job], down=first.runs[1][:1]))
    assert set(second.runs[1]).isdisjoint(first.runs[1])
    late = a_job(2, 4, user="a")
    running(job, second.runs[1])
    assert 2 not in policy.decide(a_view(NODES_OF_4, [job, late], down=first.runs[1][:1])).runs
    assert policy.decide(a_view(NODES_OF_4, [job, late])).runs[2] == first.runs[1]


def test_hived_takes_over_what_runs_already() -> None:
    found = running(a_job(1, 3, user="a"), (1, 2, 3))
    plan = Hived(SETTINGS).decide(a_view(NODES_OF_4, [found, a_job(2, 4, at_s=3, user="a")], at_s=3))
    assert plan.runs == {1: (1, 2, 3), 2: (4, 5, 6, 7)}


def test_hived_runs_all_to_their_end() -> None:
    jobs = [a_job(n, 1 + n % 4, at_s=n, length_s=50, user="abc"[n % 3]) for n in range(1, 40)]
    world = PolicyWorld((("v", 4), ("k", 2), ("v", 4)), make(SETTINGS)).run(jobs)
    assert len(world.ends_ns) == len(jobs)


@on_cases(60)
def test_hived_plans_are_legal_on_any_case(case: Case) -> None:
    check_on(case, make)
