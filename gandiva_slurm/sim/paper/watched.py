"""A policy that is looked at while it decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from gandiva_slurm.policy.port import Plan, Policy, Rates, View

_S = 10**9


@dataclass
class Watched:
    """A policy, and who held how many GPUs when: two that share one held half of it each."""

    policy: Policy
    name: str = "watched"
    spans: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    #: what was measured, as the policy was last shown it
    rates: Rates | None = None

    def decide(self, view: View) -> Plan:
        """Pass the question on."""
        plan = self.policy.decide(view)
        sharers: dict[tuple[int, ...], int] = {}
        for gpus in plan.runs.values():
            sharers[gpus] = sharers.get(gpus, 0) + 1
        held: dict[str, float] = {}
        for job_id, gpus in plan.runs.items():
            user = view.jobs[job_id].user
            held[user] = held.get(user, 0.0) + len(gpus) / sharers[gpus]
        self.spans.append((view.now_ns, held))
        self.rates = view.rates
        return plan

    def shares_until(self, end_s: float) -> dict[str, float]:
        """Each user's part of all GPU time held until then."""
        total = self.gpu_s_until(end_s)
        whole = sum(total.values())
        return {user: part / whole for user, part in total.items()}

    def gpu_s_until(self, end_s: float) -> dict[str, float]:
        """GPU time each user held until then, seconds."""
        total: dict[str, float] = {}
        ends = [at for at, _ in self.spans[1:]] + [self.spans[-1][0]]
        for (start_ns, held), end_ns in zip(self.spans, ends, strict=True):
            span_s = max(0.0, min(end_ns / _S, end_s) - start_ns / _S)
            for user, gpus in held.items():
                total[user] = total.get(user, 0.0) + gpus * span_s
        return total
