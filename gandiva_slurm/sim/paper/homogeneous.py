"""Users of one cluster of equal GPUs: GPU time is the users', not the jobs' (Gandiva_fair, fair share)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, PolicySettings
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.paper.result import Row, Setup, published
from gandiva_slurm.sim.paper.watched import Watched
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous

QUANTUM_S, QUANTA = 60, 20
_S = 10**9


def run(setup: Setup) -> list[Row]:
    """Run each case, and count GPUs held by user over the first twenty quanta."""
    cases = published("gandiva_fair")["fair_share"]
    rows = []
    for done, case in enumerate(cases, 1):
        got = _gpus_held(case["gpus"], case["jobs"])
        title = f"{case['title']} on {case['gpus']}"
        rows += [
            Row(f"{title}: {user}", round(got[user], 3), due, "GPUs", _NOTE)
            for user, due in case["due"].items()
        ]
        setup.tell(done, len(cases))
    return rows


_NOTE = "the paper's rule: equal, none above demand, the rest handed on"


def _gpus_held(gpus: int, users: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return what each user holds in the mean; he has so many jobs of so many GPUs, four GPUs to a node."""
    length_ns = (QUANTA + 1) * QUANTUM_S * _S
    jobs = [(user, size) for user, (count, size) in users.items() for _ in range(count)]
    specs = [Spec(n, str(n), user, size, 0, length_ns, can_pack=False) for n, (user, size) in enumerate(jobs)]
    watched = Watched(gandiva_fair.make(PolicySettings(QUANTUM_S * _S)))
    simulate(Scene(specs, Cluster([("p100", 4)] * (gpus // 4)), Homogeneous()), watched)
    held = watched.gpu_s_until(QUANTA * QUANTUM_S)
    return {user: held.get(user, 0.0) / (QUANTA * QUANTUM_S) for user in users}
