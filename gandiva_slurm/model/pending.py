"""Slurm's reasons for a released job that it does not start: in words, and what lifts them.

The words of `squeue` (22.05 .. 26.05) come in families; what is not known is shown as it is. A *limit* is one
of the account, the user, the QOS or the partition: another node would not help, and the job may wait for
long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: What a limit counts, by the last part of Slurm's word. Slurm's GPUs are slots here: a job's count as long
#: as it is resident, parked or not.
_COUNTED = {
    "GRES": "GPUs of resident jobs",
    "CPU": "CPUs",
    "Cpu": "CPUs",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Jobs": "running jobs",
    "SubmitJobs": "submitted jobs",
    "Wall": "wall time",
    "WallDurationPerJob": "wall time of one job",
    "WallDuration": "wall time",
    "Billing": "billing units",
    "BB": "burst buffer",
    "License": "licenses",
    "Energy": "energy",
    "Unknown": "a resource",
    "BillingRunMinutes": "billing minutes",
}
_LIMIT = re.compile(r"(?P<who>Assoc|QOS)(?P<span>Grp|Max|Min)?(?P<rest>\w*)")
_TAILS = {
    "Minutes": " minutes",
    "RunMinutes": " minutes that running jobs may still use",
    "PerJob": " of one job",
    "PerNode": " on one node",
    "PerUser": " of one user",
    "PerAccount": " of one account",
    "PerUserLimit": " of one user",
    "MinutesPerJob": " minutes of one job",
    "Limit": "",
}
_SPANS = {
    "Grp": "all its jobs together",
    "Max": "the most allowed",
    "Min": "the least asked",
    None: "a limit",
}
_OWNER = {"Assoc": "the association (account and user)", "QOS": "the QOS"}

_OTHERS = {
    "PartitionTimeLimit": (
        "its time limit is longer than its partition allows",
        "its owner asks for less: scontrol update JobId={job} TimeLimit=…",
    ),
    "PartitionNodeLimit": ("its partition allows no job of so many nodes", "the partition changes"),
    "PartitionDown": ("its partition is down", "an administrator sets the partition up"),
    "PartitionInactive": ("its partition is inactive", "an administrator sets the partition up"),
    "InvalidAccount": ("its account is not valid any more", "an administrator restores the account"),
    "InvalidQOS": ("its QOS is not valid any more", "an administrator restores the QOS"),
    "QOSNotAllowed": ("its QOS is not allowed in its partition", "its owner chooses another QOS"),
    "AccountNotAllowed": ("its account is not allowed in its partition", "its owner chooses another account"),
    "QOSUsageThreshold": ("its user has used too much of the QOS", "usage decays"),
    "AccountingPolicy": ("a limit of the accounting is reached", "jobs under that limit end"),
    "AssociationJobLimit": ("the association has as many running jobs as it may", "one of them ends"),
    "AssociationResourceLimit": ("the association has as many resources as it may", "jobs of it end"),
    "AssociationTimeLimit": ("the association has used its time", "usage decays, or is reset"),
    "QOSJobLimit": ("the QOS has as many running jobs as it may", "one of them ends"),
    "QOSResourceLimit": ("the QOS has as many resources as it may", "jobs of it end"),
    "QOSTimeLimit": ("the QOS has used its time", "usage decays, or is reset"),
    "Licenses": ("no license it asks for is free", "a job that has one ends"),
    "JobArrayTaskLimit": ("its array runs as many tasks as it may at once", "one of its tasks ends"),
    "MaxMemPerLimit": ("it asks for more memory than one CPU or node may give", "its owner asks for less"),
}

#: Nothing of a limit, but worth words.
_NODES = {
    "ReqNodeNotAvail": "the node is down, drained or reserved for others",
    "Resources": "the node has not enough free CPUs, memory or slots",
    "NodeDown": "the node is down",
    "Reservation": "its reservation is not open, or does not have the node",
    "BadConstraints": "Slurm finds no node that can ever take what it asks for",
    "Priority": "Slurm starts others first",
    "BeginTime": "its begin time has not come",
    "Dependency": "it waits for other jobs",
}


@dataclass(frozen=True)
class Pending:
    """A reason in words. `is_limit`: waiting elsewhere would not help; `then` is what lifts it."""

    words: str
    is_limit: bool
    then: str = ""


def explain(reason: str, job_id: int) -> Pending:
    """Return what a reason of Slurm's means; what follows a comma are names, as in ReqNodeNotAvail, n1."""
    reason = reason.partition(",")[0]
    if reason in _OTHERS:
        words, then = _OTHERS[reason]
        return Pending(words, True, then.format(job=job_id))
    match = _LIMIT.fullmatch(reason)
    if match is not None:
        return Pending(_limit(match), True, "jobs under that limit end, or an administrator raises it")
    return Pending(_NODES.get(reason, ""), False)


def _limit(match: re.Match[str]) -> str:
    rest = match["rest"]
    counted = next((name for name in sorted(_COUNTED, key=len, reverse=True) if rest.startswith(name)), "")
    what = _COUNTED.get(counted, "resources")
    tail = _TAILS.get(rest.removeprefix(counted), "") if counted else ""
    return f"{_OWNER[match['who']]} is at its limit of {what}{tail} ({_SPANS[match['span']]})"
