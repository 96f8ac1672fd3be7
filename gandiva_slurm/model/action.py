"""What the engine asks the world to do. Each is idempotent, with an id, a reason code and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.model.ids import JobKey


@dataclass(frozen=True)
class Start:
    """Start a held job on its nodes: ReqNodeList, StartTime=now, release (ADR 0003)."""

    action_id: str
    key: JobKey
    #: each of its nodes with the GPUs set aside there
    places: tuple[tuple[str, tuple[int, ...]], ...]
    code: str
    text: str
    #: an elastic job's GPUs: Slurm's record of it is to ask for so many; 0: it does already
    gpus: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes Slurm is to start it on."""
        return tuple(node for node, _ in self.places)


@dataclass(frozen=True)
class HoldAgain:
    """Hold a pending job that is not to start now: put off, requeued, or released by others (ADR 0003)."""

    action_id: str
    key: JobKey
    code: str
    text: str


@dataclass(frozen=True)
class SetTimeLimit:
    """Set a job's time limit in Slurm (ADR 0013)."""

    action_id: str
    key: JobKey
    minutes: int
    code: str
    text: str


#: The ends in Slurm after which a job is requeued, where that is its engine's wish.
REQUEUED_ENDED = frozenset({"FAILED", "COMPLETED"})


@dataclass(frozen=True)
class Requeue:
    """Requeue a job that has saved itself, to be started elsewhere (ADR 0003)."""

    action_id: str
    key: JobKey
    code: str
    text: str
    #: it has ended (`REQUEUED_ENDED`): it had saved itself upon its signal, or a requeue was forgotten
    has_ended: bool = False


@dataclass(frozen=True)
class Signal:
    """Tell a running job to save itself, by the signal that it handles; held first, lest Slurm restart it."""

    action_id: str
    key: JobKey
    #: USR1, and whether to its batch shell alone, or to its steps
    name: str
    to_batch: bool
    code: str
    text: str


@dataclass(frozen=True)
class Unhold:
    """Take back the hold of a job that was signalled, runs on all the same, and is not to leave any more."""

    action_id: str
    key: JobKey
    code: str
    text: str


@dataclass(frozen=True)
class Fence:
    """Tell a node to stop an incarnation that is not the newest (ADR 0003, fencing)."""

    action_id: str
    key: JobKey
    node: str
    code: str
    text: str


@dataclass(frozen=True)
class Note:
    """Nothing to do but to tell: why a job waits. `code` is of model.reason."""

    action_id: str
    key: JobKey
    code: str
    text: str
    evidence: tuple[str, ...] = ()


Action = Start | HoldAgain | SetTimeLimit | Requeue | Signal | Unhold | Fence | Note
