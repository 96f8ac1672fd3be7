"""Groups of jobs that take turns, and what the last plan gave to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.policy.port import Cluster, JobView, View
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
    #: (GPU type, user of a job that waited and could have had GPUs of it)
    wanted: frozenset[tuple[str, str]] = frozenset()
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

    def note_waiting(self, last: Last, name: str, cluster: Cluster | None) -> None:
        """Note whether a job of it waits, or would if it had its GPUs to itself; and on a cluster, for which.

        `name`: those of the group of that name alone count, not what it borrows; "": all count.
        """
        runs, halved, groups = last.runs, last.halved, last.groups
        waiting = [
            job
            for job_id, job in self.jobs.items()
            if job_id not in runs or job_id in halved or (name and groups.get(job_id) != name)
        ]
        self.somebody_waited = bool(waiting)
        self.wanted = frozenset(_wants(waiting, last.owners, cluster) if cluster is not None else ())

    def owe(self, held: Mapping[int, int], last: Last, cluster: Cluster, most: int) -> None:
        """Have users owe the GPU time of types that others waited for, and jobs what others of theirs did.

        Passes are levelled by the quantum, and a turn is longer where moves are dear: without a debt what a
        user had beyond its part in a turn would be forgiven, each turn anew. `most`: that of a turn.
        """
        users = Counter(gpu_type for gpu_type, _ in self.wanted)
        for job_id, held_ns in held.items() if self.wanted else ():
            user, gpu_type = last.owners[job_id], cluster.type_of[last.runs[job_id][0]]
            is_own = (gpu_type, user) in self.wanted
            if users[gpu_type] > is_own:
                self.turns.owe(user, held_ns, most)
            if is_own:
                self.turns.owe_own(user, job_id, held_ns, most)

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


def _wants(
    waiting: Sequence[JobView], owners: Mapping[int, str], cluster: Cluster
) -> Iterator[tuple[str, str]]:
    """Yield (GPU type, user) for jobs that could have GPUs of that type."""
    types: dict[frozenset[int] | None, Collection[str]] = {None: cluster.counts}
    for job in waiting:
        hosts = cluster.hosts_of(job.gpus) if job.gpus and not job.can_migrate else job.hosts
        if hosts not in types and hosts is not None:
            types[hosts] = {cluster.hosts[index].gpu_type for index in hosts}
        yield from ((gpu_type, owners[job.job_id]) for gpu_type in types[hosts] if job.accepts(gpu_type))


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
