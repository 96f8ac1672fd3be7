"""The states of a job, as data: the one table of what holds in each, what may follow, and what survives.

docs/architecture.md tells it in words, the engine moves jobs by it, the tests walk it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.model.errors import GandivaError

HELD = "HELD"
STARTING = "STARTING"
RUNNING = "RUNNING"
SUSPENDING = "SUSPENDING"
SUSPENDED = "SUSPENDED"
RESUMING = "RESUMING"
CHECKPOINTING = "CHECKPOINTING"
REQUEUED = "REQUEUED"
ENDED = "ENDED"


@dataclass(frozen=True)
class StateRow:
    """One state: what Slurm shows, what always holds, what may follow, what survives a restart of ours."""

    name: str
    slurm_shows: tuple[str, ...]
    invariant: str
    then: tuple[str, ...]
    survives: str


_ROWS = (
    StateRow(
        HELD,
        ("PENDING, priority 0",),
        "no node, no GPUs; one reason says why it waits",
        (STARTING, RUNNING, ENDED),
        "all: Slurm keeps the job and its hold, the options are in its AdminComment",
    ),
    StateRow(
        STARTING,
        ("PENDING, released",),
        "its nodes and GPUs are set aside; each node knows the plan; a deadline runs",
        (RUNNING, HELD, ENDED),
        "journal; without it Slurm shows the job released and it is held again, or running and it is adopted",
    ),
    StateRow(
        RUNNING,
        ("RUNNING", "CONFIGURING", "SUSPENDED"),
        "on its nodes; holds its GPUs or may be given them in the next quantum; not held in Slurm",
        (SUSPENDING, SUSPENDED, RESUMING, CHECKPOINTING, HELD, ENDED),
        "all: Slurm has job and nodes, the nodes' reports have the GPUs",
    ),
    StateRow(
        SUSPENDING,
        ("RUNNING",),
        "ordered to park; holds its GPUs until its last rank has released",
        (RUNNING, SUSPENDED, RESUMING, CHECKPOINTING, HELD, ENDED),
        "all, as RUNNING",
    ),
    StateRow(
        SUSPENDED,
        ("RUNNING",),
        "every rank has released; holds no GPU; its park has a bound",
        (RUNNING, RESUMING, SUSPENDING, CHECKPOINTING, HELD, ENDED),
        "all, as RUNNING",
    ),
    StateRow(
        RESUMING,
        ("RUNNING",),
        "its GPUs, the same as before, are granted again; not every rank has said so yet",
        (RUNNING, SUSPENDING, SUSPENDED, CHECKPOINTING, HELD, ENDED),
        "all, as RUNNING",
    ),
    StateRow(
        CHECKPOINTING,
        ("RUNNING",),
        "saves itself in its next turn, at a state boundary, and stays parked then; its place is kept, and "
        "the one it is to move to (none where it makes way: then it is held afterwards); a deadline runs",
        (RUNNING, REQUEUED, HELD, ENDED),
        "journal; without it the job runs on where it is",
    ),
    StateRow(
        REQUEUED,
        ("PENDING",),
        "it was told to save itself to be moved; the place it is to move to is kept; a deadline runs",
        (STARTING, RUNNING, HELD, ENDED),
        "journal; without it the job is placed as any held one",
    ),
    StateRow(
        ENDED,
        ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"),
        "holds nothing; what is left of it on a node is fenced. Slurm can requeue a finished job: then HELD",
        (HELD,),
        "the ledger",
    ),
)

#: state name → its row
STATES = {row.name: row for row in _ROWS}

#: States in which the job's processes are on a node and its gang is sliced. Reports are samples: between two
#: of them a job may pass through several, so any of these may be seen after any other.
SLICED = (RUNNING, SUSPENDING, SUSPENDED, RESUMING)

#: States in which its processes are on a node.
RESIDENT = (*SLICED, CHECKPOINTING)

#: States in which a job has a place: nodes, GPUs and slots.
PLACED = (STARTING, *RESIDENT)

#: States in which it waits for a place, or to be started on the one kept for it.
WAITING = (HELD, REQUEUED)

#: States in which a place is kept for it to move to.
BOUND_ELSEWHERE = (CHECKPOINTING, REQUEUED)


class IllegalTransition(GandivaError):
    """A job was to move where its state does not lead; the message carries its story."""


def check_move(name: str, was: str, to: str, story: str) -> None:
    """Raise IllegalTransition unless the table lets `was` go to `to`."""
    if to not in STATES[was].then:
        allowed = " or ".join(STATES[was].then)
        raise IllegalTransition(
            f"job {name}: {was} does not lead to {to}, only to {allowed}; report it with its story:\n{story}"
        )
