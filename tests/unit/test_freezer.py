"""What gandivad leaves of a job's control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import SUSPENDED
from gandiva_slurm.node.freezer import Freezer
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses
from tests.node_bench import Bench

KEY = JobKey(7, 0)


def test_a_group_of_slurms_that_outlives_its_job_does_not_freeze_the_next(tmp_path: Path) -> None:
    """A slurmstepd that was killed removes nothing, and the job is requeued and started in the same group.

    So it is in version 1, which tests/cluster/test_frozen.py has with GANDIVA_MINI_CGROUPS=hybrid.
    """
    group = tmp_path / "job_7" / "step_batch" / "user"
    group.mkdir(parents=True)
    switch = group / "cgroup.freeze"
    switch.write_text("1")
    processes = JobProcesses(KEY, 1000, "n1", set(), {str(tmp_path / "job_7")})
    freezer, resident = Freezer(tmp_path, "n1"), Resident(KEY, "user1", (0,), 1, 0, processes, 0)
    assert freezer.groups(resident) == [group]
    freezer.forget(resident)
    assert switch.read_text() == "0"


def test_the_end_of_one_incarnation_leaves_the_next_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in the same groups of Slurm's: what one is let go by is the other's, too."""
    bench = Bench(tmp_path, 1)
    old, new, other = (
        Resident(key, "user1", (0,), 1, 0, JobProcesses(key, 1000, "n1", set(), set()), 0, state=SUSPENDED)
        for key in (KEY, JobKey(7, 1), JobKey(8, 0))
    )
    new.is_shut = other.is_shut = True
    bench.node.residents = {each.key: each for each in (old, new, other)}
    shut = list[Resident]()
    monkeypatch.setattr(bench.node.freezer, "shut", shut.append)
    bench.watcher.dismiss(old)
    assert shut == [new]
