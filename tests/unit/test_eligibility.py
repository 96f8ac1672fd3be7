"""Where a job may come to, and where one that cannot be saved is to live."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.placement.eligibility import Eligibility
from gandiva_slurm.policy.placement.homes import Homes
from gandiva_slurm.policy.port import Cluster, JobView, PolicySettings, View
from tests.fake_world import FakeWorld
from tests.policy_world import SETTINGS, FixedRates, S, a_job, a_view

TWO_NODES = (("v100", 2), ("v100", 2))


def stays(job_id: int, gpus: tuple[int, ...], memory_mib: int = 0) -> JobView:
    """A parked job that cannot be saved."""
    job = a_job(job_id, len(gpus), can_migrate=False, memory_mib=memory_mib)
    job.gpus, job.first_run_ns = gpus, 0
    return job


def view_of(jobs: list[JobView], slots: int = 0, memory_mib: int = 0) -> View:
    """Two nodes of two GPUs."""
    cluster = Cluster(TWO_NODES, memory_mib=[memory_mib] * 2)
    return View(0, cluster, {job.job_id: job for job in jobs}, FixedRates(), slots=slots)


def test_nodes_that_a_job_may_not_use_are_barred() -> None:
    job = a_job(1, hosts=frozenset({1}))
    assert Eligibility(view_of([job])).barred(job) == {0, 1}


def test_a_gpu_is_full_where_its_slots_are_taken_by_jobs_that_stay() -> None:
    comer = a_job(9, user="v")
    parked = a_job(3)
    parked.gpus = (1,)
    full = [stays(1, (0,)), stays(2, (0, 1)), parked, comer]
    assert Eligibility(view_of(full, slots=2)).barred(comer) == {0}, "job 3 on GPU 1 can be saved"
    assert Eligibility(view_of(full, slots=3)).barred(comer) == frozenset()
    assert Eligibility(view_of(full)).barred(comer) == frozenset(), "any number"


def test_the_last_slot_is_for_a_user_who_has_no_job_there_that_stays() -> None:
    here = [stays(1, (0,)), stays(2, (0,)), stays(3, (1,))]
    mine, moved, others = a_job(7), a_job(8, migrations=1), a_job(9, user="v")
    eligibility = Eligibility(view_of([*here, mine, moved, others], slots=3))
    assert eligibility.barred(mine) == {0}
    assert eligibility.barred(moved) == frozenset(), "it will make way, as it did before"
    assert eligibility.barred(others) == frozenset()


def test_one_that_has_not_begun_holds_its_slot_as_one_that_stays_does() -> None:
    """It can be moved until it begins; then it may be there for good."""
    jobs = [lives(number, 0, "ann") for number in (1, 2, 3)]
    newcomer = JobView(9, "ann", 1, 9)
    for job in jobs:
        job.is_untouched = True
    assert Eligibility(view_of([*jobs, newcomer], slots=4)).barred(newcomer) == {0}
    other = JobView(10, "ben", 1, 9)
    assert 0 not in Eligibility(view_of([*jobs, other], slots=4)).barred(other)
    for job in jobs:
        job.is_untouched = False
    assert not Eligibility(view_of([*jobs, newcomer], slots=4)).barred(newcomer)


def test_homes_of_one_question_leave_the_last_slot_to_others() -> None:
    """Whether a job can be saved is known when it has moved once."""
    jobs = [*(a_job(n) for n in range(1, 10)), a_job(10, user="v")]
    view = view_of(jobs, slots=2)
    homes = Homes(view, Speeds(1.0), Eligibility(view, stay=True), stay=True)
    assert [job.job_id for job in jobs if homes.of(job, set())] == [1, 2, 3, 4, 10]


def lives(job_id: int, gpu: int, user: str, can_migrate: bool = True) -> JobView:
    """A parked job on one GPU."""
    job = a_job(job_id, user=user, can_migrate=can_migrate)
    job.gpus, job.first_run_ns = (gpu,), 0
    return job


def test_of_a_user_who_has_several_on_a_gpu_one_makes_way_for_a_user_who_has_none() -> None:
    several = [lives(1, 0, "u"), lives(2, 0, "u")]
    unsaved = [lives(3, 1, "u"), lives(4, 1, "u", can_migrate=False)]
    mixed = [lives(5, 2, "u"), lives(6, 2, "v")]
    two = [lives(7, 3, "v"), lives(8, 3, "v")]
    comer, other = a_job(9, user="v"), a_job(10, user="w")
    eligibility = Eligibility(view_of([*several, *unsaved, *mixed, *two, comer, other], slots=2), stay=True)
    assert eligibility.barred(comer) == {0, 1, 2, 3}
    assert eligibility.barred(comer, displaces=True) == {1, 2, 3}, "on GPU 3 all are of its own user"
    assert eligibility.barred(other, displaces=True) == {1, 2}
    eligibility.take(comer, (0,))
    assert eligibility.barred(other, displaces=True) == {0, 1, 2}, "one of two has made way"


def test_others_make_way_for_as_much_as_is_due_to_a_user_one_job_at_a_time() -> None:
    flood = [lives(n, n % 4, "u") for n in range(8)]
    comers = [a_job(n, user="v") for n in (8, 9)]
    view = view_of([*flood, *comers], slots=2)

    def homes_of(part: float) -> list[int]:
        homes = Homes(view, Speeds(1.0, {"v": part}), Eligibility(view, stay=True), stay=True)
        return [job.job_id for job in comers if homes.of(job, set())]

    assert homes_of(0.25) == [8]
    comers[0].gpus, comers[0].first_run_ns = (0,), 0
    del view.jobs[0]
    assert homes_of(0.25) == [8, 9], "four GPUs, of which half is due to its user"
    assert homes_of(0.125) == [8], "a quarter is due, and lives"


def test_a_user_does_not_fill_a_cluster_with_jobs_that_stay() -> None:
    """Each of two users has half of the GPU time, though the first has come with a hundred jobs."""
    told = PolicySettings(S, restart_ns=S)
    world = FakeWorld({"a": 2}, EngineSettings(S), make_policy=lambda: gandiva_fair.make(told))
    for _ in range(100):
        world.rigid.add(world.submit("user1"))
    world.run(60)
    late = world.submit("user2", gpus=2)
    world.rigid.add(late)
    world.run(120)
    assert world.engine.jobs[late].held_ns == pytest.approx(120 * S, rel=0.1)


@pytest.mark.parametrize(("slots", "restart_s"), [(2, 0), (4, 0), (2, 1), (4, 1)])
@pytest.mark.parametrize("vcs", [{}, {"v": {"v100": 1}}])
def test_a_job_has_turns_on_its_own_gpu_whoever_lives_there(
    slots: int, restart_s: int, vcs: dict[str, dict[str, int]]
) -> None:
    """One that could be saved, beside jobs of its user that cannot: as much as each of these."""
    told = PolicySettings(S, restart_ns=restart_s * S)
    settings = EngineSettings(S, slots, virtual_clusters=vcs)
    world = FakeWorld({"a": 1}, settings, make_policy=lambda: gandiva_fair.make(told))
    jobs = [world.submit("user1", vc="v" if vcs else "") for _ in range(slots)]
    world.rigid.update(jobs)
    world.run(30)
    world.rigid.discard(jobs[0])
    before = [world.engine.jobs[job].held_ns for job in jobs]
    world.run(60 * slots)
    held_s = [(world.engine.jobs[job].held_ns - was) / S for job, was in zip(jobs, before, strict=True)]
    assert held_s == pytest.approx([60] * slots, abs=25), held_s


def test_a_node_is_full_where_its_memory_is_taken_by_jobs_that_stay() -> None:
    small, large = a_job(8, memory_mib=40), a_job(9, memory_mib=41)
    eligibility = Eligibility(view_of([stays(1, (0,), 60), small, large], memory_mib=100))
    assert eligibility.barred(small) == frozenset() and eligibility.barred(large) == {0, 1}


def test_a_job_that_stays_is_barred_from_nothing() -> None:
    job = stays(1, (0,))
    assert Eligibility(view_of([job, stays(2, (0,))], slots=1)).barred(job) == frozenset()


def test_a_job_that_will_stay_goes_where_it_is_alone_before_it_shares() -> None:
    jobs = [stays(1, (0,)), stays(2, (1,)), stays(3, (2,)), a_job(4, can_migrate=False)]
    plan = gandiva_fair.make(SETTINGS).decide(view_of(jobs))
    assert plan.runs[4] == (3,)


class Speeds:
    """What a fast GPU and a slow one are worth; the same is due to all users, or what is said."""

    def __init__(self, slow: float, parts: Mapping[str, float] | None = None) -> None:
        self._slow, self._parts = slow, parts or {}

    def part(self, job: JobView) -> float:
        return self._parts.get(job.user, 0.1)

    def worth(self, job: JobView) -> dict[str, float]:
        return {"fast": 1.0, "slow": self._slow, "v100": 1.0}


@pytest.mark.parametrize(("slow", "gpu"), [(0.2, 0), (0.3, 1)])
def test_a_job_that_will_stay_shares_a_fast_gpu_rather_than_live_on_one_much_slower(
    slow: float, gpu: int
) -> None:
    job = a_job(2, can_migrate=False)
    view = a_view((("fast", 1), ("slow", 1)), [stays(1, (0,)), job])
    homes = Homes(view, Speeds(slow), Eligibility(view))
    assert homes.of(job, set()) == homes.of(job, set()) == (gpu,)


def test_a_job_that_will_stay_goes_where_least_is_due_to_those_it_meets() -> None:
    """Two light jobs leave it more of the time than a heavy one; a gang's part is spread over its GPUs."""
    parts = {"heavy": 0.4, "light": 0.1}
    living = [stays(1, (0,)), stays(2, (1,)), stays(3, (1,)), stays(4, (2, 3))]
    for job, user in zip(living, ("heavy", "light", "light", "heavy"), strict=True):
        job.user = user
    comers = [a_job(number, user="light") for number in (5, 6, 7)]
    view = a_view((("v100", 4),), [*living, *comers])
    for stay in (False, True):
        for comer in comers:
            comer.can_migrate = stay
        homes = Homes(view, Speeds(1.0, parts), Eligibility(view, stay), stay)
        assert [homes.of(comer, set()) for comer in comers] == [(1,), (2,), (3,)]


