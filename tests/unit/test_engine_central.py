"""engine.central: who may not be chosen freely, and what is said of it."""

from __future__ import annotations

import pytest

from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import IN, OUT, STAY, HeldTime, PartStand
from gandiva_slurm.slicing.central import CentralSettings, Domain
from gandiva_slurm.slicing.domains import Planned
from gandiva_slurm.slicing.stride import STRIDE1

SECOND = 10**9
ONE, TWO, LOCAL = JobKey(1, 0), JobKey(2, 0), JobKey(3, 0)
NODES = ("n1", "n2")


def a_domain(*keys: JobKey) -> Domain:
    """Spans over both GPUs of both nodes, each another user's."""
    domain = Domain(CentralSettings(SECOND, 120 * SECOND))
    places = tuple((node, (0, 1)) for node in NODES)
    jobs = {key: Planned(key, f"user{key.job_id}", 1000, key.job_id, places) for key in keys}
    domain.follow(dict.fromkeys(NODES, 2), jobs)
    return domain


def tell(domain: Domain, phases: dict[JobKey, tuple[str, str]], now_s: int, **more: object) -> None:
    """Both nodes answer; `phases`: each span's on n1 and n2."""
    for rank, node in enumerate(NODES):
        parts, held = [], []
        for key, both in phases.items():
            facts = {"world": 2, "ranks": (rank,), "is_parkable": True} | more
            parts.append(PartStand(*key, both[rank], **facts))  # type: ignore[arg-type]
            state = words.OFF if both[rank] in (words.OFF, words.RESERVED, words.READY) else words.ON
            held.append(HeldTime(*key, f"user{key.job_id}", (0, 1), 0, 0, state))
        domain.gather(node, "boot", held, parts, now_s * SECOND)


def test_one_of_two_equals_comes_in_and_may_come_back_alone() -> None:
    domain = a_domain(ONE, TWO)
    off = (words.OFF, words.OFF)
    tell(domain, {ONE: off, TWO: off}, 1)
    verdicts = domain.decide({})
    assert [verdicts[key].where for key in (ONE, TWO)] == [IN, OUT]
    assert not verdicts[TWO].comes_back, "it would meet the other one"
    alone = a_domain(ONE)
    tell(alone, {ONE: off}, 1)
    assert alone.decide({ONE: OUT})[ONE].comes_back


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"is_parkable": False}, "not all of its ranks"),
        ({"world": 3}, "not all of its ranks"),
        ({"must_stay": True}, "starts up, moves, or failed"),
    ],
)
def test_what_cannot_be_parked_stays_and_says_why(more: dict[str, object], why: str) -> None:
    domain = a_domain(ONE, TWO)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    for now_s in range(1, 9):
        tell(domain, {ONE: on, TWO: off}, now_s, **more)
        verdict = domain.decide({})[ONE]
        assert verdict.where == STAY and why in verdict.why
        assert domain.verdicts[TWO].where == OUT


def test_blind_for_too_long_is_told_out_all_the_same() -> None:
    domain = a_domain(ONE, TWO)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    for now_s in range(1, 4):
        tell(domain, {ONE: on, TWO: off}, now_s, is_parkable=False, blind_ns=120 * SECOND)
        domain.stride.charge_work(ONE, "user1", SECOND, 0)
        domain.decide({})
    assert (domain.verdicts[ONE].where, domain.verdicts[TWO].where) == (OUT, IN)


def test_failure_pins_a_round_and_the_third_in_a_row_four() -> None:
    domain = a_domain(ONE, TWO)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    stayed = []
    for now_s in range(1, 14):
        tell(domain, {ONE: on, TWO: off}, now_s)
        domain.stride.charge_work(ONE, "user1", 4 * SECOND, 0)
        verdict = domain.decide({})[ONE]
        stayed.append(verdict.where == STAY)
        if verdict.where == OUT:
            domain.tried(ONE, "a rank had passed", {})
            assert domain.trouble(ONE) == "a rank had passed"
    # Told out in rounds 1, 2, 3, then in every fourth.
    assert [n for n, stays in enumerate(stayed) if not stays][:3] == [0, 1, 2] or stayed[0]
    assert sum(stayed[4:]) >= 2 * sum(not stays for stays in stayed[4:])
    domain.tried(ONE, "", {})
    assert domain.trouble(ONE) == ""


