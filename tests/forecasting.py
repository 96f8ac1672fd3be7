"""How well forecasts are calibrated, in virtual time: `python -m tests.forecasting [NAME ...]`.

A workload runs through the daemons' engine; at moments spread over it what gandivactld would have written
down is taken, forecast from, and compared with what then happened. Jobs ask for more time than they need, as
people do: by a factor that is drawn from 1.1 to 4 and, for half of them, rounded up to a day or an hour.
Of each forecast of an end: whether it was in the range that is to hold 8 of 10, and how wide that was beside
the range of its user's own completion times so far, of those that took longer than it has by then. A range
that is narrow because it is wrong is no better one: how often theirs held is told, too, and how wide they
would be if they held as often as the forecasts, by the one factor that makes them so, found behind the run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import Event, JobSeen
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, PolicySettings, Rates
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.forecast.lengths import Lengths, Past
from gandiva_slurm.sim.forecast.memory import Memory
from gandiva_slurm.sim.forecast.ranges import Present, forecast, range_of
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import EPOCH_NS, SlurmWorld
from gandiva_slurm.sim.truth import Homogeneous, Truth
from gandiva_slurm.sim.workloads.load import Source, load

DATA = Path(__file__).parent / "data"
S, HOUR_NS = 10**9, 3600 * 10**9
DRAWS = 8
SETTINGS = PolicySettings(300 * S, restart_ns=30 * S)
#: Those kept apart from tuning, and those by which it was tuned.
APART, TUNING = ("gavel", "elasticflow", "muri"), ("gavel_tuning", "drawn_tuning")


@dataclass
class Shot:
    """The engine at a moment, and how many jobs had ended."""

    now_ns: int
    text: str
    engine: Engine
    ended: int


@dataclass
class Tap:
    """Takes a shot each so often, by the engine's clock."""

    every_ns: int
    shots: list[Shot] = field(default_factory=list)
    next_ns: int = 0
    limits_ns: dict[int, int] = field(default_factory=dict)

    def handle(self, engine: Engine, events: Sequence[Event], now_ns: int) -> list[Action]:
        actions = engine.handle(events, now_ns)
        for event in events:  # a forecast each half minute sees them all
            if isinstance(event, JobSeen):
                self.limits_ns[event.job.job_id] = event.job.time_limit_s * S
        if now_ns >= self.next_ns:
            if self.next_ns:
                self.shots.append(Shot(now_ns, json.dumps(engine.to_json()), engine, 0))
            self.next_ns = now_ns + self.every_ns
        return actions


