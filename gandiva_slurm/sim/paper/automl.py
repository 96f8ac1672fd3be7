"""A hundred configurations on four GPUs: how soon one reaches 80 % and 90 % (Gandiva, Table 4).

As a search without introspection has it, each configuration runs to its end in turn, first come, first
served, four at a time. With it, two run alone by what they may come to, the others time-slice, and the
hopeless are given up. Both are the simulator's runs of the same hundred in the same hundred orders.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gandiva_slurm.policy.automl import AutoMl, Search, SearchSettings
from gandiva_slurm.policy.baselines import fifo
from gandiva_slurm.policy.port import Cluster, Plan, PolicySettings, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.paper.result import Row, Setup, published
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.world import Costs, PolicyError

#: 1,000 mini-batches are 3 % of a run; at 0.6 s first come, first served takes about as long as the paper's.
HORIZON, MINIBATCH_S = 32_000, 0.6
GPUS, QUANTUM_S, SWITCH_S = 4, 60, 0.5
CONFIGURATIONS, SHUFFLES = 100, 100
GOALS = (0.8, 0.9)
NOISE = 0.02
_S = 10**9


@dataclass(frozen=True, slots=True)
class Configuration:
    """A training's true curve a(1 - e^(-x/k)): `final` is what it comes to, `time` is k in whole runs."""

    final: float
    time: float

    def accuracy(self, part: float) -> float:
        """Return its accuracy after a part of its run."""
        return self.final * math.expm1(-part / self.time) / math.expm1(-1 / self.time)

    def reaches(self, goal: float) -> float | None:
        """Return the part of its run after which it has this accuracy; None: never."""
        if self.final < goal:
            return None
        return -self.time * math.log1p(goal / self.final * math.expm1(-1 / self.time))


def configurations(seed: int) -> list[Configuration]:
    """Draw the hundred: one comes to 0.9, one to 0.8, thirty to less than 0.3, the rest to 0.30 - 0.76."""
    draw = random.Random(f"configurations {seed}")
    finals = [0.9, 0.8, *(draw.uniform(0.1, 0.3) for _ in range(30))]
    finals += [draw.uniform(0.3, 0.76) for _ in range(CONFIGURATIONS - len(finals))]
    return [Configuration(final, draw.uniform(3000, 5000) / HORIZON) for final in finals]


def specs_of(count: int, minibatch_s: float = MINIBATCH_S) -> list[Spec]:
    """The configurations as jobs, all submitted at once in the order of their numbers."""
    length_ns = round(HORIZON * minibatch_s * _S)
    return [
        Spec(number, str(number), "search", 1, 0, length_ns, steps=HORIZON, can_pack=False)
        for number in range(count)
    ]


def first_come(order: Sequence[Configuration], minibatch_s: float = MINIBATCH_S) -> dict[float, float]:
    """Run each to its end in turn; return when the first of them reaches each goal, seconds."""
    scene = Scene(specs_of(len(order), minibatch_s), Cluster([("p40", GPUS)]), Homogeneous())
    books = simulate(scene, fifo.make(PolicySettings(QUANTUM_S * _S))).books
    run_s = HORIZON * minibatch_s
    reached: dict[float, float] = {}
    for configuration, start_ns in zip(order, books.start_ns, strict=True):
        for goal in GOALS:
            part = configuration.reaches(goal)
            if part is not None:
                at_s = start_ns / _S + part * run_s
                reached[goal] = min(at_s, reached.get(goal, at_s))
    return reached


class _Found(Exception):
    """The search is over."""


