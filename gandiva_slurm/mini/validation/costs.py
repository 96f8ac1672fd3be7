"""What things cost on the mini cluster, measured in the run that is compared; pure functions of its record.

Each figure is a mean, but that of mini-batches a hold of GPUs is from `grant` to `release` (`holds`):

- *look*: a job has ended and its GPU is free, until another that lives there is granted it
- *slurm*: the controller asks for a start, until the job's first task has its GPUs
- *load*: a first start holds its GPUs, until its first mini-batch begins: PyTorch is loaded
- *reload*: the same of one that was moved: its checkpoint is loaded, too
- *exit*: the last mini-batch of a job has ended, until its GPUs are released
- *save*: what is held without a mini-batch so that a job can leave
- *told*: a job has saved itself, until its next mini-batch begins: what the engine takes a move for
- *switch*: what a turn is held before its first mini-batch begins, and after its last one
- *steps*: from one mini-batch to the next within a turn, by GPU type and number of GPUs
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gandiva_slurm.mini.validation.holds import ENDED, PARKED, SAVED, Hold
from gandiva_slurm.mini.validation.live import Recorded

S = 10**9


@dataclass(frozen=True)
class Costs:
    """All that the simulation is told, seconds; `counts` says of how many each is the mean."""

    look_s: float
    slurm_s: float
    load_s: float
    reload_s: float
    exit_s: float
    save_s: float
    told_s: float
    switch_s: float
    #: a mini-batch, by GPU type and number of GPUs
    steps_s: Mapping[tuple[str, int], float]
    counts: Mapping[str, int]

    @property
    def start_s(self) -> float:
        """What a job holds its GPUs without a mini-batch once: for its first start, and its end."""
        return self.load_s + self.exit_s

    @property
    def move_s(self) -> float:
        """The same for each move."""
        return self.save_s + self.reload_s

    def step_s(self, gpu_type: str, gpus: int) -> float:
        """A mini-batch on this number of GPUs; on any number of the type where that was not trained."""
        of_type = [step_s for (name, _), step_s in self.steps_s.items() if name == gpu_type]
        return self.steps_s.get((gpu_type, gpus)) or fmean(of_type)


def measure(recorded: Recorded, holds: Sequence[Hold], types: Mapping[str, str]) -> Costs:
    """Take all costs from a run; `types`: the GPU type of each node."""
    samples = {
        "look": [*_looks(holds)],
        "slurm": [*_starts(recorded, holds)],
        "load": [hold.head_ns for hold in holds if hold.is_first and not hold.restart],
        "reload": [hold.head_ns for hold in holds if hold.is_first and hold.restart],
        "exit": [hold.tail_ns for hold in holds if hold.end == ENDED and hold.steps],
        # One that was parked has a turn for it, in which it trains for a moment or not at all.
        "save": [h.tail_ns + (0 if h.is_first else h.head_ns) for h in holds if h.end == SAVED],
        "told": [*_moves(holds)],
        "resume": [h.head_ns for h in holds if not h.is_first and h.steps and h.end != SAVED],
        "park": [hold.tail_ns for hold in holds if hold.end == PARKED and hold.steps],
    }
    means = {name: fmean(values) / S if values else 0.0 for name, values in samples.items()}
    switch_s = means.pop("resume") + means.pop("park")
    return Costs(
        **{f"{name}_s": value for name, value in means.items()},
        switch_s=switch_s,
        steps_s=step_times(holds, types),
        counts={name: len(values) for name, values in samples.items()},
    )


def step_times(holds: Iterable[Hold], types: Mapping[str, str]) -> dict[tuple[str, int], float]:
    """Return what a mini-batch took, by GPU type and number of GPUs, seconds."""
    found: dict[tuple[str, int], list[int]] = {}
    for hold in holds:
        times = found.setdefault((types[hold.node], len(hold.gpus)), [])
        times += [later.began_ns - step.began_ns for step, later in itertools.pairwise(hold.steps)]
    return {key: fmean(values) / S for key, values in sorted(found.items()) if values}


def _starts(recorded: Recorded, holds: Iterable[Hold]) -> Iterator[int]:
    """Yield how long each start took, from the engine's action to the GPUs."""
    asked = {(job_id, restart): at_ns for kind, job_id, restart, at_ns in recorded.actions if kind == "Start"}
    for hold in holds:
        at_ns = asked.get((recorded.ids[hold.name], hold.restart))
        if hold.is_first and at_ns is not None:
            yield hold.t0_ns - at_ns


def _looks(holds: Sequence[Hold]) -> Iterator[int]:
    """Yield how long a GPU stood idle from a job's end until one that lives there was granted it."""
    for ended in holds:
        later = [hold for hold in holds if hold.t0_ns >= ended.t1_ns and _meet(hold, ended)]
        if ended.end == ENDED and later and _lived(later[0], holds, ended.t1_ns):
            yield later[0].t0_ns - ended.t1_ns


def _meet(one: Hold, other: Hold) -> bool:
    return one.node == other.node and not set(one.gpus).isdisjoint(other.gpus)


def _lived(hold: Hold, holds: Iterable[Hold], at_ns: int) -> bool:
    """True when its job was parked there by then."""
    run = (hold.name, hold.restart)
    before = [each.t1_ns for each in holds if (each.name, each.restart) == run and each.t0_ns < hold.t0_ns]
    return bool(before) and max(before) <= at_ns


def _moves(holds: Sequence[Hold]) -> Iterator[int]:
    """Yield how long each move took, from saved to the next mini-batch."""
    for saved in holds:
        later = [hold for hold in holds if hold.name == saved.name and hold.restart > saved.restart]
        if saved.end == SAVED and later and later[0].steps:
            yield later[0].steps[0].began_ns - saved.t1_ns
