"""Who reports other rates than he runs at, or splits into more jobs or users, gains nothing by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy import gandiva_fair, gandiva_market
from gandiva_slurm.policy.port import Cluster, Plan, Policy, PolicySettings, Rates, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Oracle
from tests.sim.mixed import S

QUANTUM_S, QUANTA = 60, 60
CLUSTER = Cluster([("v100", 4), ("p100", 4), ("k80", 4), ("k80", 4)])
KINDS = tuple(CLUSTER.counts)
USERS = ("u0", "u1", "u2", "u3")
LIAR = "u0"
Make = Callable[[PolicySettings], Policy]
both = pytest.mark.parametrize("make", [gandiva_fair.make, gandiva_market.make], ids=["fair", "market"])
#: a failure is told as it was found: a simulation is too long to be made smaller again and again
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
#: speed-ups over a K80, on V100 and P100; a user's jobs are of one model
GAINS = st.lists(
    st.tuples(st.sampled_from([1.2, 1.9, 3.0, 4.8, 6.3]), st.sampled_from([1.1, 1.7, 2.5, 3.6])),
    min_size=4,
    max_size=4,
)


class EnoughSeen(Exception):
    """The time is over."""


@dataclass
class Reported:
    """Rates as they are told: the liar's times a factor, by type; those beside another once more."""

    rates: Rates
    factors: Mapping[str, float]
    packed_factor: float = 1.0

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        """What is told of a model alone."""
        rate = self.rates.alone(model, size, gpu_type, is_local)
        return rate * self._of(model, gpu_type) if rate else rate

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        """What is told of a pair."""
        pair = self.rates.packed(model, other, gpu_type)
        return pair and (pair[0] * self._beside(model, gpu_type), pair[1] * self._beside(other, gpu_type))

    def _beside(self, model: str, gpu_type: str) -> float:
        return self._of(model, gpu_type) * (self.packed_factor if model == LIAR else 1.0)

    def _of(self, model: str, gpu_type: str) -> float:
        return self.factors.get(gpu_type, 1.0) if model == LIAR else 1.0


@dataclass
class Watched:
    """A policy that is told the reports; keeps its plans, the GPU time and the true work of each person."""

    policy: Policy
    factors: Mapping[str, float]
    packed_factor: float = 1.0
    #: the liar tells the truth until then
    since_s: float = 0.0
    name: str = "watched"
    plans: list[dict[int, tuple[int, ...]]] = field(default_factory=list)
    gpu_quanta: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)

    def decide(self, view: View) -> Plan:
        """Pass the question on with the reports in it."""
        if view.now_ns >= QUANTA * QUANTUM_S * S:
            for job in view.jobs.values():
                self._add(self.work, job.user, job.progress * job.size)
            raise EnoughSeen
        is_lying = view.now_ns >= self.since_s * S
        told = Reported(view.rates, self.factors, self.packed_factor) if is_lying else view.rates
        plan = self.policy.decide(replace(view, rates=told))
        self.plans.append(dict(plan.runs))
        for job_id, gpus in plan.runs.items():
            sharers = sum(other == gpus for other in plan.runs.values())
            self._add(self.gpu_quanta, view.jobs[job_id].user, len(gpus) / sharers)
        return plan

    def _add(self, book: dict[str, float], user: str, part: float) -> None:
        """Whoever splits himself into several users is one person still."""
        person = user.split(".")[0]
        book[person] = book.get(person, 0.0) + part


def jobs_of(user: str, sizes: Sequence[int]) -> list[Spec]:
    """Jobs that nobody ends; of one model, called as the person."""
    model = user.split(".")[0]
    return [Spec(0, "", user, size, 0, steps=10**6, model=model, account=model) for size in sizes]


def play(
    make: Make, jobs: Sequence[Spec], gains: Sequence[tuple[float, float]], factors: Mapping[str, float] = {},
    tree: tuple[Association, ...] = (), kept: Mapping[tuple[str, str], float] = {}, **lie: float,
) -> Watched:  # fmt: skip
    """An hour of it. `kept`: what a user's jobs keep of their speed beside another's; {}: no two fit."""
    speed = {
        user: dict(zip(KINDS, (*gain, 1.0), strict=True)) for user, gain in zip(USERS, gains, strict=True)
    }
    tables: dict[str, dict[tuple[str, int], dict[Any, Any]]] = {
        kind: {(u, g): {None: g * speed[u][kind]} for u in USERS for g in (1, 2, 4)} for kind in KINDS
    }
    for (user, other), part in kept.items():
        for kind in KINDS:
            pair = (speed[user][kind] * part, speed[other][kind] * kept[other, user])
            tables[kind][(user, 1)][(other, 1)] = pair
    specs = [replace(spec, job_id=n, name=str(n)) for n, spec in enumerate(jobs)]
    watched = Watched(make(PolicySettings(QUANTUM_S * S, associations=tree)), factors, **lie)
    with pytest.raises(EnoughSeen):
        simulate(Scene(specs, CLUSTER, Oracle(tables), associations=tree), watched)
    return watched


