"""Priorities that owners change while their jobs run: among their own, at once, and at nobody else's cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gandiva_slurm.cli.main import cli
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, Plan, Policy, View
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.workloads import gandiva
from tests.sim.mixed import settings
from tests.sim_scenes import S, spec

QUANTUM_S = 60
#: Long after anybody looks.
LENGTH_S = 4000 * QUANTUM_S


class Looking:
    """A policy, and GPU time held by each job at chosen moments; after the last the jobs are let go."""

    name = "looking"

    def __init__(self, policy: Policy, moments_s: tuple[int, ...]) -> None:
        self._policy, self._moments = policy, list(moments_s)
        self.held_s: list[dict[int, float]] = []

    def decide(self, view: View) -> Plan:
        while self._moments and view.now_ns >= self._moments[0] * S:
            del self._moments[0]
            self.held_s.append({job_id: job.held_ns / S for job_id, job in view.jobs.items()})
        if not self._moments:
            raise StopIteration
        return self._policy.decide(view)

    def between(self, first: int, last: int) -> dict[int, float]:
        return {job_id: held - self.held_s[first][job_id] for job_id, held in self.held_s[last].items()}


def test_priorities_are_followed_among_a_users_own_jobs() -> None:
    """ann's three jobs have one GPU between them; bob's two have the other, whatever ann says."""
    turn_s = 300 * QUANTUM_S
    jobs = [
        spec(0, length_s=LENGTH_S, user="ann", priorities=((turn_s * S, 99),), can_pack=False),
        spec(1, length_s=LENGTH_S, user="ann", priorities=((turn_s * S, 24),), can_pack=False),
        spec(2, length_s=LENGTH_S, user="ann", priorities=((turn_s * S, 0),), can_pack=False),
        spec(3, length_s=LENGTH_S, user="bob", can_pack=False),
        spec(4, length_s=LENGTH_S, user="bob", can_pack=False),
    ]
    looking = Looking(gandiva_fair.make(settings(QUANTUM_S)), (turn_s, turn_s * 2))
    with pytest.raises(StopIteration):
        simulate(Scene(jobs, Cluster([("v100", 2)]), Homogeneous()), looking)
    before, after = looking.held_s[0], looking.between(0, 1)
    for job_id in range(3):
        assert before[job_id] == pytest.approx(turn_s / 3, rel=0.02)
    for job_id, weight in ((0, 100), (1, 25), (2, 1)):
        assert after[job_id] == pytest.approx(turn_s * weight / 126, rel=0.02, abs=2 * QUANTUM_S)
    for held in (before, after):
        assert held[3] + held[4] == pytest.approx(turn_s, rel=0.01)


def test_a_workload_tells_priorities_and_events_show_them(tmp_path: Path) -> None:
    workload, events = tmp_path / "w.csv", tmp_path / "e.jsonl"
    workload.write_text(
        "job_id,submit_s,gpus,length_s,priority,priority_later\na,5,1,10,40,2:80+4.5:0+99:7\n"
    )
    args = [
        "--workload",
        str(workload),
        "--format",
        "gandiva",
        "--cluster",
        "gpu:1x1",
        "--policy",
        "gandiva_fair",
    ]
    done = CliRunner().invoke(cli, ["sim", "run", *args, "--events", str(events), "--check-invariants"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    told = [(line["t_s"], line["job_id"], line["priority"]) for line in lines if line["event"] == "priority"]
    # arrivals are rebased to 0; the job ends at 10, so nobody hears of what comes at 99
    assert told == [(2, "a", 80), (4.5, "a", 0)]


@pytest.mark.parametrize("text", ["80", "5:101", "x:3", "5:1+5:2", "5:1+4:2", "-1:5", "5:"])
def test_a_wrong_change_is_told_with_its_row(tmp_path: Path, text: str) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text(f"job_id,submit_s,gpus,length_s,priority_later\na,0,1,10,{text}\n")
    with pytest.raises(UsageError, match=r"w\.csv:2: priority_later is"):
        list(gandiva.read(workload))