def test_half_on_is_made_whole_before_anything_else() -> None:
    domain = a_domain(ONE, TWO)
    tell(domain, {ONE: (words.OFF, words.OFF), TWO: (words.ON, words.OFF)}, 1)
    verdicts = domain.decide({})
    assert verdicts[TWO].where == IN and verdicts[TWO].is_torn and "follow" in verdicts[TWO].why
    assert verdicts[ONE].where == OUT


def test_of_two_that_cross_the_later_one_is_told_out() -> None:
    domain = a_domain(ONE, TWO)
    tell(domain, {ONE: (words.ON, words.OFF), TWO: (words.OFF, words.ON)}, 1)
    verdicts = domain.decide({})
    assert (verdicts[ONE].where, verdicts[ONE].is_torn) == (IN, True)
    assert (verdicts[TWO].where, verdicts[TWO].is_torn) == (OUT, True)
    assert "another gang" in verdicts[TWO].why


def test_bound_of_a_park_goes_first() -> None:
    domain = a_domain(ONE, TWO)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    domain.stride.charge_work(TWO, "user2", 0, 0)
    tell(domain, {ONE: on, TWO: off}, 1, left_ns=SECOND)
    domain.decide({})
    domain.stride.charge_work(TWO, "user2", 50 * SECOND, 0)
    tell(domain, {ONE: on, TWO: off}, 2, left_ns=SECOND)
    assert TWO in domain._overdue()


def test_gpus_a_plan_does_not_have_make_no_span() -> None:
    domain = a_domain(ONE)
    places = (("n1", (0, 5)), ("n2", (0, 1)))
    domain.follow(dict.fromkeys(NODES, 2), {ONE: Planned(ONE, "user1", 1, 1, places)})
    assert domain.spans == {}
    tell(domain, {}, 1)
    assert domain.decide({}) == {}


def test_within_a_quantum_whoever_holds_keeps_and_what_is_idle_is_given() -> None:
    domain = a_domain(ONE, TWO)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    tell(domain, {ONE: on, TWO: off}, 1)
    domain.stride.charge_work(ONE, "user1", 90 * SECOND, 0)
    verdicts = domain.decide({}, is_end=False)
    assert [verdicts[key].where for key in (ONE, TWO)] == [STAY, OUT]
    tell(domain, {ONE: off, TWO: off}, 2)
    verdicts = domain.decide({}, is_end=False)
    assert sorted(verdicts[key].where for key in (ONE, TWO)) == [IN, OUT]


def test_gang_that_is_leaving_keeps_nobody_out_and_does_not_come_back_meanwhile() -> None:
    domain = a_domain(ONE, TWO)
    on, off = (words.AIMING, words.ON), (words.OFF, words.OFF)
    for is_end in (True, False):
        tell(domain, {ONE: on, TWO: off}, 1)
        verdicts = domain.decide({ONE: OUT}, is_end)
        assert [verdicts[key].where for key in (ONE, TWO)] == [OUT, IN]
        assert verdicts[ONE].why == "it is being parked"


# to be moved


def leave(domain: Domain, *keys: JobKey, is_leaving: bool = True) -> None:
    """The plan says that these are to leave."""
    plans = {key: plan._replace(is_leaving=is_leaving) for key, plan in domain.spans.items() if key in keys}
    domain.follow(domain.nodes, {**domain.spans, **plans})


@pytest.mark.parametrize("is_end", [False, True])
def test_one_that_is_to_be_moved_saves_itself_at_once_and_then_has_no_turn(is_end: bool) -> None:
    domain = a_domain(ONE)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    tell(domain, {ONE: on}, 1)
    assert not domain.decide({})[ONE].saves
    leave(domain, ONE)
    tell(domain, {ONE: on}, 2)
    verdict = domain.decide({}, is_end)[ONE]
    assert (verdict.where, verdict.saves, verdict.why) == (OUT, True, "it saves itself, to be moved")
    assert not domain.decide({ONE: OUT}, is_end)[ONE].comes_back
    tell(domain, {ONE: off}, 3, has_saved=True)
    for _ in range(9):
        verdict = domain.decide({})[ONE]
        assert (verdict.where, verdict.saves, verdict.why) == (OUT, False, "it has saved itself, to be moved")
        assert not verdict.comes_back
    leave(domain, ONE, is_leaving=False)
    assert domain.decide({})[ONE].where == IN, "told to stay"


