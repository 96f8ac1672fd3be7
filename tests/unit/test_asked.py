"""A policy is asked when something has changed, and not else."""

from __future__ import annotations

from dataclasses import replace

from gandiva_slurm.engine.apply.asked import asked, fingerprint
from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.policy.learnt import Learnt
from gandiva_slurm.policy.port import Cluster, JobView, Plan, Policy, View
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld
from tests.led_world import Slow

QUANTUM_NS = 10 * SECOND_NS


def test_it_is_asked_when_something_has_changed_and_not_else() -> None:
    made: list[Slow] = []

    def first_two(view: View) -> Plan:
        return Plan({job_id: (n,) for n, job_id in enumerate([*view.jobs][:2])})

    def make() -> Policy:
        made.append(Slow(first_two))
        return made[-1]

    def asked_during(cycles: int) -> int:
        before = made[-1].asked
        world.run(cycles)
        return made[-1].asked - before

    world = FakeWorld({"a": 2}, EngineSettings(QUANTUM_NS), make_policy=make)
    jobs = [world.submit() for _ in range(2)]
    world.run(6)
    assert world.engine.state.on == {*jobs} and asked_during(20) == 0
    third = world.submit()
    assert asked_during(5) == 1, "a job came"
    world.requeue(jobs[0])
    assert asked_during(30) >= 1 and world.engine.state.on == {*jobs}, "a job lost its GPUs"
    world.down.add("a")
    assert asked_during(2) >= 1, "a node went"
    world.down.clear()
    world.run(40)
    world.finish(jobs[1])
    assert asked_during(5) == 1 and third in world.engine.state.on, "a job ended"


def test_it_is_asked_again_when_a_move_it_planned_has_failed() -> None:
    place, made = [0], list[Slow]()

    def there(view: View) -> Plan:
        return Plan({min(view.jobs): (place[0],)})

    def make() -> Policy:
        made.append(Slow(there))
        return made[-1]

    world = FakeWorld(
        {"a": 1, "b": 1}, EngineSettings(QUANTUM_NS, move_deadline_ns=9 * SECOND_NS), make_policy=make
    )
    job = world.submit()
    world.run(5)
    place[0] = 1
    world.saves_badly.add(job)
    world.submit()
    world.run(1)
    before = made[-1].asked
    world.run(30)
    failed = [line.code for line in world.engine.jobs[job].story if line.code == "MoveFailed"]
    assert failed and made[-1].asked > before


def test_it_is_asked_about_other_nodes_at_once() -> None:
    made: list[Slow] = []

    def all_that_fit(view: View) -> Plan:
        gpus = [gpu for gpu in range(view.cluster.size) if gpu not in view.down]
        return Plan({job_id: (gpus[n],) for n, job_id in enumerate([*view.jobs][: len(gpus)])})

    def make() -> Policy:
        made.append(Slow(all_that_fit))
        return made[-1]

    world = FakeWorld({"a": 1}, EngineSettings(QUANTUM_NS), make_policy=make)
    jobs = [world.submit() for _ in range(2)]
    world.run(5)
    assert world.engine.state.on == {jobs[0]}
    world.nodes["a"] = 2
    world.run(5)
    assert world.engine.state.on == {*jobs} and made[-1].asked


def test_it_is_asked_when_two_cannot_be_packed_any_more_and_when_one_can_be_moved() -> None:
    view = View(0, Cluster([("v100", 2)]), {1: a_view_of(1, (0,), False)}, Learnt())
    was = asked(view, fingerprint(view), Plan({1: (0,)}))
    assert was.holds(view, fingerprint(view))
    moved = replace(view, jobs={1: a_view_of(1, (0,), True)})
    assert not was.holds(moved, fingerprint(moved))
    rates = Learnt()
    rates.forbid("m", "n", "v100")
    barred = replace(view, rates=rates)
    assert fingerprint(barred) != fingerprint(view)


def test_one_that_has_come_where_it_was_planned_is_no_news() -> None:
    view = View(0, Cluster([("v100", 2)]), {1: a_view_of(1, (0,), True)}, Learnt())
    was = asked(view, fingerprint(view), Plan({1: (1,)}))
    for can_migrate in (False, True):
        there = replace(view, jobs={1: a_view_of(1, (1,), can_migrate)})
        assert was.holds(there, fingerprint(there))
    back = replace(view, jobs={1: a_view_of(1, (0,), False)})
    assert not was.holds(back, fingerprint(back)), "it is not moved"
    gone = replace(view, jobs={1: a_view_of(1, (), True)})
    assert not was.holds(gone, fingerprint(gone))
    assert asked(view, "", Plan({})).holds(gone, ""), "it has made way, as was planned"


def a_view_of(job_id: int, gpus: tuple[int, ...], can_migrate: bool) -> JobView:
    return JobView(job_id, "u", 1, 0, gpus=gpus, can_migrate=can_migrate)
