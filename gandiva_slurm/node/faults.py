"""What this node cannot do for the jobs here though it should: told with each report, for `gandiva check`.

A job that another's processes can reach, or that works while it is parked, is no less a job: nodes without
these rights go on. Their administrator is to hear of it before a user finds out.
"""

from __future__ import annotations

from gandiva_slurm.node.context import Node

#: Close other jobs' GPUs to a job; freeze one that is parked; ask slurmctld whether it hears this node.
DEVICES, FREEZE, SLURMCTLD = "devices", "freeze", "slurmctld"


def faults_of(node: Node) -> tuple[tuple[str, str], ...]:
    """Return what cannot be done, one of the words above, and why, without a word on single jobs."""
    found = {DEVICES: node.devices.fault, FREEZE: _unfrozen(node), SLURMCTLD: node.unasked}
    return tuple((what, why) for what, why in found.items() if why)


def _unfrozen(node: Node) -> str:
    """Why parked jobs are stopped by signals only; "" where none is, or none can be told yet."""
    jobs = [job for job in node.residents.values() if not job.is_trusted and not job.is_ending and job.ranks]
    without = sum(not node.freezer.groups(job) for job in jobs)
    if without:
        return f"{without} of {len(jobs)} jobs here are in no control group that can be frozen"
    return "" if jobs or node.settings.hierarchy else "no file system of control groups is mounted here"
