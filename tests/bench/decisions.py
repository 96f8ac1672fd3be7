"""One decision on a large cluster: a policy's processor time."""

from __future__ import annotations

import random
import time

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, JobView, Policy, PolicySettings, View

USERS, MODELS = 50, 26
S = 10**9


class Table:
    """Rates by chance, the same for the same question."""

    def __init__(self, draw: random.Random) -> None:
        factor = {"v100": 3, "p100": 2, "k80": 1}
        self._alone = {(str(m), t): f * draw.uniform(1, 10) for m in range(MODELS) for t, f in factor.items()}
        pairs = [(a, b, t) for a in range(MODELS) for b in range(a, MODELS) for t in factor]
        self._pairs = {(str(a), str(b), t): draw.uniform(0.4, 1.6) / 2 for a, b, t in pairs}

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return self._alone[model, gpu_type] * size**0.9

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        part = self._pairs.get((model, other, gpu_type)) or self._pairs[other, model, gpu_type]
        return part * self._alone[model, gpu_type], part * self._alone[other, gpu_type]


def slowest_decision(gpus: int, jobs: int) -> float:
    """CPU seconds of the slowest of three decisions in a row, the first with nothing placed."""
    draw = random.Random(1)
    cluster = Cluster([(gpu_type, 4) for gpu_type in ("v100", "p100", "k80") for _ in range(gpus // 12)])
    policy: Policy = gandiva_fair.make(PolicySettings(60 * S))
    live = {}
    for n in range(jobs):
        user, model = f"u{draw.randrange(USERS)}", str(draw.randrange(MODELS))
        live[n] = JobView(n, user, draw.choice([1, 1, 1, 2, 4, 4]), n, model)
    view, slowest = View(0, cluster, live, Table(draw)), 0.0
    for _ in range(3):
        start = time.process_time()
        plan = policy.decide(view)
        slowest = max(slowest, time.process_time() - start)
        for job_id, gpus_now in plan.runs.items():
            live[job_id].gpus = gpus_now
        for job_id, job in live.items():
            job.is_running = job_id in plan.runs
        view.now_ns += 60 * S
    return slowest
