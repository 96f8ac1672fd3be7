"""The picture of one cycle: what Slurm says of its jobs, nodes and associations.

Filled by `slurm.reader` (either back end), read by the engine. Immutable; times in unix seconds, 0 = unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Slurm base states in which a job is finished for good. Anything else, unknown words included, is alive:
#: unknown never means finished.
FINISHED = frozenset(
    {
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
    }
)


#: Words of a node that slurmctld does not hear, or has given up.
UNHEARD = frozenset({"DOWN", "NOT_RESPONDING", "UNKNOWN", "POWERED_DOWN", "POWERING_DOWN"})

#: A directory of a job's own checkpoints, by whose newest file their age is seen.
DIRECTORY = r"[A-Za-z0-9_./%+,=@-]{1,200}"
#: A settled checkpoint by a signal: how, whether to the batch shell, which, seconds, the directory.
OWN_SIGNAL = re.compile(
    rf"(signal|submitit):(B:)?([A-Z][A-Z0-9]{{2,3}})@([1-9][0-9]{{0,3}})(?::({DIRECTORY}))?"
)
#: One by the job's own newest file, with the directory.
OWN_FILES = re.compile(rf"self:({DIRECTORY})")


class OwnSignal(NamedTuple):
    """A signal upon which a job saves itself, as Slurm sends it: to the batch shell, or to the steps."""

    name: str
    to_batch: bool
    #: how long it may take
    grace_s: int


@dataclass(frozen=True)
class JobOptions:
    """What the user asked of Gandiva at submission, as job_submit.lua recorded it.

    `gpus` is the whole job's number: the same on each of its `nodes`.
    """

    tickets: int = 100
    priority: int = 50
    job_class: str = "guaranteed"
    vc: str = ""
    types: tuple[str, ...] = ()
    cell: str = "any"
    elastic: str = ""
    pack: str = "auto"
    migrate: str = "auto"
    hook: str = "auto"
    gpus: int = 1
    gpu_type: str = ""
    user_hold: bool = False
    reservation: str = ""
    nodes: int = 1
    #: nodes over which it may grow, from one; 1: it stays on as many as it asked for
    max_nodes: int = 1
    #: how it saves itself, as job_submit.lua settled it: auto and none (not at all), self[:DIRECTORY], or
    #: signal:[B:]NAME@SECONDS[:DIRECTORY] and submitit:NAME@SECONDS
    checkpoint: str = "auto"

    @property
    def own_signal(self) -> OwnSignal | None:
        """The signal upon which it saves itself; None where there is none."""
        match = OWN_SIGNAL.fullmatch(self.checkpoint)
        return OwnSignal(match[3], bool(match[2]), int(match[4])) if match else None

    @property
    def own_files(self) -> str:
        """The directory by whose newest file its own checkpoint's age is seen; "" where it named none."""
        by_file, by_signal = OWN_FILES.fullmatch(self.checkpoint), OWN_SIGNAL.fullmatch(self.checkpoint)
        named = by_file[1] if by_file else by_signal[5] if by_signal else None
        return named or ""

    @property
    def saves_by(self) -> str:
        """How it saves itself without Gandiva: self, signal, submitit, or "": not at all."""
        how = self.checkpoint.partition(":")[0]
        return how if how == "self" or self.own_signal else ""

    @property
    def gpus_per_node(self) -> int:
        """Its GPUs on each of its nodes."""
        return max(1, self.gpus // max(1, self.nodes))

    @property
    def sizes(self) -> tuple[int, int]:
        """The fewest and the most GPUs it can train on: `elastic` where it says so, for a job of one node."""
        low, _, high = self.elastic.partition("-")
        if self.nodes > 1 or not (low.isdecimal() and high.isdecimal()):
            return self.gpus, self.gpus
        return (int(low), int(high)) if 1 <= int(low) <= self.gpus <= int(high) else (self.gpus, self.gpus)


@dataclass(frozen=True)
class SlurmJob:
    """One job (or array task) as Slurm shows it; `options` is None for jobs that are not Gandiva's."""

    job_id: int
    user: str
    uid: int
    account: str
    partition: str
    state: str
    reason: str = ""
    name: str = ""
    priority: int = 0
    restart: int = 0
    nodes: tuple[str, ...] = ()
    array_job_id: int = 0
    array_task_id: int | None = None
    qos: str = ""
    node_count: int = 1
    cpus: int = 1
    memory_mib: int = 0
    time_limit_s: int = 0
    submit_s: int = 0
    eligible_s: int = 0
    start_s: int = 0
    end_s: int = 0
    exit_code: str = "0:0"
    batch: bool = True
    requeue: bool = True
    dependency: str = ""
    options: JobOptions | None = None
    #: what it trains, as a simulator tells it; "": Slurm tells nothing of that
    model: str = ""

    @property
    def is_held(self) -> bool:
        """True when Slurm will not start it by itself (priority 0)."""
        return self.priority == 0


def is_reused(job: SlurmJob, user: str, submit_s: int) -> bool:
    """True when a job has the number of another one, which was this user's and submitted last at this time.

    slurmctld begins again with the numbers when it has come to the last, or has lost what it knew. A requeue
    changes the submit time and counts; one that a killed slurmctld has forgotten is undone, or done anew.
    """
    return job.user != user or (job.restart == 0 and job.submit_s > submit_s)


@dataclass(frozen=True)
class SlurmNode:
    """A node: `state` holds Slurm's base state and flags, upper case (IDLE, DRAIN, NOT_RESPONDING …)."""

    name: str
    state: frozenset[str]
    gpu_type: str = ""
    slots: int = 0
    slots_used: int = 0
    cpus: int = 0
    memory_mib: int = 0
    address: str = ""
    partitions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_heard(self) -> bool:
        """True when slurmctld has had an answer of its slurmd, and has not given it up."""
        return not self.state & UNHEARD


@dataclass(frozen=True)
class Association:
    """One row of the association tree: `user` is "" for an account's own; `shares` is Slurm's fairshare."""

    account: str
    user: str
    parent: str
    shares: int


@dataclass(frozen=True)
class Snapshot:
    """One coalesced read. `associations` is None when they were not re-read this time."""

    jobs: tuple[SlurmJob, ...]
    nodes: tuple[SlurmNode, ...]
    associations: tuple[Association, ...] | None = None
    #: jobs whose records could not be read, each with a sentence
    unread: Mapping[int, str] = field(default_factory=dict)