def crowd(first: Sequence[Spec] = ()) -> list[Spec]:
    """Sixteen one-GPU jobs a user on sixteen GPUs; the first user's may be told."""
    mine = first or jobs_of(LIAR, [1] * 16)
    return [*mine, *(spec for user in USERS[1:] for spec in jobs_of(user, [1] * 16))]


@both
@examples(max_examples=12, phases=PHASES)
@given(gains=GAINS, power=st.sampled_from([-9, -3, -1, 1, 4, 10]))
def test_more_or_fewer_reports_for_the_same_steps_change_no_plan(
    make: Make, gains: list[tuple[float, float]], power: int
) -> None:
    """What a script calls a mini-batch is its own affair: to the plan it does not matter at all."""
    told = play(make, crowd(), gains, dict.fromkeys(KINDS, 2.0**power))
    assert told.plans == play(make, crowd(), gains).plans


@examples(max_examples=25, phases=PHASES)
@given(gains=GAINS, kind=st.sampled_from(KINDS), factor=st.sampled_from([0.25, 0.5, 2, 4]))
def test_no_report_buys_gpu_time(gains: list[tuple[float, float]], kind: str, factor: float) -> None:
    """Whatever is told of one type, a quarter of all GPU time stays a quarter."""
    told = play(gandiva_fair.make, crowd(), gains, {kind: factor})
    assert told.gpu_quanta[LIAR] == pytest.approx(QUANTA * 4, rel=0.01)


@both
@examples(max_examples=10, phases=PHASES)
@given(gains=GAINS, parts=st.integers(2, 6))
def test_more_jobs_are_not_more_gpu_time(make: Make, gains: list[tuple[float, float]], parts: int) -> None:
    """Sixteen jobs or up to six times as many."""
    plain, split = play(make, crowd(), gains), play(make, crowd(jobs_of(LIAR, [1] * 16 * parts)), gains)
    assert split.gpu_quanta[LIAR] <= 1.01 * plain.gpu_quanta[LIAR]
    if make is gandiva_market.make:
        assert split.work[LIAR] <= 1.01 * plain.work[LIAR]


@pytest.mark.parametrize("first", [(1.2, 1.1), (1.9, 1.7), (3.0, 2.5), (4.8, 3.6), (6.3, 3.6), (6.3, 1.7)])
def test_more_jobs_are_not_much_more_of_the_fast_types(first: tuple[float, float]) -> None:
    """gandiva_fair gives them to jobs that are behind; that newcomers were never ahead is worth little."""
    gains = [first, (3.0, 2.5), (1.9, 1.7), (6.3, 3.6)]
    plain = play(gandiva_fair.make, crowd(), gains)
    split = play(gandiva_fair.make, crowd(jobs_of(LIAR, [1] * 32)), gains)
    assert split.work[LIAR] <= 1.05 * plain.work[LIAR]


@examples(max_examples=10, phases=PHASES)
@given(gains=GAINS, sizes=st.lists(st.sampled_from([1, 2, 4]), min_size=8, max_size=16))
def test_gangs_cut_into_jobs_of_one_gpu_have_no_more_gpu_time(
    gains: list[tuple[float, float]], sizes: list[int]
) -> None:
    total = max(16, sum(sizes))
    whole = play(gandiva_fair.make, crowd(jobs_of(LIAR, [*sizes, *[1] * (total - sum(sizes))])), gains)
    cut = play(gandiva_fair.make, crowd(jobs_of(LIAR, [1] * total)), gains)
    assert cut.gpu_quanta[LIAR] <= whole.gpu_quanta[LIAR] + 0.01 * QUANTA * 4 + 4


@examples(max_examples=10, phases=PHASES)
@given(gains=GAINS, names=st.integers(2, 4))
def test_more_users_of_one_account_are_not_more_shares(gains: list[tuple[float, float]], names: int) -> None:
    """Tickets are the account's; who has three names in it has what he had by one."""
    people = [f"{LIAR}.{n}" for n in range(names)]
    tree = (
        *(Association(user, "", "root", 1) for user in USERS),
        *(Association(user.split(".")[0], user, "", 1) for user in (*USERS, *people)),
    )
    plain = play(gandiva_fair.make, crowd(), gains, tree=tree)
    split = play(
        gandiva_fair.make,
        crowd([spec for user in people for spec in jobs_of(user, [1] * 16)]),
        gains,
        tree=tree,
    )
    assert split.gpu_quanta[LIAR] <= 1.01 * plain.gpu_quanta[LIAR] + 4
