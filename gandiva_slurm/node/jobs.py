"""A resident job: everything a node knows of one incarnation that Slurm has started here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RESUMING, RUNNING, SUSPENDED, SUSPENDING
from gandiva_slurm.node.gauge import Gauge
from gandiva_slurm.node.image_state import Image
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.park import SANE_SEQ
from gandiva_slurm.node.part import Part
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.ranks import UNKNOWN, Rank, RankSet
from gandiva_slurm.node.returning import Returning
from gandiva_slurm.node.usage import Usage
from gandiva_slurm.policy.packing.duty import FIRST
from gandiva_slurm.slicing import local
from gandiva_slurm.slicing.refusal import Refusal
from gandiva_slurm.wire import page as wire

#: A gang that failed to park so often is asked in every fourth quantum only.
PATIENCE, PAUSE_QUANTA = 3, 4
#: After so many failures in a row the driver is not asked to keep a job's memory any more.
MOST_FAILURES = 3
#: What a rank says of its groups' time-outs shortens a freeze, but to no less than this, nor than a quantum.
LEAST_FREEZE_NS = 1_000_000_000
MS = 1_000_000
#: When a job has done so many mini-batches is kept: how early its user sees whether it learns.
FIRST_STEPS = 100
#: Ranks of one job on one node, at most: each costs the daemon two descriptors.
MAX_RANKS = 1024


@dataclass
class Counts:
    """What is counted over a job's life here."""

    suspends: int = 0
    reaims: int = 0
    off_boundary: int = 0
    failed_parks: int = 0
    parked_ns: int = 0
    #: GPU time held while no parkable client was there, since the last one was
    blind_ns: int = 0
    #: GPU time held here so far, of each of its GPUs, and the part of it past its quantum
    held_ns: int = 0
    over_ns: int = 0
    #: the part of it in which its mate held them too
    shared_ns: int = 0
    #: the part of it in which it had no GPU and ran all the same: woken for a signal, or found running
    awake_ns: int = 0
    #: the part of that in which its ranks wrote themselves to disk; `held_ns` when they were asked to last
    written_ns: int = 0
    asked_held_ns: int = 0
    #: mini-batches of ranks that are gone
    done_steps: int = 0
    #: trainings whose ranks are gone, and how far the last of them was
    trainings: int = 0
    stand: tuple[int, int] = UNKNOWN
    #: mini-batches a second while it runs, smoothed
    rate: float = 0.0
    #: unix time at which it had done FIRST_STEPS
    first_ns: int = 0


@dataclass
class Leave:
    """How the leaving of a gang that is to be moved stands (`leaving`)."""

    is_told: bool = False
    #: the park under way asks it to save itself
    is_saving: bool = False
    #: quanta in which it is not asked to, and why its last save failed
    rest_quanta: int = 0
    error: str = ""
    #: seconds that it has to save itself upon a signal of its own; 0: its ranks do
    own_save_s: int = 0
    #: how long its save took, from the order until all of it was parked; 0: it has not saved itself
    save_ns: int = 0


@dataclass
class Away:
    """How a job stands with the driver, which may keep its memory (`away`)."""

    is_out: bool = False
    #: its processes when the driver was asked; when it has answered, the one it took, and its bytes by GPU
    procs: list[ProcId] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    #: why the last call failed
    why: str = ""
    #: the order to park that the driver was asked for, and when it is asked to bring back next
    asked_ns: int = 0
    again_ns: int = 0
    #: asked before the job is frozen, which it is whatever the answer
    is_before_freeze: bool = False

    @property
    def failed(self) -> str:
        """Why the driver is not asked for this job any more, "" while it is."""
        is_over = self.failures >= MOST_FAILURES
        return f"it is not tried any more, for it failed {self.failures} times" if is_over else ""

    def to_json(self) -> dict[str, Any]:
        """Return what must survive this daemon."""
        names = ("is_out", "procs", "bytes", "failures", "why")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Away:
        """Read it again."""
        return cls(**{**row, "procs": [ProcId(*proc) for proc in row["procs"]]})


