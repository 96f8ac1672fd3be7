"""engine.refusal, engine.luck: what counts as refusing to park, and what a domain makes of it."""

from __future__ import annotations

import pytest

from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import FREEZE, IN, OUT, STAY, HeldTime, PartStand
from gandiva_slurm.slicing.central import CentralSettings, Domain, Verdict
from gandiva_slurm.slicing.cluster import Central
from gandiva_slurm.slicing.domains import Planned
from gandiva_slurm.slicing.refusal import Refusal

SECOND = 10**9
BOUND_NS = 10 * SECOND
CLIENT_WAIT_NS = 30 * SECOND
ONE, TWO = JobKey(1, 0), JobKey(2, 0)
NODES = ("n1", "n2")
SETTINGS = CentralSettings(SECOND, CLIENT_WAIT_NS, BOUND_NS)


class Scene:
    """Two spans over both GPUs of both nodes: the first one is on, the other waits. A second a round."""

    def __init__(self, *, waits: bool = True) -> None:
        self.central = Central(SETTINGS)
        places = tuple((node, (0, 1)) for node in NODES)
        self.keys = (ONE, TWO) if waits else (ONE,)
        self.jobs = {key: Planned(key, f"user{key.job_id}", 1000, key.job_id, places) for key in self.keys}
        self.gpus = dict.fromkeys(NODES, 2)
        self.central.follow(self.gpus, self.jobs)
        self.now_ns = 0
        self.held = dict.fromkeys(self.keys, 0)
        self.facts: dict[str, object] = {"is_parkable": True}
        self.on = ONE

    @property
    def domain(self) -> Domain:
        """The one there is."""
        (domain,) = self.central.domains
        return domain

    def round(self, left_ns: int = -1) -> Verdict:
        """Time passes, the nodes are asked; return what is decided of the first."""
        self.now_ns += SECOND
        for key in self.keys:
            self.held[key] += SECOND if key == self.on else 0
        for rank, node in enumerate(NODES):
            parts, rows = [], []
            for key in self.keys:
                phase = words.ON if key == self.on else words.OFF
                facts = {"world": 2, "ranks": (rank,)} | self.facts
                left = -1 if key == self.on else left_ns
                parts.append(PartStand(*key, phase, left_ns=left, **facts))  # type: ignore[arg-type]
                rows.append(HeldTime(*key, f"user{key.job_id}", (0, 1), self.held[key], 0, phase))
            self.domain.gather(node, "boot", rows, parts, self.now_ns)
        return self.domain.decide({})[ONE]

    def until_frozen(self, rounds: int = 60) -> int:
        """Every park fails; return how many rounds it took until it is to be frozen."""
        for number in range(rounds):
            verdict = self.round()
            if verdict.freezes:
                return number
            if verdict.where == OUT:
                self.domain.tried(ONE, "no boundary", {})
        raise AssertionError(f"not frozen within {rounds} rounds")


def test_time_that_is_refused_begins_with_the_first_failure_and_ends_with_a_park() -> None:
    refusal = Refusal()
    refusal.hold(100, 100)
    assert refusal == Refusal() and refusal.told() == ""
    refusal.fail("why", 5)
    refusal.hold(7, 4)
    refusal.hold(3, 0)
    assert (refusal.refused_ns, refusal.served_ns, refusal.since_ns) == (4, 10, 5)
    assert "once" in refusal.told() and not refusal.is_over(5, is_pressed=False)
    assert refusal.is_over(4, is_pressed=False)
    assert not refusal.is_over(0, is_pressed=True), "a bound of 0 is none"


def test_after_a_freeze_it_is_asked_once_and_holds_as_long_as_it_was_frozen() -> None:
    refusal = Refusal(failures=1, asked=1, since_ns=1, refused_ns=50)
    refusal.freeze(100)
    assert refusal.is_frozen
    refusal.thaw(130)
    refusal.hold(40, 40)
    assert not refusal.is_over(50, is_pressed=True), "not asked since"
    refusal.fail("why", 140)
    assert refusal.is_over(50, is_pressed=False)
    refusal.served_ns = 29
    assert not refusal.is_over(50, is_pressed=False) and refusal.is_over(50, is_pressed=True)


def test_a_span_is_frozen_when_the_bound_is_over_and_not_before() -> None:
    scene = Scene()
    took = scene.until_frozen()
    assert BOUND_NS <= took * SECOND <= BOUND_NS + 5 * SECOND
    assert "failed to park" in scene.domain.verdicts[ONE].why
    assert scene.domain.verdicts[TWO].where == IN


def test_nobody_is_sent_to_wait_for_gpus_of_one_that_has_refused_but_gets_them_when_they_are_free() -> None:
    scene = Scene()
    while scene.round().where != OUT:
        pass
    assert scene.domain.verdicts[TWO].where == IN, "nothing is known of it yet"
    scene.domain.tried(ONE, "no boundary", {})
    while scene.round().where != OUT:
        pass
    assert scene.domain.verdicts[TWO].where == OUT
    off = {node: PartStand(*ONE, words.OFF, 2) for node in NODES}
    scene.domain.tried(ONE, "", off)
    assert scene.domain.decide({}, is_end=False)[TWO].where == IN


def test_nothing_counts_while_nobody_waits() -> None:
    scene = Scene(waits=False)
    for _ in range(40):
        assert scene.round().where == STAY
        scene.domain.tried(ONE, "no boundary", {})
    assert scene.domain.lucks.of(ONE).refusal.refused_ns == 0


def test_a_span_without_all_its_ranks_is_told_out_like_one_without_a_client() -> None:
    """Each node has all of the ranks it knows of: none says that it is blind."""
    scene = Scene()
    scene.facts = {"is_parkable": True, "world": 3}
    wheres = [scene.round().where for _ in range(40)]
    first = wheres.index(OUT)
    assert CLIENT_WAIT_NS - 2 * SECOND <= first * SECOND <= CLIENT_WAIT_NS + 2 * SECOND


@pytest.mark.parametrize("left_s", [1, 60])
def test_a_freeze_of_another_that_must_end_goes_before_the_count(left_s: int) -> None:
    scene = Scene()
    scene.round()
    scene.domain.tried(ONE, "no boundary", {})
    for _ in range(3):
        scene.round(left_ns=left_s * SECOND)
    assert scene.domain.verdicts[ONE].freezes == (left_s == 1)


def test_the_count_outlives_a_domain_that_changes() -> None:
    scene = Scene()
    scene.until_frozen()
    scene.domain.tried(ONE, "", {}, FREEZE)
    far = Planned(JobKey(9, 0), "user9", 1000, 9, (("n3", (0,)), ("n4", (0,))))
    scene.central.follow({**scene.gpus, "n3": 1, "n4": 1}, {**scene.jobs, far.key: far})
    bridge = Planned(JobKey(8, 0), "user8", 1000, 8, (("n2", (0,)), ("n3", (0,))))
    jobs = {**scene.jobs, far.key: far, bridge.key: bridge}
    scene.central.follow({**scene.gpus, "n3": 1, "n4": 1}, jobs)
    assert scene.domain.lucks.of(ONE).refusal.is_frozen


def test_frozen_it_comes_in_again_holds_as_long_and_is_asked() -> None:
    scene = Scene()
    scene.until_frozen()
    scene.domain.tried(ONE, "", {}, FREEZE)
    scene.on = TWO
    for _ in range(7):
        scene.round()
    scene.on = ONE
    again = scene.until_frozen()
    refusal = scene.domain.lucks.of(ONE).refusal
    assert 6 <= refusal.frozen_ns // SECOND <= 8 and again >= 6
    assert refusal.asked >= 1
