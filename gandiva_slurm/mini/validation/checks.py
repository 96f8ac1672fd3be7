"""What the mini cluster and the simulator must agree on, as functions of what both came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean

from gandiva_slurm.mini.demo_checks import Check
from gandiva_slurm.mini.validation.live import Step
from gandiva_slurm.mini.validation.plan import PacedJob

#: The simulated mean completion time over the real one, and the GPU time of each user, within these of 1.
JCT_TOLERANCE = 0.03
SHARE_TOLERANCE = 0.02
#: Ends, from the first submission on, further apart than this part of the sooner one keep their order.
APART = 0.05
LEAST_MOVES = 3


@dataclass(frozen=True)
class Ended:
    """What became of a job: seconds after the first submission, and the GPU time that it held."""

    name: str
    user: str
    submit_s: float
    end_s: float
    gpu_s: float

    @property
    def jct_s(self) -> float:
        """Its completion time."""
        return self.end_s - self.submit_s


def check_ends(states: Mapping[str, str]) -> Check:
    """Every job has completed."""
    bad = [f"{name} {state}" for name, state in states.items() if state != "COMPLETED"]
    text = f"{len(states) - len(bad)} of {len(states)} jobs COMPLETED"
    return Check("ends", not bad, ", ".join([text, *bad]))


def check_steps(jobs: Sequence[PacedJob], steps: Mapping[str, Sequence[Step]]) -> Check:
    """Every job has done each of its mini-batches once, in order, on whatever nodes."""
    wrong = [job.name for job in jobs if [step.number for step in steps[job.name]] != [*range(job.steps)]]
    done = sum(len(each) for each in steps.values())
    return Check("mini-batches", not wrong, ", ".join([f"{done} done, each once", *wrong]) if not wrong else
                 f"done twice, left out or out of order: {', '.join(wrong)}")  # fmt: skip


def check_moves(moves: int, simulated: int) -> Check:
    """Jobs went on on other GPUs, from their checkpoints; there are fewer where they cost more."""
    text = f"{moves} on the mini cluster, {simulated} in the simulation"
    return Check("moves", moves >= LEAST_MOVES, text, f"at least {LEAST_MOVES}", of_time=True)


def check_jct(real: Sequence[Ended], simulated: Sequence[Ended]) -> Check:
    """The mean completion times are alike."""
    real_s, simulated_s = (fmean(job.jct_s for job in jobs) for jobs in (real, simulated))
    off = simulated_s / real_s - 1
    text = f"{real_s:.1f} s real, {simulated_s:.1f} s simulated ({100 * off:+.1f} %)"
    limit = f"within {100 * JCT_TOLERANCE:g} %"
    return Check("mean completion time", abs(off) <= JCT_TOLERANCE, text, limit, of_time=True)


def shares(jobs: Sequence[Ended]) -> dict[str, float]:
    """Each user's part of all GPU time."""
    total = sum(job.gpu_s for job in jobs) or 1.0
    return {
        user: sum(job.gpu_s for job in jobs if job.user == user) / total
        for user in sorted({job.user for job in jobs})
    }


def check_shares(real: Sequence[Ended], simulated: Sequence[Ended]) -> Check:
    """Each user has the same part of the GPU time."""
    both = [(user, share, shares(simulated).get(user, 0.0)) for user, share in shares(real).items()]
    off = max(abs(there / here - 1) if here else 1.0 for _, here, there in both)
    text = ", ".join(f"{user} {100 * here:.2f} % and {100 * there:.2f} %" for user, here, there in both)
    limit = f"within {100 * SHARE_TOLERANCE:g} % of each other"
    return Check("shares, real and simulated", off <= SHARE_TOLERANCE, text, limit, of_time=True)


def swapped(real: Sequence[Ended], simulated: Sequence[Ended]) -> Iterator[tuple[str, str]]:
    """Yield pairs of jobs of which the first ended well before the second in the simulation alone."""
    real_s = {job.name: job.end_s for job in real}
    for one, other in permutations(simulated, 2):
        is_apart = other.end_s > one.end_s * (1 + APART)
        if is_apart and real_s[one.name] >= real_s[other.name]:
            yield one.name, other.name


def check_order(real: Sequence[Ended], simulated: Sequence[Ended]) -> Check:
    """Jobs end in the same order, where their ends lie apart."""
    wrong = [*swapped(real, simulated)]
    apart = sum(other.end_s > one.end_s * (1 + APART) for one, other in permutations(simulated, 2))
    pairs = ", ".join(f"{one} before {other}" for one, other in wrong)
    text = f"{apart - len(wrong)} of {apart} pairs" + (f"; not: {pairs}" if pairs else "")
    return Check("order of ends", not wrong, text, f"of ends more than {100 * APART:g} % apart", of_time=True)
