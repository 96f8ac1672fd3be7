"""What slicing costs: two jobs on one GPU, sliced, against the same two one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_checks import NS_PER_S, Span
from gandiva_slurm.mini.demo_jobs import STOP_FILE, DemoJob, home_of, read_steps, submit
from gandiva_slurm.mini.demo_watch import wait_for, wait_until_empty
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes

QUANTUM_S = 5.0
#: How long each job runs alone, and how many turns of both are measured when they share.
ALONE_S = 14.0
ROUNDS = 3
#: A job's first second is not measured: memory and caches fill.
WARM_UP_S = 1.0
DEADLINE_S = 120.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Slicing:
    """Steps per second of each job alone, and of both in the measured window."""

    alone: Mapping[str, float]
    sliced: Mapping[str, int]
    window_s: float

    @property
    def ratio(self) -> float:
        """The time the window's steps take one job after the other, over the time they took sliced."""
        return sum(self.sliced[name] / self.alone[name] for name in self.sliced) / self.window_s


def jobs_of(model: str) -> tuple[DemoJob, DemoJob]:
    """Two single-threaded jobs of the same kind, one a user."""
    return DemoJob("left", "user1", 1, model, 11), DemoJob("right", "user2", 1, model, 12)


def measure(name: str, say: Say) -> Slicing:
    """Bring a cluster with one GPU up, measure, and take it down again."""
    say(f"\n== what slicing costs: two jobs on one GPU, quantum {QUANTUM_S:g} s, alone and shared")
    cluster = MiniCluster.up(MiniSpec(name, parse_nodes("v100:1x1"), QUANTUM_S))
    try:
        pair = jobs_of("mlp")
        # One alone before and one after, so that a machine that slows down does so for both sides.
        alone = {pair[0].name: _rate_alone(cluster, pair[0], say)}
        steps = _run_shared(cluster, pair)
        sliced, window_s = count_in_turns(steps, ROUNDS)
        counts = " + ".join(f"{count} of {job}" for job, count in sliced.items())
        say(f"  both: {counts} steps in {window_s:.1f} s")
        alone |= {pair[1].name: _rate_alone(cluster, pair[1], say)}
    finally:
        cluster.down()
    return Slicing(alone, sliced, window_s)


def _rate_alone(cluster: MiniCluster, job: DemoJob, say: Say) -> float:
    prefix = _start(cluster, job)
    wait_for(lambda: bool(_first_steps(prefix)), f"{job.name} to train", DEADLINE_S)
    time.sleep(ALONE_S)
    _stop(cluster)
    rate = steady_rate(_first_steps(prefix))
    say(f"  {job.name} alone: {rate:.1f} steps a second")
    return rate


def _run_shared(cluster: MiniCluster, pair: Sequence[DemoJob]) -> dict[str, list[Span]]:
    prefixes = {job.name: _start(cluster, job) for job in pair}

    def steps() -> dict[str, list[Span]]:
        return {name: _first_steps(prefix) for name, prefix in prefixes.items()}

    wait_for(lambda: has_turns(steps(), ROUNDS), f"{ROUNDS} turns of both jobs", DEADLINE_S)
    _stop(cluster)
    return steps()


def _start(cluster: MiniCluster, job: DemoJob) -> Path:
    """Submit a job; what an earlier run of it wrote is removed first."""
    prefix = home_of(cluster, job) / job.name
    Path(f"{prefix}.0.steps").unlink(missing_ok=True)
    submit(cluster, job)
    return prefix


def _first_steps(prefix: Path) -> list[Span]:
    return read_steps(prefix, 1)[0]


def _stop(cluster: MiniCluster) -> None:
    cluster.exec(["touch", STOP_FILE])
    wait_until_empty(cluster, DEADLINE_S)
    cluster.exec(["rm", STOP_FILE])


def steady_rate(steps: Sequence[Span]) -> float:
    """Steps per second after the warm-up."""
    counted = [began for began, _ in steps if began >= steps[0][0] + WARM_UP_S * NS_PER_S]
    return (len(counted) - 1) * NS_PER_S / (counted[-1] - counted[0])


def turns_of(steps: Mapping[str, Sequence[Span]]) -> Iterator[tuple[str, int, int]]:
    """(job, when it began, steps in it) of each turn, in order of time."""
    merged = sorted((began, name) for name, spans in steps.items() for began, _ in spans)
    turn: tuple[str, int, int] | None = None
    for began, name in merged:
        if turn is not None and turn[0] == name:
            turn = (name, turn[1], turn[2] + 1)
            continue
        if turn is not None:
            yield turn
        turn = (name, began, 1)
    if turn is not None:
        yield turn


def whole_turns(steps: Mapping[str, Sequence[Span]]) -> list[tuple[str, int, int]]:
    """The turns after both jobs have warmed up: each has had a turn of at least the warm-up before."""
    turns = list(turns_of(steps))
    ends = [began for _, began, _ in turns[1:]]
    warm: set[str] = set()
    for at, (name, began, _) in enumerate(turns):
        if len(warm) == len(steps):
            return turns[at:]
        if at < len(ends) and ends[at] - began >= WARM_UP_S * NS_PER_S:
            warm.add(name)
    return []


def has_turns(steps: Mapping[str, Sequence[Span]], rounds: int) -> bool:
    """True when so many turns of each job have gone by, and the next has begun."""
    return len(whole_turns(steps)) > rounds * len(steps)


def count_in_turns(steps: Mapping[str, Sequence[Span]], rounds: int) -> tuple[dict[str, int], float]:
    """Steps of each job in so many turns of both, and how long they took, switches included."""
    turns = whole_turns(steps)
    chosen, after = turns[: rounds * len(steps)], turns[rounds * len(steps)]
    counts = dict.fromkeys(steps, 0)
    for name, _, count in chosen:
        counts[name] += count
    return counts, (after[1] - chosen[0][1]) / NS_PER_S
