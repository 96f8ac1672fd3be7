"""Users of one cluster of equal GPUs: GPU time is the users', not the jobs' (Gandiva_fair, fair share)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, PolicySettings
from gandiva_slurm.policy.shares import entitled_shares
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.paper.result import Row, Setup
from gandiva_slurm.sim.paper.watched import Watched
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous

QUANTUM_S, QUANTA = 60, 20
#: Users by the sizes of their jobs, four GPUs to a server.
CASES: Sequence[tuple[str, int, Mapping[str, Sequence[int]]]] = (
    ("two 4-GPU users and a 2-GPU job", 8, {"A": [2, 2], "B": [2, 2], "C": [2]}),
    ("1, 10 and 100 jobs of 1 GPU", 8, {"one": [1], "ten": [1] * 10, "hundred": [1] * 100}),
    ("1, 10 and 100 jobs of 1 GPU", 36, {"one": [1], "ten": [1] * 10, "hundred": [1] * 100}),
)
_S = 10**9


def run(setup: Setup) -> list[Row]:
    """Run each case, and count GPUs held by user over the first twenty quanta."""
    rows = []
    for done, (title, gpus, users) in enumerate(CASES, 1):
        got = _gpus_held(gpus, users)
        due = entitled_shares(
            dict.fromkeys(users, 1), {user: sum(sizes) for user, sizes in users.items()}, gpus
        )
        rows += [
            Row(f"{title} on {gpus}: {user}", round(got[user], 3), round(float(due[user]), 3), "GPUs", _NOTE)
            for user in users
        ]
        setup.tell(done, len(CASES))
    return rows


_NOTE = "its rule: equal shares, none above demand, the rest handed on"


def _gpus_held(gpus: int, users: Mapping[str, Sequence[int]]) -> dict[str, float]:
    length_ns = (QUANTA + 1) * QUANTUM_S * _S
    jobs = [(user, size) for user, sizes in users.items() for size in sizes]
    specs = [Spec(n, str(n), user, size, 0, length_ns, can_pack=False) for n, (user, size) in enumerate(jobs)]
    watched = Watched(gandiva_fair.make(PolicySettings(QUANTUM_S * _S)))
    simulate(Scene(specs, Cluster([("p100", 4)] * (gpus // 4)), Homogeneous()), watched)
    held = watched.gpu_s_until(QUANTA * QUANTUM_S)
    return {user: held.get(user, 0.0) / (QUANTA * QUANTUM_S) for user in users}
