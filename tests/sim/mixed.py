"""The mixed cluster on which published schedulers were compared: 12 V100, 12 P100, 12 K80, four to a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from gandiva_slurm.policy.port import Policy, PolicySettings
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.outcome import Outcome, percentile
from gandiva_slurm.sim.paper.watched import Watched
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Truth
from gandiva_slurm.sim.workloads.load import Source, load
from gandiva_slurm.sim.world import Costs

DATA = Path(__file__).parent.parent / "data/gavel"
CLUSTER = read_cluster("v100:3x4,p100:3x4,k80:3x4")
S = 10**9
#: W1: 200 jobs arrive by chance, 20 of 36 GPUs busy: it tells whether types are chosen well.
#: W1c: 100 jobs at once, four times too many: it tells whether packing works.
W1, W1C = "gavel_poisson200_s0", "gavel_static100_s20"


@cache
def workload(name: str, users: int = 4) -> tuple[list[Spec], Truth]:
    """The jobs of four users, dealt out by row, and what is true of them."""
    throughputs = DATA / "simulation_throughputs.json.xz"
    return load(Source(DATA / f"{name}.trace", "gavel", throughputs, users), CLUSTER)


def settings(quantum_s: float = 60, switch_s: float = 0, restart_s: float = 0) -> PolicySettings:
    """What a policy is told."""
    return PolicySettings(round(quantum_s * S), round(switch_s * S), round(restart_s * S))


def run(
    name: str, make: Callable[[PolicySettings], Policy], told: PolicySettings | None = None
) -> tuple[Outcome, Watched]:
    """Run a workload on the mixed cluster, with every invariant checked."""
    specs, truth = workload(name)
    told = told or settings()
    watched = Watched(make(told))
    costs = Costs(told.switch_ns, told.restart_ns)
    return simulate(Scene(specs, CLUSTER, truth, costs, is_checked=True), watched), watched


def jct_s(outcome: Outcome) -> dict[int, float]:
    """Completion time of every job."""
    books = outcome.books
    return {s.job_id: (books.end_ns[row] - s.submit_ns) / S for row, s in enumerate(books.specs)}


def mean_jct_s(outcome: Outcome) -> float:
    """The mean of them."""
    every = jct_s(outcome)
    return sum(every.values()) / len(every)


def rho_of_users(outcome: Outcome) -> dict[str, float]:
    """Finish-time fairness by user: mean completion time over the mean alone on a fluid quarter."""
    times, mine = jct_s(outcome), {}
    for spec in outcome.books.specs:
        mine.setdefault(spec.user, []).append(spec.job_id)
    return {
        user: sum(times[job] for job in jobs) / sum(outcome.isolated_s[job] for job in jobs)
        for user, jobs in mine.items()
    }


def rho_of_jobs(outcome: Outcome) -> tuple[float, float]:
    """Finish-time fairness of jobs: the 99th percentile, and the worst."""
    rho = sorted(time / outcome.isolated_s[job] for job, time in jct_s(outcome).items())
    return percentile(rho, 99), rho[-1]
