"""The engine of the slow clock: events in, actions out. No clock, no randomness, no I/O (ADR 0010, 0037).

One order of things in a cycle: news changes the records (`event_handlers`); then, at the tick, starts and
moves are watched, holds asked for, the policy's plan is carried out (`decider`, `carry_out`), strays fenced
(`fencing`) and old records dropped. The live controller, tests and a simulator drive it by the same calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from gandiva_slurm.engine.apply.decider import Decider, Leader
from gandiva_slurm.engine.lifecycle import event_handlers, forgotten, moving, time_limits, unrestored
from gandiva_slurm.engine.lifecycle.draining import leave_drained
from gandiva_slurm.engine.lifecycle.fencing import fence_strays
from gandiva_slurm.engine.lifecycle.idleness import watch_idle
from gandiva_slurm.engine.lifecycle.owners import note_owners
from gandiva_slurm.engine.lifecycle.placing import ask_holds, in_order, need_of, watch_starts
from gandiva_slurm.engine.lifecycle.setting_aside import bring_back_of_other_releases, pass_on, set_aside
from gandiva_slurm.engine.state import held
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import (
    SECOND_NS,
    EngineSettings,
    EngineState,
    JobRecord,
    NodeRecord,
    Placement,
    TicketShare,
)
from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.reason import because
from gandiva_slurm.model.snapshot import Association
from gandiva_slurm.policy.shares.associations import SCALE, Leaf, leaf_tickets, norm_shares, split
from gandiva_slurm.slicing.groups import group_of
from gandiva_slurm.slicing.stride import STRIDE1

__all__ = ["Engine", "EngineSettings"]

_HANDLERS: dict[type, Callable[[Cycle, Any], None]] = {
    ev.JobSeen: event_handlers.job_seen,
    ev.JobGone: event_handlers.job_gone,
    ev.NodeSeen: event_handlers.node_seen,
    ev.NodeGone: event_handlers.node_gone,
    ev.SharesSeen: event_handlers.shares_seen,
    ev.BoundsSeen: event_handlers.bounds_seen,
    ev.ResidentSeen: event_handlers.resident_seen,
    ev.ResidentGone: event_handlers.resident_gone,
    ev.HeldTold: held.held_told,
    ev.DaemonSeen: event_handlers.daemon_seen,
    ev.ActionDone: event_handlers.action_done,
    ev.PriorityAsked: event_handlers.priority_asked,
    ev.ClassAsked: event_handlers.class_asked,
    ev.PolicyLate: event_handlers.policy_late,
    ev.JobSetAside: set_aside,
    ev.ClockSkew: event_handlers.clock_skew,
}


class Engine:
    """All decisions of the cluster's slow clock."""

    def __init__(self, settings: EngineSettings, leader: Leader) -> None:
        """`leader`: the policy that decides which job is where."""
        self.settings = settings
        self.state = EngineState()
        self.decider = Decider(leader)
        self._placements: dict[str, tuple[Placement, ...]] | None = None
        #: by job: what its placements were made of, and they
        self._placed: dict[int, tuple[tuple[object, ...], list[tuple[str, Placement]]]] = {}
        self._fences: dict[str, tuple[JobKey, ...]] | None = None
        self._shares: tuple[tuple[object, ...], Mapping[str, TicketShare]] | None = None
        self._tickets: tuple[tuple[object, ...], Mapping[int, int]] | None = None
        #: by user and group: the tickets of all placed jobs
        self._user_tickets: Counter[tuple[str, str]] = Counter()

    def lead(self, leader: Leader) -> None:
        """Let another policy decide from now on. Jobs stay where they are."""
        self.decider = Decider(leader)
        self.decider.has_plan = bool(self.state.on)

    def handle(self, events: Sequence[ev.Event], now_ns: int) -> list[Action]:
        """Take the news, then (at a tick) decide; return what the world is to do, in order.

        At a RoundTick the plan changes whose turn it is, and nothing else: starts and moves wait for a look
        at Slurm.

        The same events at the same times give the same actions. `now_ns` is unix time and must not go back.
        """
        at = Cycle(self.state, self.settings, now_ns)
        self._placements = self._fences = None
        self.decider.was_late = False
        for event in (part for each in events for part in pass_on(at, each)):
            if isinstance(event, ev.CycleTick):
                self._decide(at)
            elif isinstance(event, ev.RoundTick):
                held.follow_plan(at)
                self.decider.decide(at, is_round=True)
            else:
                _HANDLERS[type(event)](at, event)
            if isinstance(event, ev.ResidentSeen):
                time_limits.note_parked(at, event)
                moving.note_resident(at, event)
                unrestored.note_unrestored(at, event)
            elif isinstance(event, ev.ActionDone):
                moving.note_outcome(at, event)
        self._drop_gone()
        return at.actions

    @property
    def jobs(self) -> Mapping[int, JobRecord]:
        """Every job known, finished ones for a while, those that are set aside by their stand-ins."""
        return MappingProxyType(self.state.jobs | self.state.hidden if self.state.hidden else self.state.jobs)

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """Every node of our partitions."""
        return MappingProxyType(self.state.nodes)

    def plan_jobs(self, node: str) -> tuple[Placement, ...]:
        """Return the jobs that live on a node, or are about to, with their GPUs and tickets."""
        if self._placements is None:
            self._placements = self._plan()
        return self._placements.get(node, ())

    def ahead(self, node: str) -> tuple[tuple[int, int, int], ...]:
        """Return (job, pass of its user, its own pass) for the jobs planned on a node that have GPUs there.

        Passes are those ahead of the one furthest behind on the cluster, by all tickets of a user's jobs.
        """
        ahead = self.decider.ahead
        jobs = [place for place in self.plan_jobs(node) if place.key.job_id in ahead]
        return tuple((place.key.job_id, *self._passes(place, *ahead[place.key.job_id])) for place in jobs)

    def _passes(self, place: Placement, user_ns: int, job_ns: int) -> tuple[int, int]:
        tickets = self._tickets[1] if self._tickets else {}
        group = (place.user, group_of(place.vc, place.is_opportunistic))
        of_user, of_job = self._user_tickets.get(group, 0), tickets.get(place.key.job_id, 0)
        return user_ns * STRIDE1 // max(1, of_user), job_ns * STRIDE1 // max(1, of_job)

    def fences(self, node: str) -> tuple[JobKey, ...]:
        """Return the incarnations this node must stop, as long as it reports them."""
        if self._fences is None:
            self._fences = {}
            for where, key in sorted(spot for spot, seen in self.state.sightings.items() if seen.is_fenced):
                self._fences[where] = (*self._fences.get(where, ()), key)
        return self._fences.get(node, ())

    def waiting_again(self) -> tuple[int, ...]:
        """Return the jobs that have run and wait to be started again, in order."""
        waiting = (*states.WAITING, states.STARTING)
        jobs = self.jobs.items()
        return tuple(sorted(job_id for job_id, each in jobs if each.job.restart and each.state in waiting))

    def tickets(self) -> Mapping[str, TicketShare]:
        """Return every user's tickets, and his part of the cluster by shares alone.

        The tickets of who has no live guaranteed job are those he would have were all users present. In each
        virtual cluster they are split anew.
        """
        records = [record for record in self.state.jobs.values() if record.state != states.ENDED]
        live = frozenset(record.leaf for record in records)
        active = frozenset(record.leaf for record in records if not record.is_opportunistic)
        key = (self.state.associations, live, active)
        if self._shares is None or self._shares[0] != key:
            self._shares = (key, _ticket_shares(*key))
        return self._shares[1]

    def to_json(self) -> dict[str, Any]:
        """Return the whole state as plain JSON data, for the journal; with what a policy knows."""
        memory = self.decider.to_json()
        return self.state.to_json() | ({"policy": memory} if memory is not None else {})

    @classmethod
    def from_json(cls, settings: EngineSettings, data: Mapping[str, Any], leader: Leader) -> Engine:
        """Read what `to_json` wrote; another policy than that one begins anew.

        The first cycle must then hear of all of Slurm's jobs and nodes, and a JobGone for each job of `jobs`
        that Slurm shows no more. An engine that starts empty needs the same: it adopts what runs.
        """
        engine = cls(settings, leader)
        engine.state = EngineState.from_json(data)
        bring_back_of_other_releases(engine.state)
        engine.decider = Decider(leader, data.get("policy"))
        engine.decider.has_plan |= bool(engine.state.on)
        return engine

    def _drop_gone(self) -> None:
        """What lives nowhere any more holds nothing, also where nothing is planned anew: Slurm is away."""
        jobs = self.state.jobs
        self.state.on = {job_id for job_id in self.state.on if job_id in jobs and jobs[job_id].is_placed}

    def _decide(self, at: Cycle) -> None:
        note_owners(at)
        watch_starts(at)
        moving.watch_moves(at)
        self._watch_nodes(at)
        ask_holds(at)
        forgotten.ask_again(at)
        leave_drained(at)
        unrestored.leave_unfit(at)
        held.follow_plan(at)
        watch_idle(at)
        self.decider.decide(at)
        time_limits.give_back(at)
        fence_strays(at)
        self._forget(at)

    def _watch_nodes(self, at: Cycle) -> None:
        """Say of jobs on a node that is down why nothing moves."""
        for record in in_order(at, *states.SLICED):
            lost = event_handlers.lost_node(at, record)
            if lost is not None:
                record.stay(lost, at.now_ns)
            elif record.code == "NodeDown":
                record.stay(because("Adopted", node=",".join(record.nodes)), at.now_ns)

    def _forget(self, at: Cycle) -> None:
        old = [
            job_id
            for job_id, record in self.state.jobs.items()
            if record.state == states.ENDED and at.now_ns - record.since_ns >= self.settings.keep_ended_ns
        ]
        for job_id in old:
            del self.state.jobs[job_id]
        if old:
            self.state.rates.forget({record.model for record in self.state.jobs.values()})

    def _plan(self) -> dict[str, tuple[Placement, ...]]:
        """Split each user's tickets over his placed jobs: all he has is on the nodes, once in each group."""
        placed = sorted(
            (record for record in self.jobs.values() if record.is_placed and record.is_bound),
            key=lambda record: record.order,
        )
        weighed = [(each.job, each.priority, each.vc, each.is_opportunistic) for each in placed]
        key = (self.state.associations, weighed)
        if self._tickets is None or self._tickets[0] != key:
            self._tickets = (key, _tickets_of(self.state.associations, placed))
            self._user_tickets = Counter()
            for record in placed:
                group = (record.job.user, need_of(record).group)
                self._user_tickets[group] += self._tickets[1][record.job.job_id]
        tickets = self._tickets[1]
        on = self.state.on if self.decider.has_plan else None
        mates = _pairs(record for record in placed if on and record.job.job_id in on)
        plan: dict[str, list[Placement]] = {}
        for record in placed:
            job_id = record.job.job_id
            is_on = None if on is None or job_id in self.state.hidden else job_id in on
            for node, place in self._places(record, tickets[job_id], mates.get(job_id, 0), is_on):
                plan.setdefault(node, []).append(place)
        self._placed = {record.job.job_id: self._placed[record.job.job_id] for record in placed}
        return {node: tuple(jobs) for node, jobs in plan.items()}

    def _places(
        self, record: JobRecord, tickets: int, mate: int, is_on: bool | None
    ) -> list[tuple[str, Placement]]:
        """Return a job's placements: the same objects as long as they are made of the same."""
        job_id, leaves = record.job.job_id, (record.state == states.CHECKPOINTING, record.travels.by)
        classes = (record.vc, record.is_opportunistic)
        key = (record.job, tuple(record.places.items()), tickets, mate, is_on, leaves, classes)
        known = self._placed.get(job_id)
        if known is None or known[0] != key:
            known = self._placed[job_id] = (key, [*_placements(self.settings, record, tickets, mate, is_on)])
        return known[1]


