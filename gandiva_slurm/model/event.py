"""What may happen to the engine. Made by `controller.differences`, from reports and from outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gandiva_slurm.model.bounds import Bounds
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from gandiva_slurm.model.snapshot import Association, SlurmJob, SlurmNode


@dataclass(frozen=True)
class JobSeen:
    """A Gandiva job is new or differs from the last picture (submitted, started, requeued, changed)."""

    job: SlurmJob


@dataclass(frozen=True)
class JobGone:
    """A job is finished or has left Slurm's memory; `state` is Slurm's last word, "" when it said none."""

    job_id: int
    state: str
    end_s: int
    exit_code: str
    #: of which incarnation that is; -1: Slurm does not say
    restart: int = -1


@dataclass(frozen=True)
class NodeSeen:
    """A node of our partitions is new or differs."""

    node: SlurmNode


@dataclass(frozen=True)
class NodeGone:
    """A node has left our partitions."""

    name: str


@dataclass(frozen=True)
class SharesSeen:
    """The association tree was read again and differs."""

    associations: tuple[Association, ...]


@dataclass(frozen=True)
class BoundsSeen:
    """Partitions' MaxTime and reservations were read."""

    bounds: Bounds


@dataclass(frozen=True)
class ResidentSeen:
    """What a node says of one job (from its report)."""

    node: str
    key: JobKey
    state: str
    gpus: tuple[int, ...]
    reason: str
    detail: str
    #: how long this incarnation has held no GPU there, in all
    parked_ns: int = 0
    #: told to leave, it has saved itself
    has_left: bool = False
    measured: Measured = field(default_factory=Measured)
    #: told to leave by a checkpoint of its own: it holds its GPUs, and keeps them for that
    has_floor: bool = False
    #: what the move that it came by has cost it; -1: not told, the engine measures it between its looks
    move_ns: int = -1
    #: for how long the incarnations that it goes on from, by an image, had held their GPUs
    spent_ns: int = 0


@dataclass(frozen=True)
class ResidentGone:
    """A node no longer has this incarnation."""

    node: str
    key: JobKey


@dataclass(frozen=True)
class HeldTold:
    """GPU time that incarnations have held on a node so far, in all; of a shared GPU half.

    `at_ns`: when the node said so, in unix time; 0: at this moment.
    """

    node: str
    held_ns: tuple[tuple[JobKey, int], ...]
    at_ns: int = 0


@dataclass(frozen=True)
class DaemonSeen:
    """Whether a node's gandivad answers: where it does not, no job is placed. Never told = it answers."""

    node: str
    alive: bool


@dataclass(frozen=True)
class ActionDone:
    """The outcome of an action: `error` is "" on success, else Slurm's own sentence; `retry` = not now."""

    action_id: str
    error: str = ""
    retry: bool = False


@dataclass(frozen=True)
class PriorityAsked:
    """A job's owner, or an operator, gives it another priority among that user's jobs: 0 to 100."""

    job_id: int
    priority: int


@dataclass(frozen=True)
class ClassAsked:
    """A job's owner, or an operator, makes it guaranteed or opportunistic from now on."""

    job_id: int
    job_class: str


#: What is asked of one job by `gandiva update`.
Asked = PriorityAsked | ClassAsked


@dataclass(frozen=True)
class ClockSkew:
    """By how much the system's clock, and so Slurm's times, are ahead of the cycles' (`controller.clock`)."""

    skew_ns: int


@dataclass(frozen=True)
class JobSetAside:
    """A job alone causes an error, `why`: it is to be set aside (`lifecycle.setting_aside`) before the rest.

    `is_hidden`: from the policy, too.
    """

    job_id: int
    why: str
    is_hidden: bool = False


@dataclass(frozen=True)
class PolicyLate:
    """The policy took too long for this cycle's question. Only a recording tells it: live, it is seen."""


@dataclass(frozen=True)
class CycleTick:
    """A cycle began; deadlines are looked at. Always the last event of a cycle."""


@dataclass(frozen=True)
class RoundTick:
    """A round is due between two looks at Slurm: whose turn it is is decided by what is known."""


Event = (
    JobSeen
    | JobGone
    | NodeSeen
    | NodeGone
    | SharesSeen
    | BoundsSeen
    | ResidentSeen
    | ResidentGone
    | HeldTold
    | DaemonSeen
    | ActionDone
    | PriorityAsked
    | ClassAsked
    | ClockSkew
    | JobSetAside
    | PolicyLate
    | CycleTick
    | RoundTick
)
