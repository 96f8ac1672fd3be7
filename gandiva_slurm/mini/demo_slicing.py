"""What slicing costs: two jobs on one GPU, sliced, against the same two one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_checks import NS_PER_S
from gandiva_slurm.mini.demo_jobs import STOP_FILE, DemoJob, home_of, read_timed_steps, submit
from gandiva_slurm.mini.demo_watch import wait_for

QUANTUM_S = 5.0
#: How long each job runs alone, and how many turns of both are measured when they share.
ALONE_S = 14.0
ROUNDS = 3
#: A job's first second is not measured: memory and caches fill.
WARM_UP_S = 1.0
#: Where steps got less of a processor than this, something else ran on this machine, and nothing can be said.
QUIET = 0.97
ATTEMPTS = 2
DEADLINE_S = 120.0

LEFT, RIGHT = DemoJob("left", "user1", 1, "mlp", 11), DemoJob("right", "user2", 1, "mlp", 12)

Say = Callable[[str], None]
#: (began, ended, processor time), nanoseconds
Step = tuple[int, int, int]


@dataclass(frozen=True)
class Slicing:
    """Steps per second of each job alone, and what both did in the measured window."""

    alone: Mapping[str, float]
    sliced: Mapping[str, int]
    window_s: float
    #: the least part of a processor that steps got, alone or shared
    quiet: float

    @property
    def ratio(self) -> float:
        """The time the window's steps take one job after the other, over the time they took sliced."""
        return sum(self.sliced[name] / self.alone[name] for name in self.sliced) / self.window_s

    def __str__(self) -> str:
        alone = ", ".join(f"{name} {rate:.1f}" for name, rate in self.alone.items())
        sliced = " + ".join(f"{count} of {name}" for name, count in self.sliced.items())
        return f"alone: {alone} steps a second; sliced: {sliced} steps in {self.window_s:.1f} s"


def measure(cluster: MiniCluster, say: Say) -> Slicing:
    """Measure on a cluster with one GPU, whose quantum is `QUANTUM_S`."""
    say(f"two jobs on one GPU, quantum {QUANTUM_S:g} s, alone and shared")
    for attempt in range(1, ATTEMPTS + 1):
        slicing = _run(cluster)
        say(f"  {slicing}")
        if slicing.quiet >= QUIET or attempt == ATTEMPTS:
            break
        percent = f"{100 * slicing.quiet:.0f} %"
        say(f"  something else runs here (steps got {percent} of a processor): once more")
    return slicing


def _run(cluster: MiniCluster) -> Slicing:
    """left alone, then both, then right alone: what slows the machine down for a while slows both sides."""
    left = _start(cluster, LEFT)
    wait_for(lambda: bool(read_timed_steps(left)), "left to train", DEADLINE_S)
    time.sleep(ALONE_S)
    joined_ns = time.monotonic_ns()
    right = _start(cluster, RIGHT)

    def steps() -> dict[str, list[Step]]:
        return {LEFT.name: read_timed_steps(left), RIGHT.name: read_timed_steps(right)}

    wait_for(lambda: has_turns(steps(), ROUNDS), f"{ROUNDS} turns of both jobs", DEADLINE_S)
    _stop(cluster, LEFT)
    left_ns = time.monotonic_ns()
    time.sleep(ALONE_S)
    _stop(cluster, RIGHT)
    return evaluate(steps(), joined_ns, left_ns)


def _start(cluster: MiniCluster, job: DemoJob) -> Path:
    """Submit a job; what an earlier run of it wrote is removed first."""
    prefix = home_of(cluster, job) / job.name
    Path(f"{prefix}.0.steps").unlink(missing_ok=True)
    submit(cluster, job, f"{STOP_FILE}-{job.name}")
    return prefix


def _stop(cluster: MiniCluster, job: DemoJob) -> None:
    cluster.exec(["touch", f"{STOP_FILE}-{job.name}"])
    here = ["squeue", "-h", "-u", job.user]
    wait_for(lambda: not cluster.exec(here).stdout.strip(), f"{job.name} to end", DEADLINE_S)
    cluster.exec(["rm", f"{STOP_FILE}-{job.name}"])


def evaluate(steps: Mapping[str, Sequence[Step]], joined_ns: int, left_ns: int) -> Slicing:
    """Compare the turns of both with left's steps before right joined, and right's after left had left."""
    alone = {
        LEFT.name: [step for step in steps[LEFT.name] if step[0] < joined_ns],
        RIGHT.name: [step for step in steps[RIGHT.name] if step[0] >= left_ns],
    }
    shared = [step for spans in steps.values() for step in spans if joined_ns <= step[0] < left_ns]
    counts, window_s = count_in_turns(steps, ROUNDS)
    rates = {name: steady_rate(spans) for name, spans in alone.items()}
    return Slicing(rates, counts, window_s, min(map(processor_share, (*alone.values(), shared))))


def processor_share(steps: Sequence[Step]) -> float:
    """How much of a processor the steps got while they ran."""
    return sum(cpu for _, _, cpu in steps) / sum(ended - began for began, ended, _ in steps)


def steady_rate(steps: Sequence[Step]) -> float:
    """Steps per second after the warm-up."""
    counted = [began for began, _, _ in steps if began >= steps[0][0] + WARM_UP_S * NS_PER_S]
    return (len(counted) - 1) * NS_PER_S / (counted[-1] - counted[0])


def turns_of(steps: Mapping[str, Sequence[Step]]) -> Iterator[tuple[str, int, int]]:
    """(job, when it began, steps in it) of each turn, in order of time."""
    merged = sorted((began, name) for name, spans in steps.items() for began, _, _ in spans)
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


def whole_turns(steps: Mapping[str, Sequence[Step]]) -> list[tuple[str, int, int]]:
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


def has_turns(steps: Mapping[str, Sequence[Step]], rounds: int) -> bool:
    """True when so many turns of each job have gone by, and the next has begun."""
    return len(whole_turns(steps)) > rounds * len(steps)


def count_in_turns(steps: Mapping[str, Sequence[Step]], rounds: int) -> tuple[dict[str, int], float]:
    """Steps of each job in so many turns of both, and how long they took, switches included."""
    turns = whole_turns(steps)
    chosen, after = turns[: rounds * len(steps)], turns[rounds * len(steps)]
    counts = dict.fromkeys(steps, 0)
    for name, _, count in chosen:
        counts[name] += count
    return counts, (after[1] - chosen[0][1]) / NS_PER_S
