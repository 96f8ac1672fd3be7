"""What slicing costs: two jobs on one GPU that take turns, against the same two with nothing in between.

The speed of a machine's own steps drifts by several per cent within a minute, also of a quiet one: what a
step takes is compared within a turn, where nothing but the change of hands differs. How fast the two are
when they are alone is told beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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
class Turn:
    """A job's steps in one of its turns: when each began, nanoseconds."""

    name: str
    began_ns: Sequence[int]

    @property
    def rate(self) -> float:
        """Steps per second once it has warmed up; 0: it had no time for that."""
        warm = [began for began in self.began_ns if began >= self.began_ns[0] + WARM_UP_S * NS_PER_S]
        return (len(warm) - 1) * NS_PER_S / (warm[-1] - warm[0]) if len(warm) > 1 else 0.0


@dataclass(frozen=True)
class Slicing:
    """Steps per second of each job alone, and what both did in the measured window."""

    alone: Mapping[str, float]
    turns: Sequence[Turn]
    #: from the first turn's begin to the begin of the one after the last
    window_s: float
    #: the least part of a processor that steps got, alone or shared
    quiet: float

    @property
    def ratio(self) -> float:
        """The time the window's steps take at each turn's own speed, over the time they took.

        What is lost is in it: from a turn's last step to the next turn's first, and by slower steps in the
        second after that.
        """
        return sum(len(turn.began_ns) / turn.rate for turn in self.turns if turn.rate) / self.window_s

    @property
    def beside_alone(self) -> float:
        """The time the window's steps take one job after the other, over the time they took sliced."""
        return sum(len(turn.began_ns) / self.alone[turn.name] for turn in self.turns) / self.window_s

    def __str__(self) -> str:
        alone = ", ".join(f"{name} {rate:.1f}" for name, rate in self.alone.items())
        counts = {name: sum(len(t.began_ns) for t in self.turns if t.name == name) for name in self.alone}
        sliced = " + ".join(f"{count} of {name}" for name, count in counts.items())
        return (
            f"alone: {alone} steps a second; sliced: {sliced} steps in {self.window_s:.1f} s, "
            f"{self.beside_alone:.3f} of that with this machine's own drift, {self.ratio:.3f} without"
        )


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

    # To look is to compute, and the jobs alone were not looked at: not before the turns can be over.
    time.sleep((2 * ROUNDS + 2) * QUANTUM_S)
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
    turns, window_s = in_window(steps, ROUNDS)
    rates = {name: Turn(name, [began for began, _, _ in spans]).rate for name, spans in alone.items()}
    return Slicing(rates, turns, window_s, min(map(processor_share, (*alone.values(), shared))))


def processor_share(steps: Sequence[Step]) -> float:
    """How much of a processor the steps got while they ran."""
    return sum(cpu for _, _, cpu in steps) / sum(ended - began for began, ended, _ in steps)


def turns_of(steps: Mapping[str, Sequence[Step]]) -> list[Turn]:
    """Return the turns of all jobs, in order of time."""
    merged = sorted((began, name) for name, spans in steps.items() for began, _, _ in spans)
    by_turn = groupby(merged, key=lambda step: step[1])
    return [Turn(name, [began for began, _ in turn]) for name, turn in by_turn]


def whole_turns(steps: Mapping[str, Sequence[Step]]) -> list[Turn]:
    """The turns after both jobs have warmed up: each has had a turn of at least the warm-up before."""
    turns = turns_of(steps)
    warm: set[str] = set()
    for at, turn in enumerate(turns):
        if len(warm) == len(steps):
            return turns[at:]
        if at + 1 < len(turns) and turns[at + 1].began_ns[0] - turn.began_ns[0] >= WARM_UP_S * NS_PER_S:
            warm.add(turn.name)
    return []


def has_turns(steps: Mapping[str, Sequence[Step]], rounds: int) -> bool:
    """True when so many turns of each job have gone by, and the next has begun."""
    return len(whole_turns(steps)) > rounds * len(steps)


def in_window(steps: Mapping[str, Sequence[Step]], rounds: int) -> tuple[list[Turn], float]:
    """Return `rounds` turns of each job, and the seconds they took, switches included."""
    turns = whole_turns(steps)
    chosen, after = turns[: rounds * len(steps)], turns[rounds * len(steps)]
    return chosen, (after.began_ns[0] - chosen[0].began_ns[0]) / NS_PER_S