def test_jobs_that_come_together_do_not_meet_each_other() -> None:
    jobs = [a_job(number, can_migrate=False) for number in range(4)]
    view = a_view((("fast", 2), ("slow", 2)), jobs)
    homes = Homes(view, Speeds(0.5), Eligibility(view))
    assert [homes.of(job, set()) for job in jobs] == [(0,), (1,), (2,), (3,)]
    gang = a_job(9, 3, can_migrate=False)
    assert homes.of(gang, set()) == (), "no node is large enough: it is seated as any other"


def test_homes_of_gangs_are_the_same_gpus_or_have_none_in_common() -> None:
    view = a_view((("v100", 4),), [stays(1, (2,))])
    homes = Homes(view, Speeds(1.0), Eligibility(view))
    gangs = [a_job(number, 2, can_migrate=False) for number in (2, 3, 4)]
    assert [homes.of(gang, set()) for gang in gangs] == [(0, 1), (0, 1), (2, 3)]


def test_who_lives_nowhere_has_a_home_where_nobody_must_leave() -> None:
    here, comer = stays(1, (0,)), a_job(2)
    here.can_migrate = True
    view = view_of([here, comer], slots=1)
    assert Homes(view, Speeds(1.0), Eligibility(view, stay=True), stay=True).of(comer, {1, 2}) == (3,)
    assert Homes(view, Speeds(1.0), Eligibility(view)).of(comer, set()) == ()


