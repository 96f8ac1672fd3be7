"""A policy that decides goes on after a restart as if there had been none; a slow one is left alone."""

from __future__ import annotations

import json
import re

import pytest

from gandiva_slurm.controller import recorder
from gandiva_slurm.engine.apply.decider import REST_NS, Decider, Leader, TooSlow
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.lifecycle import promotion
from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model.event import ClassAsked
from gandiva_slurm.policy import gandiva_fair, gandiva_market
from gandiva_slurm.policy.gandiva_fair import GandivaFair
from gandiva_slurm.policy.packing.classes import PATIENCE_NS
from gandiva_slurm.policy.port import OPPORTUNISTIC, Plan, Policy, PolicySettings, View
from gandiva_slurm.slicing.turns import Turns
from tests.builders import SECOND_NS
from tests.fake_world import FakeWorld
from tests.led_world import Slow
from tests.tape import Tape

QUANTUM_NS = 10 * SECOND_NS
TOLD = PolicySettings(QUANTUM_NS)


def busy(count: int = 5) -> FakeWorld:
    """One node of two GPUs under gandiva_fair, and more jobs than it has GPUs."""
    world = FakeWorld({"a": 2}, EngineSettings(QUANTUM_NS), make_policy=lambda: gandiva_fair.make(TOLD))
    for n in range(count):
        world.submit(f"user{n % 3 + 1}", 1)
    world.run(37)
    return world


def policy_of(world: FakeWorld) -> GandivaFair:
    decider = decider_of(world.engine)
    assert isinstance(decider.policy, GandivaFair)
    return decider.policy


def decider_of(engine: Engine) -> Decider:
    assert engine.decider is not None
    return engine.decider


def test_what_a_policy_knows_goes_on_after_a_restart() -> None:
    world, other = busy(), busy()
    before = policy_of(world).passes()
    assert len({*before.values()}) > 1
    world.restart_controller(keep_journal=True)
    world.cycle(dt_s=0.001)
    other.cycle(dt_s=0.001)
    assert policy_of(world).passes() == policy_of(other).passes()
    for _ in range(60):
        world.cycle()
        other.cycle()
        assert world.engine.state.on == other.engine.state.on
    assert decider_of(world.engine).memory_fault == ""


def test_what_users_used_before_counts_after_a_restart_too() -> None:
    told = PolicySettings(QUANTUM_NS, half_life_ns=600 * SECOND_NS)
    world = FakeWorld({"a": 2}, EngineSettings(QUANTUM_NS), make_policy=lambda: gandiva_fair.make(told))
    for _ in range(3):
        world.submit("user1", 1)
    world.run(300)
    world.submit("user2", 1)
    world.run(3)
    before = decider_of(world.engine).of_users()
    assert before["user1"].fair_share < 0.85 and before["user2"].fair_share == 1
    world.restart_controller(keep_journal=True)
    world.cycle(dt_s=0.001)
    after = decider_of(world.engine).of_users()
    assert after["user1"].fair_share == pytest.approx(before["user1"].fair_share, abs=0.02)


def test_what_users_traded_is_kept_over_a_restart() -> None:
    """Three users to whom a V100 is worth 1.2, 2 and 5 K80s."""
    world = FakeWorld(
        {"a": 2, "b": 4}, EngineSettings(QUANTUM_NS), make_policy=lambda: gandiva_market.make(TOLD)
    )
    world.types["b"] = "k80"
    for n in range(9):
        job_id = world.submit(f"user{n % 3 + 1}", 1)
        world.own_rates[job_id] = {"v100": (1.2, 2, 5)[n % 3], "k80": 1}
    world.run(400)
    before = decider_of(world.engine).of_users()
    assert before["user3"].traded_in["v100"] > 20 and before["user3"].traded_out["k80"] > 20
    world.restart_controller(keep_journal=True)
    world.cycle(dt_s=0.001)
    after = decider_of(world.engine).of_users()
    for user, told in before.items():
        assert after[user].traded_in == pytest.approx(told.traded_in, abs=0.1)
        assert after[user].traded_out == pytest.approx(told.traded_out, abs=0.1)
    (line, *_) = decider_of(world.engine).explain(3, world.now_ns)
    assert line.startswith("trade: user1 gives user3")


def test_a_frame_before_the_first_cycle_has_what_was_known_too() -> None:
    world = busy()
    first = json.loads(json.dumps(world.engine.to_json()))
    leader = decider_of(world.engine).leader
    again = Engine.from_json(world.settings, first, leader)
    assert json.loads(json.dumps(again.to_json())) == first


