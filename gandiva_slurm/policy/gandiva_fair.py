"""Gandiva_fair: tickets buy GPU time, fast GPUs go to whom they help most, jobs are packed where it pays.

Each question: charge what was held. Each quantum: level the passes. Each turn: pick by gang-aware stride,
users first, then their jobs (`turns`, `rounds`); give each of them a GPU type by what it gains there and how
far it is behind (`exchange`, `merit`); seat them (`seats`); start elastic jobs small; pack others beside them
(`packing`); let elastic jobs grow. Where moves cost something turns are long, and cut into slices (`pace`):
at the end of each those that live on the same GPUs hand them over, by the same passes, and pairs of equals
stay. In between no guaranteed job is taken off, and what became idle is filled.

Jobs take turns in groups: all guaranteed ones, or those of each virtual cluster on its cells (`virtual`);
then, on what those leave, opportunistic ones (`classes`) and whoever may borrow. What was held is charged,
whatever was done with it; rates decide only who is where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from gandiva_slurm.policy.elastic import Elastic, trimmed
from gandiva_slurm.policy.moves.behind import far_behind
from gandiva_slurm.policy.moves.merit import Merit
from gandiva_slurm.policy.moves.pace import Pace
from gandiva_slurm.policy.packing.classes import Classes
from gandiva_slurm.policy.packing.sharing import Sharing
from gandiva_slurm.policy.placement.seating import Seating
from gandiva_slurm.policy.port import JobView, OfUser, Plan, PolicySettings, Promotion, View
from gandiva_slurm.policy.shares.groups import Group, Last, ahead_of
from gandiva_slurm.policy.shares.rounds import Round, Runs, Seat, Wanted
from gandiva_slurm.policy.shares.tickets import TicketBook
from gandiva_slurm.policy.traits import Traits
from gandiva_slurm.policy.virtual_clusters.virtual import VirtualClusters
from gandiva_slurm.slicing.groups import SPARE

#: A pair beside a guaranteed job is looked at after this part of a quantum, when it is on trial.
_TRIAL_PART = 10
#: Jobs that live nowhere, those whose turn is next, for which homes are looked for at a slice.
_COMERS = 16
#: What begins at a question.
_SLICE, _TURN = "slice", "turn"


class GandivaFair:
    """The policy; made by `make`."""

    fits_memory = True

    def __init__(self, settings: PolicySettings, traits: Traits | None = None) -> None:
        self._settings = settings
        self._traits = traits or Traits()
        self.name = self._traits.name
        self._pace = Pace(settings.quantum_ns, settings.switch_ns, settings.restart_ns)
        self._tickets = TicketBook(settings)
        self._groups: dict[str, Group] = {}
        self._merit: Merit | None = None
        self._sharing = Sharing(settings.restart_ns > 0, settings)
        self._classes = Classes()
        self._elastic = Elastic(self._pace.turn_ns)
        self.vcs = VirtualClusters()
        self._now_ns = self._end_ns = self._slice_end_ns = self._turn_end_ns = 0
        self._last = Last()
        self._owners: dict[int, str] = {}
        #: by job: the first group in which it takes turns
        self._group_of: dict[int, str] = {}
        self._held: dict[int, int] = {}

    @property
    def counts(self) -> dict[str, int]:
        """What the simulator's JSON tells of it: pairs tried by model and GPU type, kept, undone."""
        return self._sharing.counts

    def passes(self) -> dict[str, int]:
        """Return where every user stands in every group (for checks)."""
        books = {name: group.turns.passes()[0] for name, group in self._groups.items()}
        return {f"{user} in {name}": value for name, book in books.items() for user, value in book.items()}

    def is_guaranteed(self, job: JobView) -> bool:
        """True for guaranteed jobs and those promoted."""
        return self._classes.is_guaranteed(job)

    def explain(self, job_id: int, now_ns: int) -> Iterator[str]:
        """Say where a job stood when the last question was answered, for `gandiva why`."""
        if job_id not in self._group_of or job_id not in self._owners:
            return
        name = self._last.groups.get(job_id) or self._group_of[job_id]
        yield from self._groups[name].turns.told(self._owners[job_id], job_id)
        yield from self._tickets.told(self._owners[job_id])
        if self._pace.turn_ns > self._settings.quantum_ns:
            turn_s, left_s = self._pace.turn_ns / 1e9, max(0, self._turn_end_ns - now_ns) / 1e9
            yield f"jobs change GPUs every {turn_s:.0f} s, the next time in {left_s:.0f} s"

    def of_users(self) -> dict[str, OfUser]:
        """Return what past use does to each user's tickets."""
        return self._tickets.of_users()

    def decide(self, view: View) -> Plan:
        """Say what is to run from now on."""
        merit = self._charge(view)
        if not view.jobs:
            self._rest(view, merit)
            return Plan({})
        promoted = self._admit(view, merit)
        begins = self._begin(view)
        is_turn = begins == _TURN
        seating = Seating(view, merit, self._last.runs.keys(), is_turn, self._pace.is_dear)
        runs, groups = self._place(view, seating, begins)
        self._start_small(view, runs, groups)
        last = Last(runs, groups, self._owners)
        if self._traits.packs:
            self._sharing.pack(view, merit, last, self._groups, self._last)
        for name, group in self._groups.items():
            own = name if self.vcs.names and name != SPARE else ""
            group.note_waiting(last, own, view.cluster if self._pace.is_long else None)
            if begins and name != SPARE:
                group.note(last.runs, self._owners, is_turn)
        waiting = [job for job in view.jobs.values() if job.job_id not in runs]
        notes = self._elastic.grow(view, runs, last.shared, waiting)
        if self.vcs.names:
            self.vcs.lend(view.cluster, view.jobs, {j: g for j, g in runs.items() if groups[j] == SPARE})
        merit.run(view, runs)
        self._last = last
        for group in self._groups.values():
            group.jobs = {}  # what was shown is not kept
        ahead = ahead_of(self._groups, self._group_of)
        return Plan(dict(sorted(runs.items())), self._wake_ns(), notes, promoted, ahead)

    # -- what has been

    def _rest(self, view: View, merit: Merit) -> None:
        """There is nobody."""
        self._last, self._group_of, self._owners = Last(), {}, {}
        merit.run(view, {})
        for group in self._groups.values():
            group.somebody_waited = False

    def _charge(self, view: View) -> Merit:
        """Charge what was held since the last question, and learn from it.

        What somebody waited for, past the end of a slice or without being on, is a debt (`PassBook.settle`).
        """
        elapsed_ns, self._now_ns = view.now_ns - self._now_ns, view.now_ns
        late_ns = min(elapsed_ns, max(0, view.now_ns - self._slice_end_ns))
        last = self._last
        held: dict[str, float] = {}
        in_turn: dict[str, dict[int, int]] = {}
        since, self._held = last.held_since(self._held, view, elapsed_ns)
        for job_id, held_ns in since.items():
            user = last.owners[job_id]
            name = last.groups.get(job_id) or self._group_of[job_id]
            group = self._groups[name]
            over_ns = min(held_ns, late_ns * len(last.runs[job_id])) if job_id in last.runs else held_ns
            debt_ns = over_ns if group.somebody_waited else 0
            factor = 2 if job_id in last.shared and job_id not in last.halved else 1
            group.turns.charge(user, job_id, factor * held_ns, factor * debt_ns)
            if job_id in last.runs:
                in_turn.setdefault(name, {})[job_id] = factor * (held_ns - debt_ns)
            if elapsed_ns:
                held[user] = held.get(user, 0.0) + held_ns / elapsed_ns
        self._tickets.note(elapsed_ns, held, view.cluster.size)
        for name, group in self._groups.items():
            most_ns = self._room(view, name) * (self._pace.turn_ns - self._settings.quantum_ns)
            group.owe(in_turn.get(name, {}), last, view.cluster, most_ns)
            if not group.somebody_waited:
                # What nobody else wanted is owed to nobody: all begin anew, whoever comes now too.
                group.turns.settle(0)
        if self._merit is None:
            self._merit = Merit(view.cluster, self._pace, self._traits.by_type)
        alone = {j: view.cluster.type_of[gpus[0]] for j, gpus in last.runs.items() if j not in last.shared}
        self._merit.learn(view, alone, elapsed_ns)
        self._sharing.learn(view.rates)
        return self._merit

    # -- who there is

    def _admit(self, view: View, merit: Merit) -> Mapping[int, Promotion]:
        """Take note of jobs, classes and virtual clusters; return those promoted now."""
        self._owners = {job.job_id: job.user if self._traits.by_user else "" for job in view.jobs.values()}
        tickets = self._tickets.of(view.jobs.values(), view.associations)
        promoted = self._classes.promote(view, self._last.runs.keys(), tickets, self._owners)
        self.vcs.follow(view)
        names = (*(self.vcs.names or ("",)), SPARE)
        self._groups = {name: self._groups.get(name, Group()) for name in names}
        users, jobs = self._weights(view.jobs, tickets)
        for name, group in self._groups.items():
            group.jobs = {job_id: job for job_id, job in view.jobs.items() if self._is_in(job, name)}
            is_all = len(group.jobs) == len(view.jobs)
            group.turns.set_members(*((users, jobs) if is_all else self._weights(group.jobs, tickets)))
        self._group_of = {n: name for name, group in reversed(self._groups.items()) for n in group.jobs}
        whole = sum(users.values())
        merit.set_members(
            view.jobs,
            {job_id: users[user] / whole / len(own) for user, own in jobs.items() for job_id in own},
        )
        return promoted

    def _is_in(self, job: JobView, group: str) -> bool:
        """A guaranteed job is in its virtual cluster's group, and where there are any it may borrow too."""
        is_guaranteed = self._classes.is_guaranteed(job)
        if group == SPARE:
            return not is_guaranteed or bool(self.vcs.names)
        return is_guaranteed and (not self.vcs.names or job.vc == group)

    def _weights(
        self, members: Mapping[int, JobView], tickets: Mapping[str, int]
    ) -> tuple[dict[str, int], dict[str, dict[int, int]]]:
        """Tickets of the users of these jobs, and of each user's jobs."""
        jobs: dict[str, dict[int, int]] = {}
        for job in members.values():
            jobs.setdefault(self._owners[job.job_id], {})[job.job_id] = job.tickets * (job.priority + 1)
        return {user: tickets.get(user, 1) for user in jobs}, jobs

    def _begin(self, view: View) -> str:
        """Begin a quantum, if it is time; return what else begins, "": nothing."""
        if view.now_ns >= self._end_ns:
            for name, group in self._groups.items():
                group.turns.settle(self._room(view, name) * self._settings.quantum_ns)
            self._end_ns = view.now_ns + self._settings.quantum_ns
        is_turn = view.now_ns >= self._turn_end_ns
        if not is_turn and view.now_ns < self._slice_end_ns:
            return ""
        self._slice_end_ns = view.now_ns + self._pace.slice_ns
        if is_turn:
            self._pace.learn(view.jobs.values())
            self._elastic.turn_ns = self._pace.turn_ns
            self._sharing.moves_cost = self._pace.restart_ns > 0
            self._turn_end_ns = view.now_ns + self._pace.turn_ns
        return _TURN if is_turn else _SLICE

    def _room(self, view: View, group: str) -> int:
        if self.vcs.names and group != SPARE:
            return sum(self.vcs.room(group).values())
        return view.cluster.size - len(view.down)

    def _wake_ns(self) -> int:
        soon_ns = self._now_ns + max(1, self._settings.quantum_ns // _TRIAL_PART)
        return min(self._end_ns, soon_ns) if self._sharing.is_trying else self._end_ns

    # -- who runs

    def _place(self, view: View, seating: Seating, begins: str) -> tuple[Runs, dict[int, str]]:
        """Pick and seat. A job on borrowed GPUs asks for its own only when it would lose those."""
        as_before = seating.as_they_are(view.jobs) if begins and self._all_run(view) else None
        if as_before is not None:
            return as_before, dict.fromkeys(as_before, "")
        borrowers = self._borrowers(begins == _TURN)
        runs, groups = self._place_but(view, seating, begins, borrowers)
        if not borrowers <= runs.keys():
            runs, groups = self._place_but(view, seating, begins, set())
        return runs, groups

    def _all_run(self, view: View) -> bool:
        """True when all guaranteed jobs run as planned, each alone, and there are no others."""
        runs = self._last.runs
        if self.vcs.names or self._last.shared or runs.keys() != view.jobs.keys() or self._groups[SPARE].jobs:
            return False
        return all(job.is_running and job.gpus == runs[job_id] for job_id, job in view.jobs.items())

    def _borrowers(self, is_turn: bool) -> set[int]:
        """Jobs of virtual clusters that run on others' GPUs, where no turns are needed."""
        last, guests = self._last, self._last.guests.values()
        if not self.vcs.names:
            return set()
        return {
            job_id
            for name, group in self._groups.items()
            if name != SPARE and not (is_turn and self._is_contended(name))
            for job_id in group.jobs
            if last.groups.get(job_id) == SPARE and job_id not in guests
        }

    def _place_but(
        self, view: View, seating: Seating, begins: str, borrowers: Set[int]
    ) -> tuple[Runs, dict[int, str]]:
        """Go group by group: whoever has GPUs in one has no part in the next."""
        runs: Runs = {}
        groups: dict[int, str] = {}
        for name, group in self._groups.items():
            out = runs.keys() if name == SPARE else borrowers
            jobs = {job_id: job for job_id, job in group.jobs.items() if job_id not in out}
            room = self._room(view, name) - (sum(map(len, runs.values())) if name == SPARE else 0)
            is_open = begins == _TURN and self._is_contended(name)
            staying = self._first(view, jobs, group, room) if is_open else self._staying(jobs, name)
            turns = Round(
                group.turns, jobs, room, self._settings.quantum_ns, self._owners, self._traits.in_turn
            )
            seated, rooted = Runs(), set[int]()
            is_shared = name != SPARE and not self.vcs.names
            is_slice = is_shared and begins == _SLICE
            if is_slice:
                seated = self._hand_over(view, seating, group, turns)
                staying = [Wanted(jobs[job_id], len(gpus)) for job_id, gpus in seated.items()]
            elif is_shared and not begins and self._pace.is_dear:
                seated = self._as_before(view, staying)
            if not self.vcs.names and begins != _TURN and self._pace.is_dear:
                rooted = {job_id for job_id, job in jobs.items() if job.gpus}
            if jobs or self.vcs.names:
                seat = self._seat(view, seating, name, runs)
                mine = turns.fill(staying, seat, seated, rooted)
                if is_slice:
                    mine = turns.make_way(seat, mine)
                runs.update(mine)
                groups.update(dict.fromkeys(mine, name))
        return runs, groups

    def _hand_over(self, view: View, seating: Seating, group: Group, turns: Round) -> Runs:
        """Let the jobs that live on the same GPUs change hands, and some that live nowhere find a home."""
        living = [job for job in group.jobs.values() if job.gpus]
        comers = [job for job in group.waiting({}, self._owners) if not job.gpus][:_COMERS]
        homes = seating.homes([*living, *comers], view.down)
        group.homed = frozenset(homes)
        return turns.hand_over(self._kept(group, homes), homes)

    def _as_before(self, view: View, staying: Sequence[Wanted]) -> Runs:
        """Return the GPUs of those that run and stay, but where some of these are down."""
        before = {job.job_id: (trimmed(job.gpus, size), size) for job, size, _ in staying}
        return {
            job_id: gpus
            for job_id, (gpus, size) in before.items()
            if len(gpus) == size and set(gpus) <= {*self._last.runs[job_id]} and view.down.isdisjoint(gpus)
        }

    def _kept(self, group: Group, homes: Runs) -> Runs:
        """Return those at home in this slice whatever the passes say: the long passed over, then pairs."""
        starved = [wanted.job.job_id for wanted in group.first(is_turn=False) if self._traits.in_turn]
        last = self._last
        paired = [
            host
            for host, guest in last.guests.items()
            if homes.get(host) == last.runs[host] and last.groups[guest] != SPARE
        ]
        kept, taken = Runs(), set[int]()
        for job_id in (*starved, *paired):
            if job_id in homes and taken.isdisjoint(homes[job_id]):
                kept[job_id] = homes[job_id]
                taken.update(homes[job_id])
        return kept

    def _first(self, view: View, jobs: Mapping[int, JobView], group: Group, room: int) -> list[Wanted]:
        """Those that go first whatever the passes say, as far as there is room."""
        if not self._traits.in_turn or self._merit is None:
            return []
        first, starved = list[Wanted](), [wanted.job.job_id for wanted in group.first(is_turn=True)]
        behind = far_behind(jobs.values(), self._merit, view.cluster, group.turns, self._pace.turn_ns)
        for job_id in dict.fromkeys([*starved, *(job.job_id for job in behind)]):
            if job_id in jobs and jobs[job_id].size <= room:
                first.append(Wanted(jobs[job_id], jobs[job_id].size))
                room -= jobs[job_id].size
        return first

    def _is_contended(self, group: str) -> bool:
        """False in a virtual cluster whose jobs all have GPUs, own or borrowed: no turns are needed."""
        return not self.vcs.names or any(job not in self._last.runs for job in self._groups[group].jobs)

    def _staying(self, jobs: Mapping[int, JobView], group: str) -> list[Wanted]:
        """Those who run and have not ended; who started small makes way for others."""
        last, guests = self._last, self._last.guests.values()
        return [
            Wanted(jobs[job_id], jobs[job_id].size)
            for job_id in last.runs
            if job_id in jobs
            and last.groups[job_id] == group
            and job_id not in guests
            and not self._is_small(jobs[job_id])
        ]

    def _is_small(self, job: JobView) -> bool:
        return len(self._last.runs[job.job_id]) < job.size

    def _seat(self, view: View, seating: Seating, group: str, runs: Runs) -> Seat:
        if group == SPARE:
            return seating.anywhere(view.down.union(*runs.values()), may_move=True)
        if not self.vcs.names:
            last, jobs = self._last, self._groups[group].jobs
            small = {job_id for job_id in last.runs if job_id in jobs and self._is_small(jobs[job_id])}
            loose = [
                last.runs[job_id] for job_id in last.runs if last.groups[job_id] == SPARE or job_id in small
            ]
            return seating.anywhere(view.down, frozenset().union(*loose))

        def seat(picked: Sequence[Wanted], seated: Runs) -> Runs:
            room = self.vcs.room(group)
            for gpus in seated.values():
                room[view.cluster.type_of[gpus[0]]] -= len(gpus)
            others = [wanted for wanted in picked if wanted.job.job_id not in seated]
            return self.vcs.seat(view.cluster, group, seating.choices(others, room), seated)

        return seat

    def _start_small(self, view: View, runs: Runs, groups: dict[int, str]) -> None:
        """Start elastic jobs whose size does not fit, in the order of their turns."""
        for name, group in self._groups.items():
            if self.vcs.names and name != SPARE:
                continue
            small = self._elastic.start_small(view, runs, group.waiting(runs, self._owners))
            runs.update(small)
            groups.update(dict.fromkeys(small, name))


def make(settings: PolicySettings) -> GandivaFair:
    """Make the policy."""
    return GandivaFair(settings)
