"""Users with 1, 10 and 100 jobs and equal tickets: GPU time is the users', not the jobs'."""

from collections.abc import Iterable

import pytest

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.policy.shares.associations import entitled_shares
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from tests.sim.mixed import S, Watched, settings

QUANTUM_S = 60
#: No job ends while anybody looks.
LENGTH_S = 60 * QUANTUM_S
JOBS = {"one": 1, "ten": 10, "hundred": 100}


def crowd(sizes: Iterable[int], late: str = "", late_s: int = 0) -> list[Spec]:
    """Users of 1, 10 and 100 jobs, with these sizes in turn; one of them may come later."""
    wanted = list(sizes)
    specs = []
    for user, count in JOBS.items():
        for number in range(count):
            at_ns = late_s * S if user == late else 0
            size = wanted[number % len(wanted)]
            specs.append(Spec(len(specs), f"{user}-{number}", user, size, at_ns, length_ns=LENGTH_S * S))
    return sorted(specs, key=lambda spec: (spec.submit_ns, spec.job_id))


def held(specs: list[Spec], gpus: int, until_quanta: int, from_quanta: int = 0) -> dict[str, float]:
    """GPU-quanta of each user between two moments."""
    watched = Watched(gandiva_fair.make(settings(QUANTUM_S)))
    simulate(Scene(specs, Cluster([("v100", 4)] * (gpus // 4)), Homogeneous()), watched)
    begun, ended = (watched.gpu_s_until(quanta * QUANTUM_S) for quanta in (from_quanta, until_quanta))
    return {user: (ended.get(user, 0.0) - begun.get(user, 0.0)) / QUANTUM_S for user in JOBS}


def entitled(specs: list[Spec], gpus: int) -> dict[str, float]:
    """GPUs of each user: equal tickets, never above demand, the rest shared on."""
    demand = dict.fromkeys(JOBS, 0)
    for spec in specs:
        demand[spec.user] += spec.size
    shares = entitled_shares(dict.fromkeys(JOBS, 1), demand, gpus)
    return {user: float(share) for user, share in shares.items()}


@pytest.mark.parametrize(("gpus", "want"), [(8, (1, 3.5, 3.5)), (36, (1, 10, 25))])
def test_jobs_of_one_gpu_after_twenty_quanta(gpus: int, want: tuple[float, ...]) -> None:
    specs = crowd([1])
    assert tuple(entitled(specs, gpus).values()) == pytest.approx(want)
    got = held(specs, gpus, 20)
    for user, due in zip(JOBS, want, strict=True):
        assert got[user] == pytest.approx(20 * due, rel=0.01), user


@pytest.mark.parametrize("gpus", [8, 36])
def test_gangs_after_fifty_quanta(gpus: int) -> None:
    specs = crowd([1, 2, 4])
    due = entitled(specs, gpus)
    got = held(specs, gpus, 50)
    for user in JOBS:
        assert got[user] == pytest.approx(50 * due[user], rel=0.02, abs=4), (user, got, due)


@pytest.mark.parametrize("late", JOBS)
@pytest.mark.parametrize("gpus", [8, 36])
def test_whoever_comes_later_has_his_share_from_then_on(gpus: int, late: str) -> None:
    specs = crowd([1], late, late_s=30 * QUANTUM_S)
    due = entitled(specs, gpus)
    got = held(specs, gpus, 40, from_quanta=30)
    for user in JOBS:
        assert got[user] == pytest.approx(10 * due[user], rel=0.02, abs=4), (user, got, due)
