"""What the engine remembers, and its JSON form. All of it can be rebuilt from Slurm and from reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gandiva_slurm.engine.state.aside import Aside
from gandiva_slurm.engine.state.idle import Idle
from gandiva_slurm.engine.state.migration_record import Travels
from gandiva_slurm.engine.state.packs import Pack
from gandiva_slurm.engine.state.plain import build, plain, readable
from gandiva_slurm.engine.state.settings import SECOND_NS as SECOND_NS
from gandiva_slurm.engine.state.settings import EngineSettings as EngineSettings
from gandiva_slurm.engine.state.sighting import Sighting as Sighting
from gandiva_slurm.engine.state.story import SLICING_LINES, STORY_LINES, StoryLine, is_slicing
from gandiva_slurm.engine.state.time_limit_credit import Giving
from gandiva_slurm.model import job as states
from gandiva_slurm.model.bounds import Bounds
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.model.reason import Reason, because
from gandiva_slurm.model.snapshot import Association, JobOptions, SlurmJob, SlurmNode
from gandiva_slurm.policy.learnt import Learnt
from gandiva_slurm.policy.port import GUARANTEED
from gandiva_slurm.policy.shares.associations import Leaf

#: Begin time that the submission filter gives to a job its owner holds: 2100-01-01 UTC. Slurm itself shows an
#: owner's hold and ours alike.
OWNER_HOLD_S = 4_102_444_800

SCHEMA = 2


@dataclass
class JobRecord:
    """A job as the engine knows it.

    `places` has its nodes, in Slurm's order, each with the GPUs it has there (none: which is not known yet).
    It is empty wherever the state has no place. `target` has those it is to move to, kept free for it; a held
    job has some while others move to make room for it.
    """

    job: SlurmJob
    state: str = states.HELD
    since_ns: int = 0
    reason: Reason = field(default_factory=lambda: because("New"))
    places: dict[str, tuple[int, ...]] = field(default_factory=dict)
    target: dict[str, tuple[int, ...]] = field(default_factory=dict)
    travels: Travels = field(default_factory=Travels)
    #: when Slurm was told to start it, the last time; 0 = never
    released_ns: int = 0
    #: starts asked for in all (it numbers the actions), and failures in a row
    starts: int = 0
    #: it runs where it was not started: Slurm, or somebody, has put it there, slot or not
    is_found: bool = False
    failures: int = 0
    retry_ns: int = 0
    #: when Slurm was last told to hold it; 0 = it is held, or runs
    hold_asked_ns: int = 0
    #: an operator released it although its owner held it; until it runs
    user_hold_lifted: bool = False
    #: the begin time with which it was requeued into a hold (`scontrol requeuehold`); any other lifts that
    requeue_hold_s: int = 0
    #: opportunistic: since when it wants GPUs and has none (0: else); whether it was promoted (`promotion`)
    without_ns: int = 0
    is_promoted: bool = False
    idle: Idle = field(default_factory=Idle)
    #: where there are virtual clusters (`owners`): its own
    vc: str = ""
    #: GPU time it has held so far, as nodes told it, all its incarnations together; of a shared GPU half
    held_ns: int = 0
    #: what `gandiva update` gave it; None, "": the priority, the class it was submitted with
    asked_priority: int | None = None
    asked_class: str = ""
    story: list[StoryLine] = field(default_factory=list)
    #: when it was submitted first; 0: an older release took it up
    submitted_s: int = 0

    @property
    def key(self) -> JobKey:
        """Its newest incarnation."""
        return JobKey(self.job.job_id, self.job.restart)

    @property
    def leaf(self) -> Leaf:
        """Where its tickets come from."""
        return Leaf(self.job.account, self.job.user)

    @property
    def model(self) -> str:
        """What it trains: the tasks of an array are alike, other jobs are not, be their numbers the same.

        A simulator says it of each job.
        """
        if self.job.model:
            return self.job.model
        number = str(self.job.array_job_id or self.job.job_id)
        return f"{number}.{self.job.user}.{self.submitted_s}" if self.submitted_s else number

    @property
    def order(self) -> tuple[int, int]:
        """The one total order of jobs."""
        return (self.job.submit_s, self.job.job_id)

    @property
    def options(self) -> JobOptions:
        """What it was submitted with; the engine takes no job without."""
        assert self.job.options is not None
        return self.job.options

    @property
    def priority(self) -> int:
        """Its weight among its user's jobs, 0 to 100."""
        return self.options.priority if self.asked_priority is None else self.asked_priority

    @property
    def job_class(self) -> str:
        """Guaranteed, or opportunistic, now."""
        return GUARANTEED if self.is_promoted else self.asked_class or self.options.job_class

    @property
    def is_opportunistic(self) -> bool:
        """True while it has what guaranteed jobs leave."""
        return self.job_class != GUARANTEED or self.idle.parked_ns > 0

    @property
    def is_placed(self) -> bool:
        """True when it has nodes."""
        return self.state in states.PLACED

    @property
    def is_bound(self) -> bool:
        """True when its GPUs are known on each of its nodes."""
        return bool(self.places) and all(self.places.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes."""
        return tuple(self.places)

    @property
    def span(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Its nodes with their GPUs, when they are several; else empty."""
        return tuple(self.places.items()) if len(self.places) > 1 else ()

    @property
    def target_text(self) -> str:
        """Where it is to move to, in words."""
        told = (f"{name} GPU {','.join(map(str, gpus))}" for name, gpus in self.target.items())
        return ", ".join(told) or "any GPU"

    @property
    def is_owner_held(self) -> bool:
        """True while its owner holds it (--hold, `scontrol hold`) and no operator has released it since."""
        if self.user_hold_lifted:
            return False
        begin_s = self.job.eligible_s
        if self.requeue_hold_s and begin_s == self.requeue_hold_s and self.job.is_held:
            return True
        return begin_s >= OWNER_HOLD_S or (self.options.user_hold and begin_s == 0)

    @property
    def code(self) -> str:
        """The dominant reason's code."""
        return self.reason.code

    @property
    def text(self) -> str:
        """The dominant reason as a sentence."""
        return self.reason.text

    @property
    def evidence(self) -> tuple[str, ...]:
        """What proves the reason."""
        return self.reason.evidence

    def move(self, to: str, reason: Reason, now_ns: int) -> None:
        """Go to another state by the table; IllegalTransition carries the story."""
        if to not in states.STATES[self.state].then:
            states.check_move(str(self.key), self.state, to, self.told())
        self._tell(to, reason, now_ns)
        self.state = to
        self.since_ns = now_ns
        self.reason = reason
        if to not in states.PLACED:
            self.places = {}
        if to not in states.BOUND_ELSEWHERE:
            self.target = {}

    def stay(self, reason: Reason, now_ns: int) -> bool:
        """Change the reason alone; True when it is another one (evidence aside)."""
        is_new = (reason.code, reason.text) != (self.reason.code, self.reason.text)
        if is_new:
            self._tell(self.state, reason, now_ns)
        self.reason = reason
        return is_new

    def told(self) -> str:
        """The story as text, oldest line first."""
        return "\n".join(
            f"  {line.t_s:.3f} {line.from_} -> {line.to} {line.code}: {line.text}" for line in self.story
        )

    def _tell(self, to: str, reason: Reason, now_ns: int) -> None:
        self.story.append(StoryLine(now_ns / SECOND_NS, self.state, to, reason.code, reason.text))
        tail = 0
        while tail < len(self.story) and is_slicing(self.story[-1 - tail]):
            tail += 1
        if tail > SLICING_LINES:  # the turns of a long run must not push the rest of its story out
            del self.story[-tail]
        del self.story[:-STORY_LINES]


def named_jobs(dependency: str) -> set[int]:
    """The job ids in a dependency as Slurm prints it, afterok:7(unfulfilled),after:8+5, and other numbers."""
    return {int(number) for number in re.findall(r"\d+", dependency)}


@dataclass
class NodeRecord:
    """A node of our partitions; `has_daemon` is what the controller last said of its gandivad."""

    node: SlurmNode
    gpus: int = 0
    has_daemon: bool = True
    #: memory of a GPU, as the node said it last of one on which a job lives; 0: not known
    card_bytes: int = 0

    @property
    def is_down(self) -> bool:
        """True when what ran there must be thought lost."""
        return bool(self.node.state & DOWN)

    @property
    def is_open(self) -> bool:
        """True when a new job may be placed there."""
        return self.has_daemon and not self.is_down and not self.node.state & CLOSED


#: Node states in which nothing runs, and those in which nothing new starts. Unknown words close nothing.
DOWN = frozenset({"DOWN", "ERROR", "FAIL", "INVAL", "INVALID_REG", "POWERED_DOWN", "POWERING_DOWN"})
CLOSED = frozenset({
    "DRAIN", "DRAINED", "DRAINING", "FAILING", "FUTURE", "MAINT", "MAINTENANCE", "NOT_RESPONDING",
    "NO_RESPOND", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "UNKNOWN",
})  # fmt: skip


@dataclass(frozen=True)
class Placement:
    """A job's place on a node, for the node's plan. `tickets` in parts of a ticket (SCALE of
    policy.shares.associations).

    Of a job of several nodes `gpus` and `tickets` are this node's part, and `span` has all its places.
    """

    key: JobKey
    user: str
    uid: int
    gpus: tuple[int, ...]
    tickets: int
    submitted_ns: int
    name: str
    span: tuple[tuple[str, tuple[int, ...]], ...] = ()
    #: it is to save itself in its next turn, to be moved
    is_leaving: bool = False
    #: the job it is packed with; 0: none
    mate: int = 0
    #: it has what guaranteed jobs leave, and may be slowed down for the sake of a guaranteed mate
    is_opportunistic: bool = False
    #: its virtual cluster: guaranteed jobs take turns among those of their own
    vc: str = ""
    #: True while the plan has it hold its GPUs; None: there is no plan yet, the node decides
    is_on: bool | None = None
    #: seconds that it has for a checkpoint of its own, by which it leaves; 0: its ranks save it
    own_save_s: int = 0
    #: the partition Slurm runs it in, or those it may run in
    partition: str = ""
    #: Slurm starts it again when it loses its node
    is_requeueable: bool = True


@dataclass(frozen=True)
class TicketShare:
    """A user's tickets, rounded, and his part of the cluster by shares alone (sshare's NormShares)."""

    account: str
    user: str
    tickets: int
    norm_share: Fraction


@dataclass
class EngineState:
    """All the engine remembers between two calls."""

    jobs: dict[int, JobRecord] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    associations: tuple[Association, ...] = ()
    sightings: dict[tuple[str, JobKey], Sighting] = field(default_factory=dict)
    #: jobs set aside, and their records where they are not among `jobs`
    aside: dict[int, Aside] = field(default_factory=dict)
    hidden: dict[int, JobRecord] = field(default_factory=dict)
    #: parked time and time limits, by job id
    givings: dict[int, Giving] = field(default_factory=dict)
    #: which jobs share a GPU at the same time
    packs: list[Pack] = field(default_factory=list)
    #: the jobs that hold their GPUs now by the plan (`apply`), and the rates measured so far
    on: set[int] = field(default_factory=set)
    #: when that was planned the last time: until then it is counted (`held`)
    followed_ns: int = 0
    rates: Learnt = field(default_factory=Learnt)
    #: read anew in each life; None until then
    bounds: Bounds | None = None
    #: by how much the clock that Slurm's times are of is ahead of the cycles'
    skew_ns: int = 0
    #: what of single jobs could not be read, a sentence each
    unread: tuple[str, ...] = field(default=(), compare=False)
    #: set by the first news from Slurm in this life: before it nothing is known to be missing there
    has_read_slurm: bool = False
    may_have_idle: bool = field(default=True, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "schema": SCHEMA,
            "jobs": [plain(record) for record in self.jobs.values()],
            "nodes": [plain(record) for record in self.nodes.values()],
            "aside": [[job_id, plain(aside)] for job_id, aside in self.aside.items()],
            "hidden": [plain(record) for record in self.hidden.values()],
            "associations": [plain(row) for row in self.associations],
            "packs": [plain(pack) for pack in self.packs],
            "on": sorted(self.on),
            "followed_ns": self.followed_ns,
            "skew_ns": self.skew_ns,
            "rates": self.rates.to_json(),
            "givings": [[job_id, plain(giving)] for job_id, giving in self.givings.items()],
            "sightings": [[node, *key, plain(seen)] for (node, key), seen in self.sightings.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EngineState:
        """Read what `to_json` wrote; KeyError, TypeError or ValueError when it is something else."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"engine state of schema {data['schema']}, {SCHEMA} expected")
        unread: list[str] = []
        jobs = readable(data["jobs"], _job_record, unread)
        hidden = readable(data.get("hidden", ()), _job_record, unread)
        if unread and not jobs:
            raise ValueError(unread[0])
        nodes = [_node_record(raw) for raw in data["nodes"]]
        return cls(
            unread=tuple(unread),
            jobs={record.job.job_id: record for record in jobs},
            nodes={record.node.name: record for record in nodes},
            aside={job_id: Aside.from_json(raw) for job_id, raw in data.get("aside", ())},
            hidden={record.job.job_id: record for record in hidden},
            associations=tuple(build(Association, raw) for raw in data["associations"]),
            packs=[build(Pack, raw) for raw in data.get("packs", ())],
            on={*data.get("on", ())} & {record.job.job_id for record in jobs},
            followed_ns=data.get("followed_ns", 0),
            skew_ns=data.get("skew_ns", 0),
            rates=Learnt.from_json(data.get("rates", {})),
            givings={job_id: Giving.from_json(raw) for job_id, raw in data["givings"]},
            sightings={
                (node, JobKey(job_id, restart)): _sighting(raw)
                for node, job_id, restart, raw in data["sightings"]
            },
        )


def _sighting(raw: Mapping[str, Any]) -> Sighting:
    return build(Sighting, {**raw, "measured": build(Measured, raw.get("measured", {}))})


def _job_record(raw: Mapping[str, Any]) -> JobRecord:
    job = dict(raw["job"])
    job["options"] = None if job["options"] is None else build(JobOptions, job["options"])
    record = build(JobRecord, {**raw, "job": None, "reason": None, "story": ()})
    record.job = build(SlurmJob, job)
    record.reason = build(Reason, raw["reason"])
    record.idle = build(Idle, raw.get("idle", {}))
    record.places = {node: tuple(gpus) for node, gpus in raw["places"].items()}
    record.target = {node: tuple(gpus) for node, gpus in raw.get("target", {}).items()}
    record.travels = Travels.from_json(raw.get("travels", {}))
    record.story = [StoryLine(*line) for line in raw["story"]]
    return record


def _node_record(raw: Mapping[str, Any]) -> NodeRecord:
    node = build(SlurmNode, raw["node"])
    node = build(SlurmNode, {**vars(node), "state": frozenset(raw["node"]["state"])})
    return NodeRecord(node, raw["gpus"], raw["has_daemon"], raw.get("card_bytes", 0))
