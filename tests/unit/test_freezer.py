"""What gandivad leaves of a job's control groups."""

from __future__ import annotations

from pathlib import Path

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.freezer import Freezer
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses

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