def test_homes_of_one_question_leave_room_for_each_other() -> None:
    """A node of 100 MiB on which two live: a third fits in, a fourth does not."""
    view = a_view((("v100", 2),), [stays(n, (n,), 30) for n in (0, 1)])
    view.cluster = Cluster((("v100", 2),), memory_mib=[100])
    homes = Homes(view, Speeds(1.0), Eligibility(view, stay=True), stay=True)
    assert [homes.of(a_job(n, memory_mib=30), set()) for n in (2, 3)] == [(0,), ()]


def test_a_job_of_several_nodes_finds_a_home_on_as_many_of_one_type() -> None:
    """On nodes where it meets fewest; the fast one alone is not enough."""
    view = a_view((("fast", 2), ("slow", 2), ("slow", 2), ("slow", 2)), [stays(1, (2,)), stays(2, (3,))])
    homes = Homes(view, Speeds(0.1), Eligibility(view, stay=True), stay=True)
    assert homes.of(a_job(3, 4, nodes=2), set()) == (4, 5, 6, 7)
    assert homes.of(a_job(4, 8, nodes=4), set()) == ()
    assert homes.of(a_job(5, 2, nodes=2), {4, 5}) == (2, 6), "closed GPUs are none of it"
    whole = Homes(view, Speeds(0.1), Eligibility(view))
    assert whole.of(a_job(6, 4, nodes=2, can_migrate=False), set()) == (), "it is seated as any other"