@dataclass
class Words:
    """What was said last on whether it may work here: when that was asked (`slicing.lease`).

    `heard_ns`: Slurm hears this node and shows the job here, or cannot be asked. `shown_ns`: it shows it.
    `together_ns`: no other node works on it. `halted_ns`: since when it stands still; 0: it does not.
    """

    heard_ns: int = field(default_factory=time.monotonic_ns)
    shown_ns: int = 0
    together_ns: int = 0
    halted_ns: int = 0


@dataclass
class Pacing:
    """An opportunistic job's duty beside a guaranteed one, and where that one stood when it began."""

    percent: int = FIRST
    steps: int = 0
    #: 0: it is to be looked at anew
    since_ns: int = 0


@dataclass(eq=False)
class Resident:
    """One incarnation on this node. Times are monotonic unless named `real`."""

    key: JobKey
    user: str
    gpus: tuple[int, ...]
    tickets: int
    submitted_ns: int
    processes: JobProcesses
    registered_real_ns: int
    registered_ns: int = 0
    name: str = ""
    #: False while no plan names it: it was placed here by the node itself
    is_planned: bool = True
    slots: tuple[int, ...] = ()
    state: str = SUSPENDED
    since_ns: int = 0
    #: bytes of GPU memory that it kept while it was parked, as NVML saw it last, and when
    kept: tuple[int, int] = (0, 0)
    sets: list[RankSet] = field(default_factory=list)
    #: tasks of numbered steps, by their slurmstepd: they are expected to become ranks
    tasks: dict[ProcId, set[ProcId]] = field(default_factory=dict)
    #: processes we have stopped, and those that were stopped already
    stopped: set[ProcId] = field(default_factory=set)
    left_stopped: set[ProcId] = field(default_factory=set)
    #: True while all of it is stopped by us, not only what started while it was parked
    is_frozen: bool = False
    #: not all that is expected to train could be asked to park when it was last stopped so
    is_unasked: bool = False
    #: True while its control group is frozen: it holds no GPU, and nothing of it runs (`freezer`)
    is_shut: bool = False
    #: True where the node's other GPUs are closed to it (`devices`); None: none of its tasks has come
    is_confined: bool | None = None
    #: by the plan, it is not frozen while it is parked
    is_trusted: bool = False
    #: it was, and was seen to work while it was parked: it is frozen then, whatever the plan says
    is_caught: bool = False
    #: by the plan, Slurm may start it elsewhere when it gives this node up
    is_requeueable: bool = True
    #: False while nothing of its batch script can have run: its task was stopped before that, and is still
    has_begun: bool = True
    words: Words = field(default_factory=Words)
    #: until when it runs though it holds no GPU, for a signal waits for it; and charged for that up to here
    awake_until_ns: int = 0
    awake_from_ns: int = 0
    #: the park under way, or the present one, asks its ranks to write themselves to disk (`behind`)
    is_writing: bool = False
    #: when all of it was sent SIGSTOP
    stopped_ns: int = 0
    #: True once it is to be killed, or its slurmstepd is gone
    is_ending: bool = False
    is_fenced: bool = False
    #: charged up to here; held past its quantum since then (None = it is not)
    charged_ns: int = 0
    overrun_from_ns: int | None = None
    ordered_ns: int = 0
    #: quanta to wait before it is asked to park again, after a failure
    pause_quanta: int = 0
    #: its parks that failed, and whether others have borne them for long enough
    refusal: Refusal = field(default_factory=Refusal)
    is_refusing: bool = False
    leave: Leave = field(default_factory=Leave)
    away: Away = field(default_factory=Away)
    returning: Returning = field(default_factory=Returning)
    image: Image = field(default_factory=Image)
    #: (mini-batches, when) at the last look at its rate, while it runs
    pulse: tuple[int, int] = (0, 0)
    #: by the plan, the job it may hold its GPUs together with; 0: none
    mate: int = 0
    gauge: Gauge = field(default_factory=Gauge)
    is_opportunistic: bool = False
    #: by the plan, the virtual cluster within which it takes turns
    vc: str = ""
    #: by the plan, whether it is to hold its GPUs; None: this node decides (`leading`)
    is_on: bool | None = None
    pacing: Pacing = field(default_factory=Pacing)
    usage: Usage = field(default_factory=Usage)
    counts: Counts = field(default_factory=Counts)
    #: of a job of several nodes: how its part here stands; None: all of the job is here
    part: Part | None = None

    @property
    def holds(self) -> bool:
        """True from the grant of its GPUs until the last rank has released them."""
        return self.state in (RUNNING, SUSPENDING, RESUMING)

    @property
    def is_at_rest(self) -> bool:
        """True when nothing of it may run now: what comes to it is stopped."""
        has_released = self.part is not None and self.part.is_released
        return not self.holds or self.is_frozen or has_released

    @property
    def halted_ns(self) -> int:
        """Since when it stands still, whatever else is to be (`halting`); 0: it does not."""
        return self.words.halted_ns

    @property
    def may_have_turns(self) -> bool:
        """True when it may be given its GPUs: it does not end, and was not halted."""
        return not self.is_ending and not self.halted_ns

    @property
    def ranks(self) -> list[Rank]:
        """All ranks of all its process groups."""
        return [rank for group in self.sets for rank in group.in_order()]

    @property
    def world(self) -> int:
        """How many ranks its process groups ask for."""
        return sum(group.world for group in self.sets)

    @property
    def is_solo(self) -> bool:
        """True when none of its ranks waits for another: it may be frozen in mid-step."""
        return all(group.world == 1 for group in self.sets)

    def has_client(self) -> bool:
        """True when it can be parked at a boundary: all that is expected to train does, and is warm."""
        return (
            bool(self.sets) and not self._awaited_tasks() and all(group.is_parkable() for group in self.sets)
        )

    def give_up_waiting(self, client_wait_ns: int) -> None:
        """Expect no training of tasks that were silent for so long; their siblings are parked alone."""
        if self.sets and self.counts.blind_ns >= client_wait_ns:
            self.tasks.clear()

    def is_blind(self, client_wait_ns: int) -> bool:
        """True when it has run so long without a client that it is frozen whole instead of parked."""
        is_silent = not self.has_client() and self.counts.blind_ns >= client_wait_ns
        return is_silent and not self.image.restoring

    def is_to_freeze(self) -> bool:
        """True when it is stopped whole if it is to leave: it has no client, or did not park for too long."""
        return self.is_refusing or not self.has_client()

    def must_stay(self, client_wait_ns: int) -> bool:
        """True when its GPUs cannot be taken from it now: it starts up, moves, or failed to park just now."""
        if self.state != RUNNING:
            return self.state == RESUMING
        if self.image.unfit:
            return False
        if self.image.restoring:
            return True
        is_paused = self.pause_quanta > 0 and not self.is_refusing
        return is_paused or not (self.has_client() or self.is_blind(client_wait_ns))

    def bound_ns(self, max_park_ns: int, freeze_bound_ns: int, quantum_ns: int) -> int:
        """Return when its park must be over, as long as it is suspended.

        What its ranks say of their groups' time-outs brings none of them back within a quantum, and a lone
        rank not at all.
        """
        # Tasks of a span that were stopped at their birth have nobody yet who waits for them.
        is_frozen = self.is_frozen or (bool(self.stopped) and self.part is None)
        if not (is_frozen or self.refusal.is_frozen):
            return self.since_ns + max_park_ns
        # Frozen in a collective, its ranks must be back before one of their groups gives it up.
        ranks = [rank for group in self.sets if group.world > 1 for rank in group.in_order()]
        halves = [rank.words[wire.W_GROUP_MS] * MS // 2 for rank in ranks if rank.words]
        told = [max(half, LEAST_FREEZE_NS, quantum_ns) for half in halves if half]
        return self.since_ns + min([freeze_bound_ns, *told])

    def steps(self) -> int:
        """Mini-batches so far, those of ranks that are gone included; their own word, and so bounded."""
        done = self.counts.done_steps + sum(group.steps() for group in self.sets)
        return min(max(0, done - self.image.from_steps), SANE_SEQ)

    def stand(self) -> tuple[int, int]:
        """Mini-batches that its training had done when it began here, and by now; UNKNOWN where it is none.

        Of several trainings, one after the other or at once, none is the job's.
        """
        if self.counts.trainings + len(self.sets) != 1:
            return UNKNOWN
        begun, reached = self.sets[0].stand() if self.sets else self.counts.stand
        # What was restored from an image counts on from its start elsewhere.
        return (begun, reached) if begun < 0 else (begun + self.image.from_steps, reached)

    def look_at_rate(self, now: int, is_first: bool = False) -> None:
        """Smooth the rate over the time since the last look; `is_first` begins a new run."""
        steps = self.steps()
        was, when = self.pulse
        if not is_first and now > when:
            rate = max(0, steps - was) * 1e9 / (now - when)
            self.counts.rate = rate if not self.counts.rate else 0.7 * self.counts.rate + 0.3 * rate
        self.pulse = (steps, now)

    def as_gang(self) -> local.Gang:
        """Return what the stride needs to know of it."""
        mate = self.mate if self.part is None else 0
        tickets, order, is_spare = max(1, self.tickets), self.submitted_ns, self.is_opportunistic
        return local.Gang(self.key, self.user, tickets, self.gpus, order, mate, is_spare, self.vc)

    def check_room(self, proc: ProcId) -> None:
        """PeerError when this process cannot become a rank now."""
        ranks = self.ranks
        if self.state != RUNNING and any(rank.proc == proc for rank in ranks):
            raise PeerError(f"process {proc.pid} is a rank already, and its job is changing hands: try later")
        if len(ranks) >= MAX_RANKS and all(rank.proc != proc for rank in ranks):
            raise PeerError(f"job {self.key} has {MAX_RANKS} ranks on this node already; no more are taken")

    def join(self, rank: Rank, world: int, master: str) -> RankSet:
        """Put a new rank into its process group; the group is made when this is its first.

        A process is one rank: one that says hello again is no longer what it was (exec, or mischief).
        """
        for former in [other for other in self.ranks if other.proc == rank.proc]:
            former.look()
            former.is_alive = False
            self.forget_dead()
        for group in self.sets:
            if self._belongs(group, rank, world, master):
                old = group.ranks.get(rank.rank)
                if old is not None:
                    old.page.close()
                group.ranks[rank.rank] = rank
                group.gang = None
                return group
        group = RankSet(world, master, {rank.rank: rank}, is_part=self.part is not None)
        self.sets.append(group)
        return group

    def forget_dead(self) -> None:
        """Drop dead ranks, and process groups that have none left; only while nothing is being parked."""
        for group in self.sets:
            steps, stand = group.steps(), group.stand()
            group.forget_dead()
            if not group.ranks:
                self.note_gone(steps, stand)
        self.sets = [group for group in self.sets if group.ranks]

    def note_gone(self, steps: int, stand: tuple[int, int]) -> None:
        """Count a training whose ranks are gone; processes that never came to a mini-batch were none."""
        self.counts.done_steps += steps
        self.counts.trainings += steps > 0
        self.counts.stand = stand if steps else self.counts.stand

    def _belongs(self, group: RankSet, rank: Rank, world: int, master: str) -> bool:
        if world == 1 or group.world != world or group.master != master:
            return False
        if not master and any(other.stepd != rank.stepd for other in group.ranks.values()):
            return False
        old = group.ranks.get(rank.rank)
        return old is None or not old.is_alive

    def _awaited_tasks(self) -> bool:
        """True while a step of srun has more tasks than ranks: some of its tasks still start up."""
        ranks = [rank.stepd for rank in self.ranks if rank.is_alive]
        return any(len(tasks) > ranks.count(stepd) for stepd, tasks in self.tasks.items())