@pytest.mark.parametrize("change", ["told", "nodes", "bytes", "form", "asked"])
def test_where_something_is_not_as_it_was_it_begins_anew(change: str) -> None:
    world = busy()
    data = json.loads(json.dumps(world.engine.to_json()))
    leader = decider_of(world.engine).leader
    if change == "told":
        leader = Leader(leader.make, {"policy": "of another test"})
    elif change == "bytes":
        data["policy"]["knows"] = "AAAA"
    elif change == "form":
        data["policy"] = {"form": 0}
    elif change == "asked":
        data["policy"]["asked"] = {"seen": ""}
    else:
        world.nodes["b"] = 1
    world.engine = Engine.from_json(world.settings, data, leader)
    world.fresh = True
    world.cycle(dt_s=0.001)
    assert {*policy_of(world).passes().values()} <= {0}
    assert bool(decider_of(world.engine).memory_fault) == (change in ("bytes", "asked"))
    world.run(30)
    assert world.engine.state.on


class Grows:
    """A policy that in a later release asks for what the earlier one did not keep."""

    name = "grows"
    is_later = False

    def __init__(self) -> None:
        self.asked = 0
        if self.is_later:
            self.more = 1

    def decide(self, view: View) -> Plan:
        self.asked += self.more if self.is_later else 1
        return all_run(view)


def test_what_another_release_knew_is_no_trouble_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeWorld({"a": 2}, EngineSettings(QUANTUM_NS), make_policy=Grows)
    world.submit()
    world.run(5)
    world.restart_controller(keep_journal=True)
    world.run(2)
    policy = decider_of(world.engine).policy
    assert isinstance(policy, Grows) and policy.asked == 7
    monkeypatch.setattr(Grows, "is_later", True)
    world.restart_controller(keep_journal=True)
    world.run(1)
    policy = decider_of(world.engine).policy
    assert isinstance(policy, Grows) and policy.asked == 1
    assert decider_of(world.engine).fault == "" and world.engine.state.on


def all_run(view: View) -> Plan:
    return Plan({job_id: (n,) for n, job_id in enumerate(view.jobs)}, view.now_ns + SECOND_NS)


class Fails:
    """Fails at its third question, and at each fifth after it."""

    name = "fails"

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, view: View) -> Plan:
        self.asked += 1
        if self.asked % 5 == 3:
            raise ValueError("now and then")
        return Plan(dict.fromkeys([*view.jobs][:1], (0,)), view.now_ns + 1)


def test_a_recording_in_segments_has_a_failing_policy_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LONGEST_NS", 7 * SECOND_NS)
    world = FakeWorld({"a": 1}, EngineSettings(QUANTUM_NS), make_policy=Fails)
    leader = decider_of(world.engine).leader
    tape = Tape(lambda told: Leader(Fails, leader.told))
    world.handle = tape.handle
    for _ in range(12):
        job = world.submit()
        world.run(4)
        world.finish(job)
        world.run(2)
    assert tape.replay().first is None


def never(view: View) -> Plan:
    raise TooSlow("took more than it may")