@pytest.mark.parametrize("restart_s", [0, 10])
def test_a_job_of_two_nodes_has_its_turns_beside_jobs_that_cannot_leave(restart_s: int) -> None:
    """Those picked with it both live on one of its nodes: it goes first, and nothing is left idle."""
    policy = gandiva_fair.make(PolicySettings(60 * S, restart_ns=restart_s * S))
    jobs = {n: stays(n, (n,)) for n in range(4)}
    jobs[9] = a_job(9, 2, user="other", nodes=2)
    for job in jobs.values():
        job.gpu_types = ("v100",)
    seen = []
    for at_s in range(60, 1260, 60):
        runs = policy.decide(a_view((*TWO_NODES, ("k80", 2)), jobs.values(), at_s)).runs
        assert sorted(gpu for gpus in runs.values() for gpu in gpus) == [0, 1, 2, 3]
        seen.append(9 in runs)
        for job_id, job in jobs.items():
            job.gpus, job.is_running = runs.get(job_id, job.gpus), job_id in runs
            job.held_ns += 60 * S * len(job.gpus) if job_id in runs else 0
    assert seen.count(True) >= 9, "it asks for half of the GPUs, and has all of that"


def test_of_two_that_live_on_one_gpu_the_one_behind_has_it() -> None:
    jobs = [stays(1, (0,)), stays(2, (0,))]
    policy, seen = gandiva_fair.make(SETTINGS), []
    for at_s in range(0, 300, 60):
        runs = policy.decide(a_view((("v100", 2),), jobs, at_s)).runs
        seen += runs
        for job in jobs:
            job.is_running = job.job_id in runs
            job.held_ns += 60 * S * job.is_running
    assert seen == [1, 2, 1, 2, 1]


def test_what_was_held_before_the_first_question_is_not_charged() -> None:
    jobs = [stays(1, (0,)), stays(2, (0,))]
    jobs[0].held_ns, jobs[1].held_ns = 3600 * S, 0
    policy = gandiva_fair.make(SETTINGS)
    assert policy.decide(a_view((("v100", 1),), jobs)).runs == {1: (0,)}
    assert set(policy.passes().values()) == {0}


def test_of_two_guests_of_a_model_the_one_comes_that_there_is_room_for() -> None:
    rates = FixedRates(packed={("a", "b"): (0.9, 0.9)})
    host = a_job(1, model="a", memory_mib=60)
    host.gpus, host.is_running = (0,), True
    large, small = a_job(2, model="b", at_s=1, memory_mib=60), a_job(3, model="b", at_s=2, memory_mib=40)
    host.can_migrate = False
    jobs = {job.job_id: job for job in (host, large, small)}
    view = View(S, Cluster((("v100", 1),), memory_mib=[100]), jobs, rates)
    assert gandiva_fair.make(SETTINGS).decide(view).runs == {1: (0,), 3: (0,)}


def test_jobs_that_stay_are_packed_where_they_are_and_nowhere_else() -> None:
    rates = FixedRates(packed={("a", "a"): (0.9, 0.9), ("a", "b"): (0.9, 0.9)})
    jobs = [stays(1, (0,)), stays(2, (0,)), stays(3, (1,)), stays(4, (1,))]
    for job in jobs:
        job.model = "a" if job.job_id % 2 else "b"
    plan = gandiva_fair.make(SETTINGS).decide(a_view((("v100", 2),), jobs, rates=rates))
    assert plan.runs == {1: (0,), 2: (0,), 3: (1,), 4: (1,)}
    jobs[1].can_pack, jobs[1].gpus = False, (1,)
    plan = gandiva_fair.make(SETTINGS).decide(a_view((("v100", 2),), jobs[:3], rates=rates))
    assert plan.runs == {1: (0,), 2: (1,)}, "job 3 lives on GPU 1, and not beside job 1"


def test_a_guest_comes_to_no_node_that_it_may_not_use() -> None:
    rates = FixedRates(packed={("a", "b"): (0.9, 0.9)})
    hosts = [a_job(1, model="a"), a_job(2, model="a")]
    for host, gpu in zip(hosts, (0, 1), strict=True):
        host.gpus, host.is_running = (gpu,), True
    guest = a_job(3, model="b", at_s=1, hosts=frozenset({1}))
    plan = gandiva_fair.make(SETTINGS).decide(a_view((("v100", 1), ("v100", 1)), [*hosts, guest], 1, rates))
    assert plan.runs == {1: (0,), 2: (1,), 3: (1,)}


def test_a_job_is_seated_among_the_nodes_it_may_use_and_others_make_way() -> None:
    choosy, easy = a_job(2, hosts=frozenset({0})), [a_job(1, 2), a_job(3)]
    plan = gandiva_fair.make(SETTINGS).decide(a_view(TWO_NODES, [easy[0], choosy, easy[1]]))
    assert plan.runs[2] in {(0,), (1,)} and plan.runs[1] == (2, 3) and len(plan.runs) == 3