@pytest.mark.parametrize("is_end", [False, True])
def test_one_that_saves_itself_upon_its_signal_keeps_its_turn(is_end: bool) -> None:
    """Whoever is due; when the plan says so no more, it takes turns as ever."""
    domain = a_domain(ONE, TWO)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    leave(domain, ONE)
    jobs = {key: job._replace(keeps_turn=key == ONE) for key, job in domain.spans.items()}
    domain.follow(dict.fromkeys(NODES, 2), jobs)
    for now_s in range(1, 9):
        tell(domain, {ONE: on, TWO: off}, now_s)
        domain.stride.charge_work(ONE, "user1", SECOND, 0)
        verdicts = domain.decide({}, is_end)
        assert (verdicts[ONE].where, verdicts[TWO].where) == (STAY, OUT)
        assert "upon its signal" in verdicts[ONE].why and not verdicts[ONE].saves
    domain.follow(dict.fromkeys(NODES, 2), {key: job._replace(keeps_turn=False) for key, job in jobs.items()})
    leave(domain, ONE, is_leaving=False)
    tell(domain, {ONE: on, TWO: off}, 10)
    assert [domain.decide({})[key].where for key in (ONE, TWO)] == [OUT, IN]


def test_the_bound_of_its_park_brings_one_that_has_saved_itself_not_back() -> None:
    domain = a_domain(ONE, TWO)
    leave(domain, ONE)
    off = (words.OFF, words.OFF)
    tell(domain, {ONE: off, TWO: off}, 1, has_saved=True, left_ns=0)
    assert [domain.decide({})[key].where for key in (ONE, TWO)] == [OUT, IN]


def test_a_parked_one_waits_for_its_turn_to_save_itself_and_others_for_its_gpus() -> None:
    domain = a_domain(ONE, TWO)
    leave(domain, TWO)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    tell(domain, {ONE: on, TWO: off}, 1)
    domain.stride.charge_work(ONE, "user1", 4 * SECOND, 0)
    verdicts = domain.decide({})
    assert (verdicts[ONE].where, verdicts[TWO].where) == (OUT, IN), "as any other"
    tell(domain, {ONE: off, TWO: on}, 2)
    verdicts = domain.decide({})
    assert verdicts[TWO].saves
    assert verdicts[ONE].where == OUT, "nobody is sent to wait while it saves itself"
    tell(domain, {ONE: off, TWO: off}, 3, has_saved=True)
    assert domain.decide({})[ONE].where == IN


@pytest.mark.parametrize("more", [{"must_stay": True}, {"is_parkable": False}, {"world": 3}])
def test_what_cannot_be_parked_is_not_asked_to_save_itself(more: dict[str, object]) -> None:
    domain = a_domain(ONE)
    leave(domain, ONE)
    tell(domain, {ONE: (words.ON, words.ON)}, 1, **more)
    verdict = domain.decide({})[ONE]
    assert (verdict.where, verdict.saves) == (STAY, False)


def test_half_a_gang_that_has_saved_itself_is_made_whole_again() -> None:
    domain = a_domain(ONE)
    leave(domain, ONE)
    tell(domain, {ONE: (words.OFF, words.ON)}, 1, has_saved=True)
    verdict = domain.decide({})[ONE]
    assert verdict.where == IN and verdict.is_torn


def test_a_save_that_failed_lets_others_have_their_turn_and_is_tried_again() -> None:
    domain = a_domain(ONE, TWO)
    leave(domain, ONE)
    on, off = (words.ON, words.ON), (words.OFF, words.OFF)
    tell(domain, {ONE: on, TWO: off}, 1)
    assert domain.decide({})[ONE].saves
    domain.tried(ONE, "n2: disk full", {}, words.LEAVE)
    assert domain.trouble(ONE) == "n2: disk full"
    tell(domain, {ONE: on, TWO: off}, 2)
    domain.stride.charge_work(ONE, "user1", 4 * SECOND, 0)
    verdicts = domain.decide({})
    assert (verdicts[ONE].where, verdicts[ONE].saves, verdicts[TWO].where) == (OUT, False, OUT)
    domain.tried(ONE, "", {}, OUT)
    tell(domain, {ONE: off, TWO: off}, 3)
    assert domain.decide({}, is_end=False)[TWO].where == IN
    tell(domain, {ONE: on, TWO: off}, 4)
    domain.decide({})
    assert domain.decide({})[ONE].saves


