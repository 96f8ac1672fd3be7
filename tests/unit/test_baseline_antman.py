"""AntMan: guaranteed within quota, opportunistic beside and between, promotion when quota frees."""

from __future__ import annotations

from gandiva_slurm.policy.baselines.antman import CONVERT_NS, KEEPS, AntMan, make
from gandiva_slurm.policy.port import GUARANTEED, OPPORTUNISTIC, JobView, Plan, PolicySettings, View
from tests.policy_world import (
    SETTINGS,
    Case,
    FixedRates,
    PolicyWorld,
    S,
    a_job,
    a_view,
    check_on,
    idle_gpus,
    on_cases,
)

HALVES = PolicySettings(quantum_ns=60 * S, tickets={"a": 1, "b": 1})
KIND = FixedRates(packed={("m", "m"): (0.5, 0.5), ("m", "kind"): (0.96, 0.7)})


def spare(job_id: int, size: int = 1, **more: object) -> JobView:
    """Make an opportunistic job."""
    return a_job(job_id, size, job_class=OPPORTUNISTIC, **more)  # type: ignore[arg-type]


def played(view: View, policy: AntMan) -> Plan:
    """Decide, and let the jobs run as decided."""
    plan = policy.decide(view)
    for job in view.jobs.values():
        job.is_running = job.job_id in plan.runs
        job.gpus = plan.runs.get(job.job_id, job.gpus)
    return plan


def test_antman_packs_opportunistic_jobs_only_where_the_guaranteed_one_keeps_its_rate() -> None:
    solid = a_job(1, model="m")
    for model, want in (("kind", {1: (0,), 2: (0,)}), ("m", {1: (0,)})):
        view = a_view((("v", 1),), [solid, spare(2, model=model)], rates=KIND)
        assert make(SETTINGS).decide(view).runs == want


def test_antman_fills_idle_gpus_before_it_packs_and_packs_one_beside_each() -> None:
    jobs = [a_job(1, model="m"), *(spare(n, model="kind") for n in (2, 3, 4))]
    assert make(SETTINGS).decide(a_view((("v", 2),), jobs, rates=KIND)).runs == {1: (0,), 2: (1,), 3: (0,)}


def test_antman_never_packs_two_guaranteed_jobs_nor_who_may_not() -> None:
    kind = FixedRates(packed_default=(1.0, 1.0))
    assert len(make(SETTINGS).decide(a_view((("v", 1),), [a_job(1), a_job(2)], rates=kind)).runs) == 1
    jobs = [a_job(1), spare(2, can_pack=False)]
    assert len(make(SETTINGS).decide(a_view((("v", 1),), jobs, rates=kind)).runs) == 1


def test_antman_tries_an_unseen_pair_and_parts_it_when_it_was_seen_to_harm() -> None:
    policy = make(SETTINGS)
    view = a_view(
        (("v", 1),), [a_job(1, model="m"), spare(2, model="x")], rates=FixedRates(packed_default=None)
    )
    tried = played(view, policy)
    assert tried.runs == {1: (0,), 2: (0,)} and tried.wake_ns == 60 * S
    view.rates = FixedRates(packed={("m", "x"): (0.9, 0.9)})
    assert policy.decide(view).runs == {1: (0,)}


def test_antman_guaranteed_job_takes_the_gpus_of_opportunistic_ones() -> None:
    policy = make(SETTINGS)
    jobs = [spare(1, 2), spare(2, 2)]
    played(a_view((("v", 4),), jobs), policy)
    plan = policy.decide(a_view((("v", 4),), [*jobs, a_job(3, 3, at_s=1)], at_s=1))
    assert plan.runs == {3: (0, 1, 2)} and plan.notes.keys() == {1, 2}


