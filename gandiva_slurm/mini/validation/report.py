"""The verdict on a run and its simulation: what both came to, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.mini import demo_checks, demo_verdict
from gandiva_slurm.mini.demo_busy import Usage
from gandiva_slurm.mini.demo_checks import Check
from gandiva_slurm.mini.validation import checks
from gandiva_slurm.mini.validation.checks import Ended
from gandiva_slurm.mini.validation.costs import Costs
from gandiva_slurm.mini.validation.holds import SAVED, Hold
from gandiva_slurm.mini.validation.live import Recorded
from gandiva_slurm.sim.outcome import Outcome

S = 10**9


@dataclass(frozen=True)
class Compared:
    """A run, what it cost, and its simulation."""

    recorded: Recorded
    holds: Sequence[Hold]
    costs: Costs
    outcome: Outcome
    #: mean completion times of simulations with costs that are a little off, seconds
    others_s: Sequence[float]

    @property
    def real(self) -> list[Ended]:
        """What became of the jobs on the mini cluster, by the nodes' event logs."""
        first_ns = min(self.recorded.submitted_ns.values())
        return [self._real(job.name, job.user, first_ns) for job in self.recorded.jobs]

    def _real(self, name: str, user: str, first_ns: int) -> Ended:
        mine = [hold for hold in self.holds if hold.name == name]
        submit_ns = self.recorded.submitted_ns[name]
        end_ns = max((hold.t1_ns for hold in mine), default=submit_ns)
        gpu_ns = sum((hold.t1_ns - hold.t0_ns) * len(hold.gpus) for hold in mine)
        return Ended(name, user, (submit_ns - first_ns) / S, (end_ns - first_ns) / S, gpu_ns / S)

    @property
    def simulated(self) -> list[Ended]:
        """The same in the simulation."""
        return simulated_ends(self.outcome)

    @property
    def moves(self) -> int:
        """How often a job saved itself and went on elsewhere."""
        return sum(hold.end == SAVED for hold in self.holds)


def simulated_ends(outcome: Outcome) -> list[Ended]:
    """What became of the jobs of a simulation."""
    books = outcome.books
    return [
        Ended(spec.name, spec.user, spec.submit_ns / S, end_ns / S, halves / 2 / S)
        for spec, end_ns, halves in zip(books.specs, books.end_ns, books.held_halves, strict=True)
    ]


def report_of(compared: Compared, usage: Usage, left: Sequence[str]) -> dict[str, Any]:
    """Check everything; the shape of --json. `left`: sentences about what the cluster left behind."""
    recorded, real, simulated = compared.recorded, compared.real, compared.simulated
    verdict = [
        checks.check_ends(recorded.states),
        checks.check_steps(recorded.jobs, recorded.steps),
        checks.check_moves(compared.moves, compared.outcome.counts["migrations"]),
        demo_checks.check_left(left),
        checks.check_jct(real, simulated),
        checks.check_shares(real, simulated),
        checks.check_order(real, simulated),
    ]
    words = [word_of(check, usage) for check in verdict]
    return {
        "version": 1,
        "ok": demo_verdict.FAILED not in words,
        "not_judged": [
            check.name for check, word in zip(verdict, words, strict=True) if word == demo_verdict.NOT_JUDGED
        ],
        "outside": round(usage.outside, 4),
        "ours": round(usage.ours_s / usage.whole_s, 4) if usage.whole_s else 0.0,
        "busy": usage.is_busy,
        "costs": _costs_row(compared.costs),
        "simulated_mean_jct_s_with_costs_off": [round(each, 2) for each in compared.others_s],
        "moves": compared.moves,
        "turns": len(compared.holds),
        "jobs": [_job_row(compared, *pair) for pair in zip(real, simulated, strict=True)],
        "checks": [
            dataclasses.asdict(check) | {"verdict": word} for check, word in zip(verdict, words, strict=True)
        ],
    }


def word_of(check: Check, usage: Usage) -> str:
    """OK or FAILED; what another load changes is not judged where it fails on a busy machine."""
    if check.ok:
        return demo_verdict.OK
    return demo_verdict.NOT_JUDGED if check.of_time and usage.is_busy else demo_verdict.FAILED


def _costs_row(costs: Costs) -> dict[str, Any]:
    steps = {f"{kind} x {gpus}": round(step_s, 5) for (kind, gpus), step_s in costs.steps_s.items()}
    row = {
        name: round(value, 4) for name, value in dataclasses.asdict(costs).items() if isinstance(value, float)
    }
    return row | {"steps_s": steps, "counts": dict(costs.counts)}


def _job_row(compared: Compared, real: Ended, simulated: Ended) -> dict[str, Any]:
    job = next(each for each in compared.recorded.jobs if each.name == real.name)
    mine = [hold for hold in compared.holds if hold.name == real.name]
    return {
        "name": real.name,
        "user": real.user,
        "gpus": job.gpus,
        "gpu_type": job.gpu_type,
        "submit_s": round(real.submit_s, 2),
        "end_s": round(real.end_s, 2),
        "simulated_end_s": round(simulated.end_s, 2),
        "gpu_s": round(real.gpu_s, 2),
        "simulated_gpu_s": round(simulated.gpu_s, 2),
        "turns": len(mine),
        "moves": sum(hold.end == SAVED for hold in mine),
    }


def lines_of(report: Mapping[str, Any], usage: Usage) -> Iterator[str]:
    """The verdict as people read it."""
    costs, counts = report["costs"], report["costs"]["counts"]
    yield "== measured on the mini cluster, and told to the simulator"
    yield (
        f"        Slurm starts a job in {costs['slurm_s']:.2f} s ({counts['slurm']} starts); PyTorch is "
        f"loaded in {costs['load_s']:.2f} s ({counts['load']}), a checkpoint with it in "
        f"{costs['reload_s']:.2f} s ({counts['reload']})"
    )
    yield (
        f"        a save holds the GPUs for {costs['save_s']:.2f} s more, an end {costs['exit_s']:.2f} s, a "
        f"change of hands {1000 * costs['switch_s']:.0f} ms ({counts['resume']}); from an end to the next "
        f"turn {costs['look_s']:.2f} s ({counts['look']})"
    )
    yield f"        a mini-batch, seconds: {', '.join(f'{k}: {v:.4f}' for k, v in costs['steps_s'].items())}"
    others_s = report["simulated_mean_jct_s_with_costs_off"]
    if others_s:
        yield (
            f"        with one cost 5 % off the simulation comes to a mean completion time of "
            f"{min(others_s):.1f} to {max(others_s):.1f} s"
        )
    yield "== verdict"
    yield from demo_verdict.check_lines(report)
    yield f"        the clusters' own processes used {100 * report['ours']:.0f} % of the processors"
    yield f"        machine {usage}"
    yield demo_verdict.last_line(report)