def test_in_mid_quantum_local_gangs_keep_their_gpus_beside_one_that_saves_itself() -> None:
    domain = a_domain(ONE, TWO)
    leave(domain, TWO)
    row = HeldTime(*LOCAL, "user3", (0, 1), 0, 0, words.ON)
    for rank, node in enumerate(NODES):
        parts = [PartStand(*key, words.OFF, 2, (rank,), is_parkable=True) for key in (ONE, TWO)]
        domain.gather(node, "boot", [row] if node == "n1" else [], parts, SECOND)
    verdicts = domain.decide({}, is_end=False)
    assert [verdicts[key].where for key in (ONE, TWO)] == [OUT, OUT], "its GPUs are the local one's"


def test_what_was_held_before_the_first_answer_is_not_charged_nor_more_than_time_has_passed() -> None:
    domain = a_domain(ONE)
    part = PartStand(*ONE, words.ON, world=2, ranks=(0,), is_parkable=True)
    passes = []
    for now_s, held_s in ((1, 100), (2, 900)):
        held = [HeldTime(*ONE, "user1", (0, 1), held_s * SECOND, 0, words.ON)]
        domain.gather("n1", "boot", held, [part], now_s * SECOND)
        domain.decide({})
        passes.append(domain.stride.passes()[0]["user1"])
    second_of_two_gpus = 2 * SECOND * STRIDE1 // 1000
    assert passes[0] == 0 and second_of_two_gpus <= passes[1] <= 1.2 * second_of_two_gpus


def test_one_of_which_half_has_saved_itself_comes_in_again() -> None:
    domain = a_domain(ONE)
    domain.spans[ONE] = domain.spans[ONE]._replace(is_leaving=True)
    for rank, node in enumerate(NODES):
        part = PartStand(*ONE, words.OFF, world=2, ranks=(rank,), is_parkable=True, has_saved=rank == 0)
        held = HeldTime(*ONE, "user1", (0, 1), 0, 0, words.OFF)
        domain.gather(node, "boot", [held], [part], SECOND)
    assert domain.decide({})[ONE].where == IN


def switch_off(domain: Domain, *keys: JobKey) -> None:
    """A policy plans these off."""
    plans = {key: plan._replace(is_on=key not in keys) for key, plan in domain.spans.items()}
    domain.follow(domain.nodes, plans)


@pytest.mark.parametrize("is_end", [False, True])
def test_one_that_a_policy_plans_off_while_it_starts_up_is_parked_when_it_can_be(is_end: bool) -> None:
    """Nothing of it has come to a boundary yet: parked now it would be stopped in mid-start."""
    domain, on = a_domain(ONE), (words.ON, words.ON)
    switch_off(domain, ONE)
    tell(domain, {ONE: on}, 1, world=0, ranks=(), is_parkable=False)
    verdict = domain.decide({}, is_end)[ONE]
    assert (verdict.where, verdict.why.split(" have")[0]) == (STAY, "not all of its ranks")
    tell(domain, {ONE: on}, 2)
    assert domain.decide({}, is_end)[ONE].where == OUT


def test_what_was_told_to_come_back_is_not_told_otherwise_in_mid_quantum() -> None:
    """Nodes hear of the one that goes out now, and nothing new of the other, which it would meet."""
    domain, off = a_domain(TWO), (words.OFF, words.OFF)
    switch_off(domain, TWO)
    tell(domain, {TWO: off}, 1)
    assert domain.decide({})[TWO].comes_back
    plans = a_domain(ONE).spans | domain.spans
    domain.follow(domain.nodes, plans)
    switch_off(domain, ONE, TWO)
    tell(domain, {ONE: (words.ON, words.ON), TWO: off}, 2)
    verdicts = domain.decide({}, is_end=False)
    assert [verdicts[key].comes_back for key in (ONE, TWO)] == [False, True]
    verdicts = domain.decide({})
    assert [verdicts[key].comes_back for key in (ONE, TWO)] == [True, False], "at its end all hear anew"
