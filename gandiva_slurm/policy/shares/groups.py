"""Groups of jobs that take turns, and what the last plan gave to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gandiva_slurm.policy.port import JobView
from gandiva_slurm.policy.shares.rounds import Runs, Wanted
from gandiva_slurm.slicing.starvation import Starving, Waiter
from gandiva_slurm.slicing.turns import Turns


@dataclass
class Group:
    """Jobs that take turns on one pool of GPUs."""

    turns: Turns = field(default_factory=Turns)
    #: its jobs while a question is answered
    jobs: dict[int, JobView] = field(default_factory=dict)
    somebody_waited: bool = False
    #: those that have a home in the slice that is decided, or could have one
    homed: frozenset[int] = frozenset()
    #: those passed over in turns, and at home in slices of these
    starving: Starving[int] = field(default_factory=Starving)
    starving_at_home: Starving[int] = field(default_factory=Starving)

    def note(self, runs: Runs, owners: Mapping[int, str], is_turn: bool) -> None:
        """A turn or a slice was decided: count those that were passed over."""
        jobs = [job for job_id, job in self.jobs.items() if is_turn or job_id in self.homed]
        waiters = [
            Waiter(job.job_id, owner, (self.turns.job_pass(owner, job.job_id), job.order))
            for job, owner in ((job, owners[job.job_id]) for job in jobs)
        ]
        (self.starving if is_turn else self.starving_at_home).note(waiters, runs.keys())

    def note_waiting(self, last: Last, name: str) -> None:
        """Note whether a job of it waits, or would if it had its GPUs to itself.

        `name`: those of the group of that name alone count, not what it borrows; "": all count.
        """
        alone = [job_id in last.runs and job_id not in last.halved for job_id in self.jobs]
        at_home = [not name or last.groups.get(job_id) == name for job_id in self.jobs]
        self.somebody_waited = not (all(alone) and all(at_home))

    def first(self, is_turn: bool) -> list[Wanted]:
        """Return those that have been passed over for too long."""
        starved = (self.starving if is_turn else self.starving_at_home).starved()
        jobs = [self.jobs[job_id] for job_id in starved if job_id in self.jobs]
        return [Wanted(job, job.size) for job in jobs]

    def waiting(self, runs: Runs, owners: Mapping[int, str]) -> list[JobView]:
        """Its jobs that have no GPUs, in the order of their turns."""
        waiting = [job for job_id, job in self.jobs.items() if job_id not in runs]
        turns = self.turns

        def place(job: JobView) -> tuple[int, int, tuple[int, int]]:
            user = owners[job.job_id]
            return turns.user_pass(user), turns.job_pass(user, job.job_id), job.order

        return sorted(waiting, key=place)


def ahead_of(groups: Mapping[str, Group], group_of: Mapping[int, str]) -> dict[int, tuple[int, int]]:
    """Return how far the user of each job, and the job, is ahead in its first group (`Plan.ahead`)."""
    return {
        job_id: lead
        for name, group in groups.items()
        for job_id, lead in group.turns.ahead().items()
        if group_of.get(job_id) == name
    }


@dataclass
class Last:
    """The last plan, by job: its GPUs, the group that is charged for them, whether by half, and its guest."""

    runs: Runs = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    owners: Mapping[int, str] = field(default_factory=dict)
    halved: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    guests: dict[int, int] = field(default_factory=dict)

    def share(self, host: int, guest: int, group: str) -> None:
        """Put a guest beside its host; the group of the guest is told."""
        self.runs[guest] = self.runs[host]
        self.groups[guest] = group
        self.guests[host] = guest
        self.shared |= {host, guest}
