"""Opportunistic jobs, live: they have what guaranteed ones leave, free of charge, and are promoted."""

from __future__ import annotations

import json
from dataclasses import replace

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.policy.packing.classes import MOST_PATIENCE_NS
from gandiva_slurm.slicing.central import CentralSettings, Domain
from gandiva_slurm.slicing.domains import Planned, whole_jobs
from gandiva_slurm.slicing.groups import SPARE
from gandiva_slurm.slicing.local import Gang, LocalStride
from gandiva_slurm.slicing.stride import STRIDE1
from tests.builders import SECOND_NS, TICKET, Slicer, a_gang
from tests.fake_world import FakeWorld


def spare(job_id: int, user: str, gpus: tuple[int, ...], tickets: int = 100 * TICKET) -> Gang:
    return replace(a_gang(job_id, user, gpus, tickets), is_opportunistic=True)


def slicer(gpus: int, *gangs: Gang) -> Slicer:
    node = Slicer(gpus)
    node.local.set_gangs(gangs)
    return node


def keys(*job_ids: int) -> tuple[JobKey, ...]:
    return tuple(JobKey(job_id, 0) for job_id in job_ids)


# the stride


def test_opportunistic_gangs_take_turns_on_what_guaranteed_ones_leave() -> None:
    """One guaranteed gang on GPU 0; however many tickets the others have, theirs is GPU 1."""
    node = slicer(
        2, a_gang(1, "ann", (0,), 1), spare(2, "dan", (0, 1)), spare(3, "ben", (1,)), spare(4, "cat", (1,))
    )
    node.run(40)
    assert node.by_job[1] == 40 * SECOND_NS and 2 not in node.by_job
    assert node.by_job[3] == node.by_job[4] == 20 * SECOND_NS


def test_what_is_held_as_opportunistic_costs_its_user_no_turn() -> None:
    node = slicer(2, a_gang(1, "ann", (0,)), a_gang(2, "ben", (0,)), spare(3, "ann", (1,)))
    node.run(40)
    assert (node.by_job[1], node.by_job[2], node.by_job[3]) == tuple(n * SECOND_NS for n in (20, 20, 40))
    assert node.local.passes(SPARE)[0] == {"ann": 40 * SECOND_NS * STRIDE1 // (100 * TICKET)}


def test_a_promoted_gang_takes_turns_with_the_others_at_once() -> None:
    node = slicer(1, a_gang(1, "ann", (0,)), spare(2, "ben", (0,)))
    node.run(10)
    assert node.by_user == {"ann": 10 * SECOND_NS}
    node.local.set_gangs([a_gang(1, "ann", (0,)), a_gang(2, "ben", (0,))])
    node.forget().run(20)
    assert node.by_user == {"ann": 10 * SECOND_NS, "ben": 10 * SECOND_NS}


def test_a_parks_bound_brings_an_opportunistic_gang_back_behind_guaranteed_overdue_ones() -> None:
    node = slicer(1, a_gang(1, "ann", (0,)), a_gang(2, "ben", (0,)), spare(3, "cat", (0,)))
    everybody = keys(1, 2, 3)
    assert node.local.choose(everybody, (), keys(3)) == keys(3)
    assert node.local.choose(everybody, (), keys(2, 3)) == keys(2)
    assert node.local.choose(everybody, keys(3), keys(1)) == keys(3)


def test_a_guaranteed_host_pays_all_of_its_gpu_and_its_guest_half() -> None:
    host, guest = replace(a_gang(1, "ann", (0,)), mate=2), replace(spare(2, "ben", (0,)), mate=1)
    other = a_gang(3, "cat", (0,))
    local = LocalStride(1, SECOND_NS)
    local.set_gangs([host, guest, other])
    assert set(local.choose(keys(1, 2, 3), (), ())) == set(keys(1, 2)), "the guest comes with its host"
    for key in keys(1, 2):
        local.charge(key, SECOND_NS, 0, is_shared=True)
    a_second = SECOND_NS * STRIDE1 // (100 * TICKET)
    assert local.passes()[0] == {"ann": a_second, "cat": 0}
    assert local.passes(SPARE)[0] == {"ben": a_second // 2}
    assert local.choose(keys(1, 2, 3), (), ()) == keys(3), "and not without him"


def test_its_state_is_read_again_and_that_of_a_gandivad_without_classes() -> None:
    node = slicer(2, a_gang(1, "ann", (0,)), spare(2, "ben", (0,)), spare(3, "cat", (1,)))
    data = json.loads(json.dumps(node.run(7).local.to_json()))
    assert LocalStride.from_json(data).to_json() == data
    former = {name: value for name, value in data.items() if name != "spare"}
    former["gangs"] = [row[:6] for row in data["gangs"]]
    again = LocalStride.from_json(former)
    assert not any(gang.is_opportunistic for gang in again.gangs)
    again.set_gangs(node.local.gangs)
    assert again.choose(keys(1, 2, 3), (), ()) == keys(1, 3)


def test_an_opportunistic_span_comes_on_where_no_guaranteed_job_runs() -> None:
    domain = Domain(CentralSettings(SECOND_NS, 0))
    both = (("n1", (0,)), ("n2", (0,)))
    jobs = [Planned(JobKey(1, 0), "ann", TICKET, 1, both, True), Planned(JobKey(2, 0), "ben", 1, 2, both)]
    for planned, want in ((jobs, keys(2)), (jobs[:1], keys(1))):
        domain.follow({"n1": 1, "n2": 1}, {job.key: job for job in planned})
        domain._set_gangs()
        assert domain.stride.choose(keys(1, 2), (), ()) == want


# the engine


def test_tickets_are_divided_among_the_jobs_of_a_class() -> None:
    world = FakeWorld({"n1": 3})
    for job_class in ("guaranteed", "opportunistic", "opportunistic"):
        world.submit("user1", job_class=job_class)
    world.run(5)
    plan = world.engine.plan_jobs("n1")
    found = {place.key.job_id: (place.tickets // TICKET, place.is_opportunistic) for place in plan}
    assert found == {1: (100, False), 2: (50, True), 3: (50, True)}
    whole = whole_jobs({"n1": plan})
    assert [job.is_opportunistic for _, job in sorted(whole.items())] == [False, True, True]


def test_one_that_its_owner_holds_does_not_wait_for_gpus() -> None:
    world = FakeWorld({"n1": 1})
    world.submit("user1", job_class="opportunistic", user_hold=True)
    world.run(2 * MOST_PATIENCE_NS // SECOND_NS, dt_s=60)
    assert world.code_of(1) == "HeldByUser" and world.engine.jobs[1].is_opportunistic