class Asking(SlurmWorld):
    """Slurm with jobs that ask for more time than they need on the slowest GPUs they may get."""

    #: mini-batches a second, where types differ
    rates: Rates | None = None

    def _slurm_job(self, job, cluster):  # type: ignore[no-untyped-def]
        made, chance = super()._slurm_job(job, cluster), Random(f"limit {job.job_id}")
        slower = 1.0
        if self.rates is not None and job.model:
            there = [self.rates.alone(job.model, job.size, kind) or 0.0 for kind in cluster.counts]
            slower = max(there) / min(rate for rate in there if rate)
        limit_s = max(600, round((job.length_ns or 0) / S * slower * chance.uniform(1.1, 4)))
        round_s = chance.choice((60, 60, 3600, 86400 if limit_s > 86400 else 3600))
        return replace(made, time_limit_s=-(-limit_s // round_s) * round_s)


def workload(name: str) -> tuple[list[Spec], Truth, Cluster]:
    """The jobs, what is true of them, and a cluster on which they wait."""
    mixed = read_cluster("v100:3x4,p100:3x4,k80:3x4")
    rates = DATA / "gavel/simulation_throughputs.json.xz"
    if name.startswith("gavel"):
        file = "gavel_poisson200_s0" if name == "gavel" else "gavel_scale300_s10"
        return *load(Source(DATA / f"gavel/{file}.trace", "gavel", rates, 6), mixed), mixed
    if name == "elasticflow":
        cluster = read_cluster("v100:8x8")
        specs, truth = load(Source(DATA / "elasticflow/195job.csv", "elasticflow", None, 8), cluster)
        return specs[:100], truth, cluster
    if name == "muri":
        cluster = read_cluster("v100:12x4")
        return *load(Source(DATA / "muri/trace3_head.csv", "muri", None, 2), cluster), cluster
    chance, cluster = Random(7), read_cluster("v100:3x4")
    specs, at_s = [], 0.0
    for number in range(250):
        at_s += chance.expovariate(1 / 1500)
        length_s = chance.lognormvariate(8 + number % 5 * 0.4, 0.7)
        specs.append(Spec(number, str(number), f"user{number % 5}", chance.choice((1, 1, 1, 2, 4)),
                          round(at_s * S), round(length_s * S)))  # fmt: skip
    return specs, Homogeneous(), cluster


def run(name: str, shots: int = 20) -> None:
    """Run a workload, forecast from its moments, and print how that agreed."""
    specs, truth, cluster = workload(name)
    make = partial(gandiva_fair.make, SETTINGS)
    span_ns = max(spec.submit_ns for spec in specs) or 24 * HOUR_NS
    tap = Tap(max(60 * S, span_ns // shots))
    world = Asking(SETTINGS, make())
    world.handle = tap.handle
    world.rates = truth.rates if name.startswith("gavel") else None
    began_s = time.monotonic()
    outcome = simulate(Scene(specs, cluster, truth), world)
    took_s, books = time.monotonic() - began_s, outcome.books
    true = {
        spec.job_id + 1: (spec, books.start_ns[row] / S, books.end_ns[row] / S, books.held_halves[row])
        for row, spec in enumerate(specs)
    }
    tally, memory = Tally(), Memory(tap.limits_ns)
    began_s = time.monotonic()
    for number, shot in enumerate(tap.shots):
        judge(shot, number, true, memory, tally, make)
    tally.print(name, len(specs), took_s, time.monotonic() - began_s)


@dataclass(frozen=True)
class Pair:
    """A forecast beside its user's history, in seconds since the job was submitted."""

    low_s: float
    high_s: float
    #: how long it has been there, and when it ended
    age_s: float
    end_s: float
    #: of those of its user's jobs that took longer than that
    history_low_s: float
    history_high_s: float

    @property
    def is_held(self) -> bool:
        """True where it ended in the forecast's range."""
        return self.low_s <= self.end_s <= self.high_s

    def by_history(self, factor: float) -> tuple[float, float, bool]:
        """The history's range with both ends that many times as far, and whether the job ended in it."""
        low_s, high_s = max(self.age_s, self.history_low_s / factor), self.history_high_s * factor
        return low_s, high_s, low_s <= self.end_s <= high_s


@dataclass
class Tally:
    """What came of all forecasts of a workload."""

    ends: list[bool] = field(default_factory=list)
    starts: list[bool] = field(default_factory=list)
    sooner: int = 0
    #: where its user has a history: the forecast, the history and what came of it
    pairs: list[Pair] = field(default_factory=list)
    cycles: int = 0

    def print(self, name: str, jobs: int, took_s: float, foretold_s: float) -> None:
        ends, starts = len(self.ends), "-"
        if self.starts:
            starts = f"{100 * sum(self.starts) / len(self.starts):.0f} %"
        print(
            f"{name}: {jobs} jobs, {ends} forecasts of an end: {_percent(self.ends)} in the range "
            f"({100 * self.sooner / max(1, ends):.0f} % sooner); {len(self.starts)} of a start: {starts} in "
            f"the range; run {took_s:.0f} s, forecasts {foretold_s:.0f} s, {self.cycles} cycles\n"
            f"{compared(self.pairs)}", flush=True,
        )  # fmt: skip


def _percent(held: Sequence[bool]) -> str:
    return f"{100 * sum(held) / max(1, len(held)):.0f} %"


def compared(pairs: Sequence[Pair]) -> str:
    """Say how wide both kinds of ranges are, as they are and where both hold equally often."""
    if not pairs:
        return "  no user has a history"
    own, holds = median(pair.high_s - pair.low_s for pair in pairs) / 3600, [pair.is_held for pair in pairs]
    theirs = [pair.by_history(1.0) for pair in pairs]
    factor = next(
        (2 ** (step / 20) for step in range(400)
         if sum(pair.by_history(2 ** (step / 20))[2] for pair in pairs) >= sum(holds)), float("inf"),
    )  # fmt: skip
    width, equal = (
        median(high_s - low_s for low_s, high_s, _ in found) / 3600
        for found in (theirs, [pair.by_history(factor) for pair in pairs])
    )
    return (
        f"  {len(pairs)} with a history: {_percent(holds)} in the range, median width {own:.2f} h; history: "
        f"{_percent([held for _, _, held in theirs])} in the range, {width:.2f} h ({own / width:.2f}); as "
        f"often as forecasts with its ends {factor:.2f} times as far: {equal:.2f} h ({own / equal:.2f})"
    )


def judge(shot: Shot, number: int, true: dict, memory: Memory, tally: Tally, make: object) -> None:  # type: ignore[type-arg]
    """Forecast from a shot, and compare."""
    at_s = (shot.now_ns - EPOCH_NS) / S
    over = sorted((one for one in true.items() if 0 <= one[1][2] < at_s), key=lambda one: one[1][2])
    past = [
        (job_id, Past(spec.user, spec.model or f"job{spec.job_id}", spec.size, halves // 2 // spec.size))
        for job_id, (spec, _, _, halves) in over
    ]
    memory.heard({job_id: end_s + EPOCH_NS / S for job_id, (_, _, end_s, _) in over})
    history: dict[str, list[float]] = {}
    for _, (spec, _, end_s, _) in over:
        history.setdefault(spec.user, []).append(end_s - spec.submit_ns / S)

    def engine_of() -> Engine:
        engine = Engine.from_json(shot.engine.settings, json.loads(shot.text), Leader(make))  # type: ignore[arg-type]
        engine.decider.is_same_life = engine.state.has_read_slurm = True
        return engine

    lengths = Lengths.of(memory.with_limit(job_id, one) for job_id, one in past)
    def coarser(quantum_ns: int) -> Leader:
        return Leader(partial(gandiva_fair.make, replace(SETTINGS, quantum_ns=quantum_ns)))

    told = forecast(Present(engine_of, shot.now_ns, lengths, coarser=coarser), number, DRAWS)
    corrected = memory.corrected(told, engine_of())
    if "--raw" not in sys.argv:
        told = corrected
    tally.cycles += told.cycles
    for row in told.jobs:
        spec, start_s, end_s, _ = true[row.job_id]
        age_s = at_s - spec.submit_ns / S
        if row.end is None or row.end.low_s is None:
            continue
        low_s, high_s = row.end.low_s - EPOCH_NS / S, (row.end.high_s or 1e12) - EPOCH_NS / S
        tally.ends.append(low_s <= end_s <= high_s)
        tally.sooner += end_s < low_s
        alike = [took_s for took_s in history.get(spec.user, ()) if took_s > age_s]
        if len(alike) >= 3:
            users = range_of(alike)
            since_s = spec.submit_ns / S
            mine = (low_s - since_s, high_s - since_s, age_s, end_s - since_s)
            tally.pairs.append(Pair(*mine, users.low_s or 0.0, users.high_s or 0.0))
        if row.start is not None and start_s > at_s and row.start.high_s:
            tally.starts.append((row.start.low_s or 0) <= start_s + EPOCH_NS / S <= row.start.high_s)


if __name__ == "__main__":
    for each in [name for name in sys.argv[1:] if name != "--raw"] or APART:
        run(each)