def test_a_slow_policy_is_left_alone_for_a_while_and_begins_anew() -> None:
    made: list[Slow] = []

    def make() -> Policy:
        made.append(Slow(all_run))
        return made[-1]

    world = FakeWorld({"a": 2}, EngineSettings(QUANTUM_NS), make_policy=make)
    job = world.submit()
    world.run(5)
    assert world.engine.state.on == {job}
    count, slow = len(made), made[-1]
    slow.plan, slow.asked = never, 0
    world.run(3)
    assert len(made) == count + 1 and slow.asked == 1 and made[-1].asked == 0, "it is not asked meanwhile"
    assert world.engine.state.on == {job}, "what held its GPUs goes on"
    assert (
        decider_of(world.engine).fault == "policy slow took more than it may; it begins anew 60 s after that"
    )
    world.run(REST_NS // SECOND_NS)
    assert made[-1].asked and decider_of(world.engine).fault == ""
    assert world.engine.state.on == {job}


def test_one_that_cannot_be_made_again_rests_all_the_same() -> None:
    made: list[Slow] = []

    def make() -> Policy:
        if len(made) == 2:
            raise ValueError("not again")
        made.append(Slow(never))
        return made[-1]

    world = FakeWorld({"a": 2}, EngineSettings(QUANTUM_NS), make_policy=make)
    world.submit()
    world.run(10)
    assert made[-1].asked == 1
    decider = decider_of(world.engine)
    assert decider.fault.startswith("policy slow took more than it may")
    assert decider.memory_fault == "policy slow cannot be made again: ValueError: not again"


def test_a_recording_of_a_slow_policy_is_decided_again() -> None:
    """Told again, the policy answers at once; that it did not then is part of what was recorded."""
    slow_at, now = [0], [0]

    def plan(view: View) -> Plan:
        now[0] += 1
        if now[0] in slow_at:
            raise TooSlow("took more than it may")
        return all_run(view)

    def make() -> Policy:
        return Slow(plan)

    world = FakeWorld({"a": 4}, EngineSettings(QUANTUM_NS), make_policy=make)
    leader = decider_of(world.engine).leader
    tape = Tape(lambda told: Leader(lambda: Slow(all_run), leader.told))
    world.handle = tape.handle
    world.run(5)
    world.submit()
    world.run(5)
    slow_at.append(now[0] + 1)
    world.run(1)
    assert decider_of(world.engine).was_late
    world.submit()
    world.run(10)
    assert len(world.engine.state.on) == 1, "it came while the policy rested"
    world.run(70)
    assert len(world.engine.state.on) == 2
    tally = tape.replay()
    assert tally.first is None and tally.equal >= 2
    slow_at[:] = []
    tape = Tape(lambda told: Leader(lambda: Slow(lambda view: Plan({})), leader.told))
    world.handle = tape.handle
    world.submit()
    world.run(5)
    assert tape.replay().first is not None, "another policy answers otherwise"


def said_of(world: FakeWorld, job_id: int) -> list[str]:
    return decider_of(world.engine).explain(job_id, world.now_ns)


def test_a_policy_says_where_a_job_stands() -> None:
    world = busy()
    users = {n: said_of(world, n)[0] for n in (1, 2, 3)}
    assert sum(line.startswith("of 3 users none goes before user") for line in users.values())
    later = [line for line in users.values() if "go before" in line]
    assert later and all("s of GPU time more for its tickets than the first" in line for line in later)
    assert all(said_of(world, n)[-1].startswith("of the 2 jobs of user1 ") for n in (1, 4))
    assert said_of(world, 99) == []
    alone = busy(1)
    assert said_of(alone, 1) == []


def test_what_is_said_of_turns() -> None:
    turns = Turns()
    turns.set_members({"u": 2, "v": 1}, {"u": {1: 1, 2: 1}, "v": {3: 1}})
    turns.charge("u", 1, 30 * SECOND_NS)
    assert [*turns.told("u", 1)] == [
        "1 of 2 users go before u: it has had 30 s of GPU time more for its tickets than the first",
        "of the 2 jobs of u 1 go before it",
    ]
    assert [*turns.told("u", 2)][1] == "of the 2 jobs of u 0 go before it"
    assert [*turns.told("v", 3)] == ["of 2 users none goes before v"]
    assert [*turns.told("w", 3)] == [*turns.told("u", 9)] == []


def test_where_moves_are_dear_it_says_when_jobs_change_gpus() -> None:
    told = PolicySettings(QUANTUM_NS, restart_ns=10 * SECOND_NS)
    world = FakeWorld({"a": 1}, EngineSettings(QUANTUM_NS), make_policy=lambda: gandiva_fair.make(told))
    job = world.submit()
    world.run(30)
    assert said_of(world, job) == ["jobs change GPUs every 180 s, the next time in 151 s"]


def test_a_plans_note_is_told_and_a_policy_that_cannot_explain_is_no_trouble() -> None:
    class Notes(Slow):
        def explain(self, job_id: int, now_ns: int) -> list[str]:
            raise ValueError(job_id)

    def noted(view: View) -> Plan:
        return Plan({}, notes=dict.fromkeys(view.jobs, "it rains"))

    world = FakeWorld({"a": 1}, EngineSettings(QUANTUM_NS), make_policy=lambda: Notes(noted))
    job = world.submit()
    world.run(5)
    assert said_of(world, job) == ["it rains"]


def test_a_job_that_a_policy_promotes_is_guaranteed_for_good() -> None:
    """Its node hears of it, `why` says it, and a policy that has forgotten all is shown it so."""
    told = PolicySettings(QUANTUM_NS, restart_ns=SECOND_NS)
    world = FakeWorld({"a": 2}, EngineSettings(QUANTUM_NS), make_policy=lambda: gandiva_fair.make(told))
    world.submit("user1", gpus=2)
    world.run(5)
    spare = world.submit("user2", job_class=OPPORTUNISTIC)
    world.run(PATIENCE_NS // SECOND_NS - 10)
    record = world.engine.jobs[spare]
    assert not record.is_promoted and record.held_ns == 0
    (line,) = promotion.told(record, world.now_ns)
    assert "without GPUs for 28" in line
    world.run(40)
    assert record.is_promoted and record.held_ns > 0
    (line,) = [line for line in record.story if line.code == "Promoted"]
    text = r"guaranteed from now on, after 30\d s without GPUs: the share of user2 has room"
    assert re.fullmatch(text, line.text)
    assert {place.is_opportunistic for place in world.engine.plan_jobs("a")} == {False}
    world.told_of_policy = {"policy": "another one"}
    world.restart_controller(keep_journal=True)
    world.run(60)
    assert world.engine.jobs[spare].held_ns >= record.held_ns + 20 * SECOND_NS
    world.engine.handle([ClassAsked(spare, OPPORTUNISTIC)], world.now_ns)
    world.run(20)
    assert world.engine.jobs[spare].is_opportunistic, "its owner may take that back"