def test_antman_reserves_what_there_is_and_lets_opportunistic_jobs_use_it_meanwhile() -> None:
    """Half the cluster is down. The gang of four has two GPUs reserved, which a later guaranteed job may not
    have but an opportunistic one may, until two more are free at 50 s; the later job waits for repair."""
    jobs = [a_job(1, 2, length_s=50), a_job(2, 4, at_s=1), a_job(3, 2, at_s=2), spare(4, 2, at_s=3)]
    world = PolicyWorld((("v", 4), ("v", 4)), make(SETTINGS), outages=((0, 100, (4, 5, 6, 7)),)).run(jobs)
    at_3 = next(moment.plan for moment in world.moments if moment.view.now_ns == 3 * S)
    assert at_3.notes == {2: "2 of 4 v are reserved for it", 3: "0 of 2 v are reserved for it"}
    assert [world.starts_ns[n] // S for n in (1, 2, 3, 4)] == [0, 50, 100, 3]
    assert world.ends_ns[4] == (100 + 100 - 47) * S


def over_quota_world(*more: JobView) -> PolicyWorld:
    """User a has two of four GPUs, and three jobs that want them."""
    jobs = [a_job(n, at_s=n, length_s=(1000, 500, 5000)[n], user="a") for n in range(3)]
    return PolicyWorld((("v", 2), ("v", 2)), make(HALVES)).run([*jobs, *more])


def test_antman_converts_who_waits_long_over_quota_and_promotes_it_when_quota_frees() -> None:
    world = over_quota_world()
    assert world.starts_ns[2] == 2 * S + CONVERT_NS, "two GPUs are idle, but it is over quota"
    freed = next(moment for moment in world.moments if moment.view.now_ns == world.ends_ns[1])
    assert freed.plan.notes[2] == "promoted: its quota has room"
    assert {moment.plan.runs[2] for moment in world.moments if 2 in moment.plan.runs} == {(2,)}


def test_antman_converted_job_yields_to_a_guaranteed_one_and_a_promoted_one_does_not() -> None:
    blocker = a_job(7, 2, at_s=400, length_s=3000, user="b")
    yields = over_quota_world(blocker)
    assert yields.starts_ns[7] == 400 * S
    at_400 = next(moment.plan for moment in yields.moments if moment.view.now_ns == 400 * S)
    assert 2 not in at_400.runs
    blocker.submit_ns = 600 * S
    stays = over_quota_world(blocker)
    assert all(2 in m.plan.runs for m in stays.moments if 302 * S <= m.view.now_ns < stays.ends_ns[2])


@on_cases(120)
def test_antman_plans_are_legal_and_guaranteed_jobs_are_safe_whatever_comes_and_goes(case: Case) -> None:
    """Opportunistic jobs find every idle GPU; no guaranteed pair shares; no seen harm is kept."""

    def check(view: View, plan: Plan) -> None:
        owners: dict[tuple[int, ...], list[JobView]] = {}
        for job_id, gpus in plan.runs.items():
            owners.setdefault(gpus, []).append(view.jobs[job_id])
        for pair in owners.values():
            if len(pair) == 2:
                assert _is_kept(view, pair[0], pair[1]) or _is_kept(view, pair[1], pair[0]), pair
        idle = [view.cluster.type_of[gpu] for gpu in idle_gpus(view, plan)]
        for job in view.jobs.values():
            if (
                job.job_class == OPPORTUNISTIC
                and job.job_id not in plan.runs
                and (job.can_migrate or not job.gpus)
            ):
                assert not any(job.accepts(name) and idle.count(name) >= job.size for name in idle)

    check_on(case, make, check)


def _is_kept(view: View, guaranteed: JobView, other: JobView) -> bool:
    seen = view.rates.packed(guaranteed.model, other.model, "fast")
    return guaranteed.job_class == GUARANTEED and (seen is None or (seen[0] >= KEEPS and seen[1] > 0))


@on_cases(60)
def test_antman_never_takes_gpus_from_a_guaranteed_job(case: Case) -> None:
    policies: list[AntMan] = []
    safe: dict[int, tuple[int, ...]] = {}

    def fresh(settings: PolicySettings) -> AntMan:
        safe.clear()
        policies.append(AntMan(settings))
        return policies[-1]

    def check(view: View, plan: Plan) -> None:
        for job_id, gpus in safe.items():
            if job_id in view.jobs and view.down.isdisjoint(gpus):
                assert plan.runs[job_id] == gpus
        safe.clear()
        shared = [gpus for gpus in plan.runs.values() if list(plan.runs.values()).count(gpus) == 2]
        for job_id, gpus in plan.runs.items():
            is_promoted = "promoted" in plan.notes.get(job_id, "")
            is_fresh = view.jobs[job_id].first_run_ns is None and view.jobs[job_id].job_class == GUARANTEED
            if is_promoted or (is_fresh and gpus not in shared and view.now_ns < CONVERT_NS):
                safe[job_id] = gpus

    check_on(case, fresh, check)