class _Watched:
    """The search's policy, and when its trainings reached the goals; it ends the run with the last."""

    def __init__(self, policy: AutoMl, order: Sequence[Configuration], run_s: float) -> None:
        self.name = policy.name
        self.reached: dict[float, float] = {}
        self._policy, self._run_s = policy, run_s
        parts = ((number, goal, c.reaches(goal)) for number, c in enumerate(order) for goal in GOALS)
        self._marks = [(number, goal, part) for number, goal, part in parts if part is not None]

    def decide(self, view: View) -> Plan:
        """Pass the question on, unless all is found."""
        for number, goal, part in self._marks:
            job = view.jobs.get(number)
            progress = job.progress if job else 1.0
            if progress >= part - 1e-9 and goal not in self.reached:
                # it ran without a break since the mark: a quantum is shorter than the way to the next
                self.reached[goal] = view.now_ns / _S - (progress - part) * self._run_s
        if len(self.reached) == len(GOALS):
            raise _Found
        return self._policy.decide(view)


@dataclass(frozen=True, slots=True)
class Hunt:
    """How a search went: when each goal was reached, and who was given up."""

    reached_s: Mapping[float, float]
    given_up: frozenset[int]


def introspective(
    order: Sequence[Configuration], noise: float, seed: str, minibatch_s: float = MINIBATCH_S
) -> Hunt:
    """Run them by what is foretold of them; their accuracies are measured with noise."""

    def measure(job_id: int, minibatches: int) -> float:
        draw = random.Random(f"{seed}/{job_id}/{minibatches}")
        return order[job_id].accuracy(minibatches / HORIZON) + draw.gauss(0.0, noise)

    search = Search(SearchSettings(HORIZON))
    policy = _Watched(AutoMl(search, QUANTUM_S * _S, measure), order, HORIZON * minibatch_s)
    costs = Costs(round(SWITCH_S * _S), round(SWITCH_S * _S))
    scene = Scene(specs_of(len(order), minibatch_s), Cluster([("p40", GPUS)]), Homogeneous(), costs)
    try:
        simulate(scene, policy)
    except _Found:
        pass
    except PolicyError:
        if len(search.given_up) < len(order) - len(GOALS):
            raise
    return Hunt(policy.reached, frozenset(search.given_up))


def run(setup: Setup) -> list[Row]:
    """Return the rows of the table."""
    hundred = configurations(setup.seed)
    turn = random.Random(f"shuffles {setup.seed}")
    theirs, ours = (dict.fromkeys(GOALS, 0.0) for _ in range(2))
    lost = given_up = 0
    for shuffle in range(SHUFFLES):
        order = turn.sample(hundred, len(hundred))
        plain, hunt = first_come(order), introspective(order, NOISE, f"{setup.seed}/{shuffle}")
        for goal in GOALS:
            theirs[goal] += plain[goal] / SHUFFLES
            ours[goal] += hunt.reached_s[goal] / SHUFFLES
        given_up += len(hunt.given_up)
        lost += is_lost(order, hunt)
        setup.tell(shuffle + 1, SHUFFLES)
    return [
        *_gains(theirs, ours),
        Row("searches that gave up a winner", lost, None, f"of {SHUFFLES}"),
        Row("given up", round(given_up / SHUFFLES, 1), None, f"of {CONFIGURATIONS}"),
    ]


def is_lost(order: Sequence[Configuration], hunt: Hunt) -> bool:
    """True when one of those who come to 80 % or more was given up."""
    return any(order[number].final >= min(GOALS) for number in hunt.given_up)


def _gains(theirs: Mapping[float, float], ours: Mapping[float, float]) -> Iterator[Row]:
    table = published("gandiva")["automl"]
    note = f"means over {SHUFFLES} orders of {CONFIGURATIONS} drawn curves"
    for goal in GOALS:
        name = f"{goal:.0%}"
        paper, in_turn_min, ours_min = table[name], theirs[goal] / 60, ours[goal] / 60
        yield Row(f"{name}, each to its end in turn", round(in_turn_min, 1), paper.get("in_turn_min"), "min")
        yield Row(f"{name}, introspective", round(ours_min, 1), paper.get("gandiva_min"), "min")
        yield Row(f"{name}, sooner", round(in_turn_min / ours_min, 2), paper["gain"], "x", note)
