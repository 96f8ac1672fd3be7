"""Back home, and what may come between: nodes that are lost, cells dealt anew, others who want the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.homing import bring_home
from gandiva_slurm.engine.moving import begin_move
from gandiva_slurm.engine.owners import owners_of
from gandiva_slurm.engine.placing import board_of, in_order, need_of
from gandiva_slurm.engine.planner import bar_of
from gandiva_slurm.engine.settings import EngineSettings
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Requeue
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy.classes import PATIENCE_NS
from gandiva_slurm.policy.placement import Board
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld, ruled

Owned = dict[str, dict[str, int]]
ONE_EACH: Owned = {"a": {"v100": 1}, "b": {"v100": 1}}
PATIENCE_S = PATIENCE_NS // SECOND_NS


def a_world(owned: Owned, nodes: dict[str, int], slots: int = 2) -> FakeWorld:
    """One in which jobs may be moved after a minute."""
    short = {"min_run_ns": 60 * SECOND_NS, "restart_cost_ns": SECOND_NS, "quantum_ns": 5 * SECOND_NS}
    return ruled(nodes, EngineSettings(virtual_clusters=owned, slots_per_gpu=slots, **short))


def park(world: FakeWorld, job_id: int, state: str = states.SUSPENDED) -> None:
    """Others have its GPUs from now on; `state` RUNNING: it has its turn."""
    for (_, key), proc in world.procs.items():
        if key.job_id == job_id:
            proc.state = state


def cycle_until(world: FakeWorld, is_so: Callable[[], bool]) -> None:
    """A minute at the most."""
    assert any(world.cycle() is None or is_so() for _ in range(60))


def places(world: FakeWorld, *jobs: int) -> list[dict[str, tuple[int, ...]]]:
    return [world.engine.jobs[job_id].places for job_id in jobs]


def test_a_gang_one_of_whose_nodes_is_gone_from_slurm_stays_where_it_is() -> None:
    world = a_world({"a": {"v100": 2}, "b": {"v100": 2}}, {f"n{n}": 1 for n in range(1, 5)})
    for user in ("user1", "user2", "user3"):
        world.submit(user, 2, span=2, vc="a")
    world.run(30)
    world.finish(2)
    world.rigid |= {1, 3}
    park(world, 3)
    assert places(world, 3) == [{"n3": (0,), "n4": (0,)}]
    del world.nodes["n4"]
    world.engine.handle([ev.NodeGone("n4")], world.now_ns)
    world.rigid.clear()
    world.run(PATIENCE_S + 60, dt_s=10)
    park(world, 3, states.RUNNING)
    world.run(30)
    assert world.engine.jobs[3].is_borrowing and not world.engine.jobs[3].travels.moved_ns


def test_what_is_kept_for_one_on_his_way_home_is_kept_as_his_own_there() -> None:
    """User3 has no second slot of a GPU of two: he is not given the one he is on his way to."""
    world = a_world(ONE_EACH, {"n1": 2})
    for user in ("user1", "user2", "user3"):
        world.submit(user, vc="a")
    world.run(30)
    world.submit("user1", vc="b")
    world.run(60)
    park(world, 3)
    world.rigid.add(3)
    world.turns_away = 4
    world.finish(1)
    world.finish(2)
    world.run(PATIENCE_S + 60, dt_s=10)
    world.rigid.clear()
    park(world, 3, states.RUNNING)
    cycle_until(world, lambda: world.state_of(3) == states.CHECKPOINTING)
    late = world.submit("user3", vc="a")
    world.run(30)
    assert places(world, 3, late) == [{"n1": (0,)}, {}]
    assert not world.engine.jobs[3].is_opportunistic and not world.engine.jobs[3].travels.failures


@pytest.mark.parametrize("job_class", ["guaranteed", "opportunistic"])
def test_a_slot_that_was_kept_is_his_also_when_it_is_the_last(job_class: str) -> None:
    """User1 is there with another job, or opportunistic: the last free slot he would not be given."""
    world = a_world({}, {"n1": 2}, slots=3)
    for user, kind in (("user1", "guaranteed"), ("user1", job_class), ("user2", "guaranteed")):
        world.submit(user, job_class=kind)
        world.run(3)
    world.submit("user3")
    world.run(90, dt_s=10)
    mover = next(n for n in (2, 1) if world.engine.jobs[n].places == {"n1": (1,)})
    assert len({*map(str, places(world, 1, 2))}) == 2
    world.turns_away = 2
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    begin_move(at, world.engine.jobs[mover], {"n1": (0,)}, ("it is better there",))
    for user in ("user2", "user3"):
        world.submit(user)
    world.run(30)
    assert places(world, mover) == [{"n1": (0,)}], world.engine.jobs[mover].told()


def test_a_job_whose_virtual_cluster_is_no_more_runs_on_where_it_is() -> None:
    """It would not be started again: nobody is to move it."""
    world = a_world(ONE_EACH, {"n1": 1, "n2": 1, "n3": 1}, slots=4)
    jobs = [world.submit(user, vc="a") for user in ("user1", "user2", "user3")]
    world.run(20)
    world.settings = replace(world.settings, virtual_clusters={"b": {"v100": 1}})
    world.restart_controller(keep_journal=True)
    actions = world.run(1800, dt_s=10)
    assert not any(isinstance(action, Requeue) for action in actions)
    assert places(world, *jobs) == [{"n1": (0,)}] * 3
    assert any("no virtual cluster a any more" in world.engine.jobs[n].travels.missed for n in jobs)


def test_one_on_the_move_whose_virtual_cluster_is_no_more_stays_where_it_is() -> None:
    world = a_world(ONE_EACH, {"n1": 2}, slots=4)
    jobs = [world.submit(user, vc="a") for user in ("user1", "user2", "user3")]
    world.run(20)
    at = Cycle(world.engine.state, world.settings, world.now_ns)
    begin_move(at, world.engine.jobs[jobs[0]], {"n1": (1,)}, ("it is better there",))
    world.settings = replace(world.settings, virtual_clusters={"b": {"v100": 1}})
    world.restart_controller(keep_journal=True)
    world.run(30)
    assert [world.state_of(n) for n in jobs] == [states.RUNNING] * 3


def test_a_place_kept_for_one_who_waits_is_given_up_when_it_is_dealt_to_others() -> None:
    world = a_world(ONE_EACH, {"n1": 2})
    job_id = world.submit("user1", vc="a")
    world.engine.handle([*world._news()], world.now_ns)
    world.engine.jobs[job_id].target = {"n1": (1,)}
    world.run(3)
    assert places(world, job_id) == [{"n1": (0,)}] and not world.engine.jobs[job_id].is_borrowing


def test_room_at_home_is_looked_for_once_for_all_who_ask_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = a_world(ONE_EACH, {"n1": 2, "n2": 8}, slots=4)
    for n in range(12):
        world.submit(f"user{n % 2 + 1}", vc="a")
    world.run(70, dt_s=10)
    state = world.engine.state
    tries: list[str] = []
    for record in state.jobs.values():
        if record.is_borrowing:
            record.since_ns, record.without_ns = world.now_ns, world.now_ns - PATIENCE_NS
    at = Cycle(state, world.settings, world.now_ns, owners=owners_of(state, world.settings))
    board = board_of(at, in_order(at, *states.PLACED), [])
    monkeypatch.setattr(Board, "best", lambda self, need, sites: tries.append(need.leaf.user))
    bring_home(at, board)
    assert sum(record.is_borrowing for record in state.jobs.values()) >= 8
    assert sorted(tries) == ["user1", "user2"]


def test_loads_are_of_the_tickets_that_users_have_in_each_virtual_cluster() -> None:
    """Two accounts share in `a`, each with one user there; what user3 of the second has in `b` is apart."""
    world = a_world(ONE_EACH, {"n1": 2})
    accounts = [Association(name, "", "root", 1) for name in ("optics", "radio")]
    where = {"user1": "optics", "user2": "radio", "user3": "radio"}
    users = [Association(account, user, "", 1) for user, account in where.items()]
    world.tree = (Association("root", "", "", 1), *accounts, *users)
    for (user, account), vc in zip(where.items(), "aab", strict=True):
        world.submit(user, vc=vc, account=account)
    world.run(3)
    state = world.engine.state
    at = Cycle(state, world.settings, world.now_ns, owners=owners_of(state, world.settings))
    board = board_of(at, in_order(at, *states.PLACED), [])
    assert board.load_of(need_of(state.jobs[1])) == board.load_of(need_of(state.jobs[2]))
    planned = {place.key.job_id: place.tickets for place in world.engine.plan_jobs("n1")}
    assert {n: board.tickets_of(r.leaf, r.vc) for n, r in state.jobs.items()} == planned


def test_who_waits_for_other_gpus_is_no_reason_to_give_ones_own_back() -> None:
    world = a_world({"a": {"v100": 2}, "b": {"v100": 1}}, {"n1": 3})
    world.settings = world.engine.settings = replace(world.settings, moves_per_hour=20)
    grows = world.submit("user1", 1, vc="a", elastic="1-2")
    world.run(200)
    assert places(world, grows) == [{"n1": (0, 1)}]
    others = [world.submit(user, vc="b") for user in ("user1", "user2", "user3")]
    world.run(3)
    assert world.code_of(others[2]) == "NoFreeSlots"
    comer = world.submit("user2", vc="a")
    cycle_until(world, lambda: world.code_of(grows) == "Shrinking")
    assert [line.split(" is on ")[0] for line in world.engine.jobs[grows].evidence] == [f"job {comer}"]


def test_an_opportunistic_job_that_is_parked_for_long_is_told_to_leave_in_its_turn() -> None:
    """One that takes turns with others has its next one soon: it may be told before."""
    world = a_world({"b": {"v100": 1}}, {"n1": 1})
    job_id = world.submit()
    world.run(70, dt_s=10)
    record = world.engine.jobs[job_id]

    def bar() -> str:
        return bar_of(Cycle(world.engine.state, world.settings, world.now_ns), record)

    park(world, job_id)
    world.run(PATIENCE_S - 20, dt_s=10)
    assert record.state == states.SUSPENDED and not bar()
    world.run(30, dt_s=10)
    assert bar().startswith("it is opportunistic and was parked long")
    park(world, job_id, states.RUNNING)
    world.run(10)
    assert not bar()
