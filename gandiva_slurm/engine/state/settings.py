"""What the site sets for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SECOND_NS = 10**9


@dataclass(frozen=True)
class EngineSettings:
    """What the site sets, in nanoseconds where it is a time."""

    quantum_ns: int = 60 * SECOND_NS
    slots_per_gpu: int = 4
    start_deadline_ns: int = 60 * SECOND_NS
    #: First wait after a start that failed; doubles with each failure up to the longest.
    retry_ns: int = 5 * SECOND_NS
    longest_retry_ns: int = 300 * SECOND_NS
    #: How often Slurm is asked, by a start, whether what a job depends on is met, or a limit lifted.
    probe_ns: int = 30 * SECOND_NS
    #: How long a job that is to be held may stay unheld before that is asked for again.
    hold_again_ns: int = 10 * SECOND_NS
    #: How long a running job's GPUs may stay unreported before the engine assigns some.
    adopt_ns: int = 5 * SECOND_NS
    #: How long processes may outlive their job before they are fenced. Longer than Slurm's KillWait (30 s): a
    #: cancelled job may use all of that to save its work.
    fence_grace_ns: int = 45 * SECOND_NS
    #: How far past its partition's MaxTime parked time may take a time limit, in hundredths of MaxTime.
    stretch_percent: int = 200
    #: How long a finished job is remembered.
    keep_ended_ns: int = 900 * SECOND_NS

    # moves (`moving`)
    #: Whether running jobs are moved at all.
    moves: bool = True
    #: How long a job rests after a move that failed; twice as long after each that follows.
    failed_rest_ns: int = 1800 * SECOND_NS
    #: How long a job stays after a start or a move, and how often it is moved within an hour at most; 0: as
    #: the policy likes.
    min_run_ns: int = 0
    moves_per_hour: int = 0
    #: How long a job may take until it has saved itself; it does so in its next turn.
    move_deadline_ns: int = 900 * SECOND_NS

    # packing (`led_packs`)
    #: Whether two jobs may share a GPU at the same time.
    packing: bool = True
    #: What the normalised rates of two must sum to.
    pack_floor: float = 1.05

    # idle GPUs (`idleness`)
    #: How long a job may hold GPUs idle until it is told of, and so much longer until others go before it; 0:
    #: never. Whether one that can be saved makes way then for others that wait for room.
    idle_tell_ns: int = 0
    idle_park_ns: int = 0
    idle_requeue: bool = False

    #: By virtual cluster, in the order in which they are dealt to: GPUs of each type.
    virtual_clusters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    #: By GPU type: GPUs of a node's switch and socket (`cells`).
    cells: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
