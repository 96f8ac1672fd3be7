"""Where a job may come to: eligible nodes, and room beside those who live there and cannot be saved.

A parked job keeps its memory and a slot of each of its GPUs. Where somebody else comes, it can be saved and
leave; one that cannot be saved stays until it ends. Room is what those leave.

The last slot beside jobs that cannot be saved goes only to a user who has none of these on that GPU, and to
jobs that have been moved before, which will make way: otherwise the first user to submit a hundred jobs
keeps all others out until one of them ends.

Where those that live there all stay for now, a job may come to a GPU that is full all the same, if its user
has none there and another has several: one of these that can be saved makes way.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from gandiva_slurm.policy.port import Host, JobView, View

#: What jobs have in common that may come to the same GPUs: nodes, memory, a user whose last slots count, and
#: a user for whom others make way.
_Kind = tuple[frozenset[int] | None, int, str, str]

_NOTHING = frozenset[int]()


class Eligibility:
    """One question: made from the view, asked for each job."""

    def __init__(self, view: View, stay: bool = False) -> None:
        """Count what jobs that cannot be saved take on each GPU and node; `stay`: all that live there."""
        self._cluster, self._slots = view.cluster, view.slots
        firm = [job for job in view.jobs.values() if job.gpus and (stay or job.is_firm)]
        #: those counted
        self.staying = tuple(firm)
        #: by GPU and by node: what they take
        living: dict[int, int] = {}
        taken_mib: dict[int, int] = {}
        for job in firm:
            for gpu in job.gpus:
                living[gpu] = living.get(gpu, 0) + 1
            for host in self._cluster.hosts_of(job.gpus) if job.memory_mib else ():
                taken_mib[host] = taken_mib.get(host, 0) + job.memory_mib
        self._living = living
        #: by GPU: the users of jobs that will not make way, one for each
        self._firm: dict[int, list[str]] = {}
        for job in firm:
            if job.is_firm:
                self._note_firm(job, job.gpus)
        #: by GPU: how many jobs of each user live there, and how many may make way: not the last of a user
        self._users: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._beyond: Counter[int] = Counter()
        for job in firm if stay else ():
            for gpu in job.gpus:
                self._users[gpu][job.user] += 1
                self._beyond[gpu] += job.can_migrate and self._users[gpu][job.user] > 1
        self._full = frozenset(gpu for gpu, count in living.items() if view.slots and count >= view.slots)
        self._left_mib = {
            index: host.memory_mib - taken_mib.get(index, 0)
            for index, host in enumerate(self._cluster.hosts)
            if host.memory_mib
        }
        #: nobody keeps anybody from anywhere
        self._is_open = not firm and not self._left_mib
        self._known: dict[_Kind, frozenset[int]] = {}
        self._rooms: dict[_Kind, tuple[tuple[Host, tuple[int, ...]], ...]] = {}

    def barred(self, job: JobView, displaces: bool = False) -> frozenset[int]:
        """Return the GPUs that a job may not come to now. One that cannot be saved is where it is.

        `displaces`: it may come to a full one where others make way.
        """
        if (self._is_open and job.hosts is None) or (job.gpus and not job.can_migrate):
            return _NOTHING
        key = self._kind(job, displaces)
        if key not in self._known:
            full = self._full
            if displaces:
                full -= {gpu for gpu in full if self._beyond[gpu] and not self._users[gpu][job.user]}
            self._known[key] = full.union(self._last_of(key[2]), *(
                host.gpus
                for index, host in enumerate(self._cluster.hosts)
                if (job.hosts is not None and index not in job.hosts)
                or self._left_mib.get(index, job.memory_mib) < job.memory_mib
            ))
        return self._known[key]

    def left_mib(self, host: int) -> int | None:
        """Return the memory that those who stay leave on a node; None: any amount."""
        return self._left_mib.get(host)

    def take(self, job: JobView, gpus: tuple[int, ...]) -> None:
        """A job is to live there, too."""
        self._is_open = False
        for gpu in gpus:
            self._users[gpu][job.user] += 1
            self._beyond[gpu] -= gpu in self._full
            self._living[gpu] = self._living.get(gpu, 0) + 1
        if not _will_make_way(job):
            self._note_firm(job, gpus)
        self._full |= {gpu for gpu in gpus if self._slots and self._living[gpu] >= self._slots}
        for host in self._cluster.hosts_of(gpus) & self._left_mib.keys():
            self._left_mib[host] -= job.memory_mib
        self._known, self._rooms = {}, {}

    def rooms(self, job: JobView, displaces: bool = False) -> tuple[tuple[Host, tuple[int, ...]], ...]:
        """Return the nodes with a GPU that is not barred, each with all such GPUs."""
        key = self._kind(job, displaces)
        if key not in self._rooms:
            barred = self.barred(job, displaces)
            rooms = [
                (host, tuple(gpu for gpu in host.gpus if gpu not in barred)) for host in self._cluster.hosts
            ]
            self._rooms[key] = tuple((host, gpus) for host, gpus in rooms if gpus)
        return self._rooms[key]

    def _note_firm(self, job: JobView, gpus: tuple[int, ...]) -> None:
        for gpu in gpus:
            self._firm.setdefault(gpu, []).append(job.user)

    def _kind(self, job: JobView, displaces: bool) -> _Kind:
        comes_to_stay = not job.gpus and not _will_make_way(job)
        user = job.user if displaces else ""
        return (job.hosts, job.memory_mib, job.user if comes_to_stay else "", user)

    def _last_of(self, user: str) -> frozenset[int]:
        """Return the GPUs with one slot left that is not for this user; "": it is for anybody."""
        if not user or self._slots < 2:
            return frozenset()
        return frozenset(
            gpu for gpu, users in self._firm.items() if len(users) >= self._slots - 1 and user in users
        )


def _will_make_way(job: JobView) -> bool:
    """True for a job that was saved and went on elsewhere before, and can be saved now."""
    return job.can_migrate and bool(job.restart_ns or job.migrations)
