"""All baselines: their entry points, and that a decision stays quick with thousands waiting."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from time import process_time

import pytest

from gandiva_slurm.policy.port import OPPORTUNISTIC, JobView, Policy
from tests.policy_world import SETTINGS, a_job, a_view, check_plan, running

GROUP = "gandiva_slurm.policies"
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
ENTRIES = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["entry-points"][GROUP]
NAMES = ("antman", "backfill", "ffdl", "ffdl_spread", "optimus", "philly", "themis", "tiresias")

#: CPU seconds for one decision at 10,000 GPUs with 5,000 jobs; ten times what it takes on a loaded machine.
MOST_S = 5.0


def policy_named(name: str) -> Policy:
    """Make a policy by its entry point."""
    return EntryPoint(name, ENTRIES[name], GROUP).load()(SETTINGS)


@pytest.mark.parametrize("name", NAMES)
def test_baseline_is_made_by_its_entry_point(name: str) -> None:
    assert policy_named(name).name == name


def crowd(count: int, seed: int) -> list[JobView]:
    """Gangs of all sizes, users and models."""
    return [
        a_job(
            n,
            (1, 2, 4, 8, 1)[(n * seed) % 5],
            at_s=n % 97,
            length_s=100 + 37 * (n % 89),
            user=f"u{n % 13}",
            model=f"m{n % 26}",
            job_class=OPPORTUNISTIC if n % 7 == 0 else "guaranteed",
            **({"min_size": 1, "max_size": 16} if n % 11 == 0 else {}),
        )
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_decision_is_quick_on_a_large_cluster_with_thousands_waiting(name: str) -> None:
    policy = policy_named(name)
    jobs = crowd(5000, seed=3)
    view = a_view((("v", 8),) * 1250, jobs, at_s=100)
    began = process_time()
    plan = policy.decide(view)
    first_s = process_time() - began
    check_plan(view, plan)
    for job_id, gpus in plan.runs.items():
        running(view.jobs[job_id], gpus, ran_s=10, since_s=100)
    waiting = {n + 10_000: a_job(n + 10_000, 8, at_s=101, user=f"u{n % 13}") for n in range(5000)}
    later = a_view((("v", 8),) * 1250, [*view.jobs.values(), *waiting.values()], at_s=110)
    began = process_time()
    plan = policy.decide(later)
    full_s = process_time() - began
    check_plan(later, plan)
    assert first_s < MOST_S and full_s < MOST_S, (first_s, full_s)
