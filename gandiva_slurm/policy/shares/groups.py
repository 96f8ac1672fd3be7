"""Groups of jobs that take turns, and what the last plan gave to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gandiva_slurm.policy.port import JobView, View
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
        starving = self.starving if is_turn else self.starving_at_home
        if self.jobs.keys() <= runs.keys():
            starving.note((), ())
            return
        jobs = [job for job_id, job in self.jobs.items() if is_turn or job_id in self.homed]
        waiters = [
            Waiter(job.job_id, owner, (self.turns.job_pass(owner, job.job_id), job.order))
            for job, owner in ((job, owners[job.job_id]) for job in jobs)
        ]
        starving.note(waiters, runs.keys())

    def note_waiting(self, last: Last, name: str) -> None:
        """Note whether a job of it waits, or would if it had its GPUs to itself.

        `name`: those of the group of that name alone count, not what it borrows; "": all count.
        """
        runs, halved, groups = last.runs, last.halved, last.groups
        self.somebody_waited = any(
            job_id not in runs or job_id in halved or (name and groups.get(job_id) != name)
            for job_id in self.jobs
        )

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

    def held_since(
        self, before: Mapping[int, int], view: View, elapsed_ns: int
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return the GPU time that each job has held since the last question, and in all; `before`: then.

        Of two that shared GPUs each has held half. That is what was planned, but where a node missed its
        part, or had no room. A job that has ended is not seen any more: what was planned counts. What a job
        held before it was first seen is not charged. What turns out to be less than it was is charged less
        later (`JobView.held_ns` is partly as planned).
        """
        held = {job_id: max(job.held_ns, before.get(job_id, 0)) for job_id, job in view.jobs.items()}
        since = {job_id: held_ns - before.get(job_id, held_ns) for job_id, held_ns in held.items()}
        for job_id, gpus in self.runs.items():
            if job_id not in since:
                since[job_id] = elapsed_ns * len(gpus) // (2 if job_id in self.shared else 1)
        return {job_id: held_ns for job_id, held_ns in since.items() if held_ns}, held

    def share(self, host: int, guest: int, group: str) -> None:
        """Put a guest beside its host; the group of the guest is told."""
        self.runs[guest] = self.runs[host]
        self.groups[guest] = group
        self.guests[host] = guest
        self.shared |= {host, guest}