def _pairs(on: Iterable[JobRecord]) -> dict[int, int]:
    """The jobs that are to hold the same GPUs, by each other's id."""
    first: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
    mates: dict[int, int] = {}
    for record in on:
        job_id, places = record.job.job_id, tuple(sorted(record.places.items()))
        other = first.setdefault(places, job_id)
        if other != job_id:
            mates |= {job_id: other, other: job_id}
    return mates


def _tickets_of(rows: Sequence[Association], placed: Iterable[JobRecord]) -> dict[int, int]:
    """Split each user's tickets over the jobs that take turns together."""
    groups: dict[str, dict[Leaf, dict[int, int]]] = {}
    for record in placed:
        need = need_of(record)
        groups.setdefault(need.group, {}).setdefault(need.leaf, {})[need.job_id] = need.weight
    tickets: dict[int, int] = {}
    for weights in groups.values():
        parts = leaf_tickets(rows, list(weights))
        for leaf, jobs in weights.items():
            tickets.update(split(parts[leaf], jobs))
    return tickets


def _placements(
    settings: EngineSettings, record: JobRecord, tickets: int, mate: int, is_on: bool | None
) -> Iterator[tuple[str, Placement]]:
    """A job's places by node; its tickets lie on them as its GPUs do."""
    job = record.job
    parts = split(tickets, {node: len(gpus) for node, gpus in record.places.items()})
    # one that goes on from its own newest file has nothing to do for it
    leaves = record.state == states.CHECKPOINTING and record.travels.by != moving.BY_SELF
    is_signalled = leaves and record.travels.by == moving.BY_SIGNAL
    own = moving.own_signal(settings, record) if is_signalled else None
    submitted_ns, span, is_spare = job.submit_s * SECOND_NS, record.span, record.is_opportunistic
    for node, gpus in record.places.items():
        part = parts[node]
        yield (
            node,
            Placement(
                record.key,
                *(job.user, job.uid, gpus, part, submitted_ns, job.name, span, leaves),
                is_opportunistic=is_spare,
                vc=record.vc,
                mate=mate,
                is_on=is_on,
                own_save_s=own.grace_s if own is not None else 0,
                partition=job.partition,
                is_requeueable=job.batch and job.requeue,
            ),
        )


def _ticket_shares(
    rows: Sequence[Association], live: Collection[Leaf], active: Collection[Leaf]
) -> Mapping[str, TicketShare]:
    norm = norm_shares(rows, live)
    parts = leaf_tickets(rows, list(norm)) | leaf_tickets(rows, active)
    users: dict[str, list[Leaf]] = {}
    for leaf in sorted(norm):
        users.setdefault(leaf.user, []).append(leaf)
    shares = {}
    for user, leaves in users.items():
        present = [leaf for leaf in leaves if leaf in live] or leaves
        tickets = max(1, round(sum(parts[leaf] for leaf in present) / SCALE))
        share = sum((norm[leaf] for leaf in present), Fraction(0))
        shares[user] = TicketShare(",".join(leaf.account for leaf in present), user, tickets, share)
    return shares
