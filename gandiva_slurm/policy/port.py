"""What a policy sees and what it says: the whole picture in, the whole plan out (ADR 0014, 0017).

A policy is asked when a job arrives or ends, when GPUs come or go, and when the time it named has come; on a
cluster also when a job is bound or unbound, or something that was said of it has changed, but not because
rates were measured or time went by (`engine.apply.asked`). It answers with all that is to run until it is
asked again; a job that is not named is parked where it is, or waits.
Policies are pure: the same questions in the same order give the same answers. They keep what they like
between two questions, and no reference to what they were shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from gandiva_slurm.model.snapshot import Association

GUARANTEED, OPPORTUNISTIC = CLASSES = ("guaranteed", "opportunistic")
#: What all GPUs of a gang can be asked to share, closest first; "" and "any": nothing.
GPU, SWITCH, SOCKET, NODE = "gpu", "switch", "socket", "node"
CELLS = (GPU, SWITCH, SOCKET, NODE)


@dataclass(frozen=True, slots=True)
class Host:
    """A node: its GPUs by the numbers they have in the whole cluster, all of one type."""

    name: str
    gpu_type: str
    gpus: tuple[int, ...]
    #: host memory for jobs; 0: any amount
    memory_mib: int = 0


class Cluster:
    """All GPUs, numbered from 0 in the order of their nodes."""

    def __init__(
        self,
        shape: Iterable[tuple[str, int]],
        parts: Sequence[tuple[int, int]] = (),
        memory_mib: Sequence[int] = (),
    ) -> None:
        """Make nodes n1, n2, … of (GPU type, GPUs) each.

        `parts`: GPUs of each node's switches and sockets; without it nodes are flat, all GPUs equally near.
        `memory_mib`: each node's memory for jobs; without it any amount.
        """
        hosts: list[Host] = []
        #: by GPU: first GPU of its switch, of its socket, of its node
        self.lines: list[tuple[int, int, int]] = []
        #: True when some node has parts
        self.has_parts = False
        first = 0
        for number, (gpu_type, count) in enumerate(shape, 1):
            memory = memory_mib[number - 1] if memory_mib else 0
            hosts.append(Host(f"n{number}", gpu_type, tuple(range(first, first + count)), memory))
            switch, socket = parts[number - 1] if parts else (count, count)
            self.has_parts |= switch < count
            self.lines += [
                (first + n // switch * switch, first + n // socket * socket, first) for n in range(count)
            ]
            first += count
        self.hosts = tuple(hosts)
        #: by GPU: its type, and the index of its node in `hosts`
        self.type_of = tuple(host.gpu_type for host in hosts for _ in host.gpus)
        self.host_of = tuple(index for index, host in enumerate(hosts) for _ in host.gpus)
        #: GPU types in order of first appearance, with how many GPUs there are of each
        self.counts: dict[str, int] = {}
        for host in hosts:
            self.counts[host.gpu_type] = self.counts.get(host.gpu_type, 0) + len(host.gpus)

    @property
    def size(self) -> int:
        """GPUs in all."""
        return len(self.type_of)

    def hosts_of(self, gpus: Iterable[int]) -> frozenset[int]:
        """Indexes of the nodes on which these GPUs are."""
        return frozenset(self.host_of[gpu] for gpu in gpus)

    def are_near(self, gpus: Sequence[int]) -> bool:
        """True when all of these, ascending, are on one node: its GPUs have numbers in a row."""
        return not gpus or self.host_of[gpus[0]] == self.host_of[gpus[-1]]

    def widest(self, gpu_type: str, cell: str) -> int:
        """GPUs of the largest such cell of a type."""
        if cell == GPU:
            return 1
        if cell not in CELLS:
            return self.counts[gpu_type]
        level = CELLS.index(cell) - 1
        sizes = Counter(line[level] for gpu, line in enumerate(self.lines) if self.type_of[gpu] == gpu_type)
        return max(sizes.values())

    def are_even(self, gpus: Sequence[int], nodes: int) -> bool:
        """True when these are as many on each of `nodes` nodes; 0: any number of nodes."""
        parts = Counter(self.host_of[gpu] for gpu in gpus)
        return not nodes or (len(parts) == nodes and len({*parts.values()}) == 1)

    def may_be_over(self, gpus: Sequence[int], job: JobView) -> bool:
        """True when these, ascending, are a job's grown over the nodes that it may have, as many on each."""
        return not self.are_near(gpus) and job.max_nodes > 1 and self.are_even(gpus, job.max_nodes)

    def share(self, gpus: Sequence[int], cell: str) -> bool:
        """True when all of these are in one such cell; "" and "any": wherever they are."""
        if cell not in CELLS or len(gpus) < 2:
            return True
        return cell != GPU and len({self.lines[gpu][CELLS.index(cell) - 1] for gpu in gpus}) == 1


@dataclass(slots=True)
class JobView:
    """A live job. The first block is as submitted, the second is kept by the world; policies only read."""

    job_id: int
    user: str
    size: int
    submit_ns: int
    #: what it trains: jobs of one model have one rate; "" unknown
    model: str = ""
    tickets: int = 100
    priority: int = 50
    job_class: str = GUARANTEED
    vc: str = ""
    #: acceptable GPU types; empty: all
    gpu_types: tuple[str, ...] = ()
    #: an elastic job's bounds; both `size` for others
    min_size: int = 0
    max_size: int = 0
    can_pack: bool = True
    can_migrate: bool = True
    #: run time alone on the GPUs asked for, where the world tells it (time limits, clairvoyant baselines)
    length_ns: int | None = None
    #: the account it is charged to; "" where there are none
    account: str = ""
    #: the closest level all its GPUs must share, one of CELLS; "" any
    cell: str = ""
    #: indexes of the nodes it may use: its partition, reservation, features, CPUs; None: all
    hosts: frozenset[int] | None = None
    #: memory it takes on each of its nodes, running or parked
    memory_mib: int = 0
    #: nodes on which it must be, with as many GPUs on each; 0: any number
    nodes: int = 0
    #: what its tensors took of GPU memory at their peak (0: not known), and what is left of them on its GPUs
    #: while it is parked
    peak_bytes: int = 0
    held_bytes: int = 0

    #: GPUs it runs on, or on which it is parked; () = it has none
    gpus: tuple[int, ...] = ()
    is_running: bool = False
    first_run_ns: int | None = None
    #: wall time it ran, and GPU time it held, also while it switched; of two that shared GPUs each half. What
    #: nodes have not told yet is there as it was planned, so both may fall by what a switch takes
    ran_ns: int = 0
    held_ns: int = 0
    #: part of its work that is done, 0..1; policies that must not know lengths do not read it
    progress: float = 0.0
    migrations: int = 0
    #: (epochs, loss) pairs it has told, in order; empty: it tells none
    losses: tuple[tuple[float, float], ...] = ()
    #: what its last move took, from saved to running again; 0: not measured, or as the settings say
    restart_ns: int = 0
    #: run time alone that is left, where the world tells lengths (clairvoyant baselines)
    left_ns: int | None = None
    #: it lives on its GPUs and has not begun: so it can be moved, and may be bound to them once it has
    is_untouched: bool = False
    #: nodes over which it may grow from one, with as many GPUs on each; 1: it grows on its node alone
    max_nodes: int = 1

    @property
    def order(self) -> tuple[int, int]:
        """The one total order: submission, then job id."""
        return (self.submit_ns, self.job_id)

    @property
    def is_firm(self) -> bool:
        """True when its place is taken for as long as it lives, as far as is known."""
        return not self.can_migrate or self.is_untouched

    def accepts(self, gpu_type: str) -> bool:
        """True when it may run on this GPU type."""
        return not self.gpu_types or gpu_type in self.gpu_types


class Rates(Protocol):
    """Mini-batches a second: measured so far (an estimator), or known (a simulator's oracle)."""

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        """Return the rate without a neighbour, on one node or several; 0: cannot run; None: not known."""

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        """Return both rates on one shared GPU; (0, 0): they do not fit; None: not known."""


@dataclass(slots=True)
class View:
    """The picture at one moment."""

    now_ns: int
    cluster: Cluster
    #: live jobs in order of arrival
    jobs: Mapping[int, JobView]
    #: what was measured so far
    rates: Rates
    #: GPUs that may not be used now
    down: frozenset[int] = frozenset()
    #: jobs that a GPU has room for, the running and the parked; 0: any number
    slots: int = 0
    #: the account tree as it is now; (): as the policy was told when it was made
    associations: tuple[Association, ...] = ()
    #: by node: the memory of each of its GPUs, 0 where it is not known; (): any two jobs fit into it
    card_bytes: tuple[int, ...] = ()
    #: by virtual cluster, in the order in which they are dealt to: the GPUs of each type that it owns; what
    #: is left belongs to jobs that name none. {}: those that jobs name own equal parts
    vcs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OfUser:
    """What a policy tells of a user, for `gandiva share` and the figures of a simulation."""

    #: what past use multiplies its tickets by, 1/16 .. 1; None: past use does not matter
    fair_share: float | None = None
    #: GPU seconds that trades brought it, and took from it, by GPU type
    traded_in: Mapping[str, float] = field(default_factory=dict)
    traded_out: Mapping[str, float] = field(default_factory=dict)


class Promotion(NamedTuple):
    """Why an opportunistic job is guaranteed from now on, and how long it has waited for GPUs."""

    waited_ns: int
    why: str


@dataclass(slots=True)
class Plan:
    """What is to be. Two jobs on the same GPUs are packed; GPUs of a gang are held whole or not at all."""

    #: job → the GPUs it runs on, ascending
    runs: dict[int, tuple[int, ...]]
    #: ask again then, if nothing happens before; None: only when something happens
    wake_ns: int | None = None
    #: job → why it waits, is moved or packed, for whom it is not plain
    notes: dict[int, str] = field(default_factory=dict)
    #: opportunistic jobs that are guaranteed from now on, for good
    promoted: Mapping[int, Promotion] = field(default_factory=dict)
    #: job → the GPU time in ns by which its user, and the job among its user's, is ahead of the one furthest
    #: behind, for its tickets: where nodes go by their own strides they begin with it; {}: as they stand
    ahead: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: jobs that have been saved and live nowhere now; told by a world, never by a policy
    homeless: frozenset[int] = frozenset()


#: What the speeds of a pair must sum to, each as a part of that alone, noise aside; 1 is what turns give.
PACK_FLOOR = 1.05


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a policy is made with. Times in ns; `tickets` by user, 1 each where it says nothing.

    With `associations` tickets come from that tree instead (policy/shares/tickets.py).
    """

    quantum_ns: int
    switch_ns: int = 0
    restart_ns: int = 0
    tickets: Mapping[str, int] = field(default_factory=dict)
    #: true rates, for policies whose papers take them as given; the others measure
    oracle: Rates | None = None
    associations: tuple[Association, ...] = ()
    #: users that used much before get less for a while: use is forgotten by this half-life; 0: not so
    half_life_ns: int = 0
    #: what the speeds of a pair must sum to, each as a part of that alone, for it to stay
    pack_floor: float = PACK_FLOOR


class Policy(Protocol):
    """A scheduling policy; made by a function of the entry point group `gandiva_slurm.policies`.

    One that can say where a job stands has a method `explain(job_id, now_ns)` that yields sentences for
    `gandiva why`; one that keeps books on users has `of_users()`, which returns an OfUser by user. One that
    heeds GPU memory when it packs has an attribute `fits_memory` that is true; on a cluster only such a one
    may pack.
    """

    name: str

    def decide(self, view: View) -> Plan:
        """Say what is to run from now on."""


#: Makes a policy anew.
Maker = Callable[[], Policy]

Factory = TypeVar("Factory", bound=Callable[..., object])


def takes_oracle(make: Factory) -> Factory:
    """Mark a policy's `make`: its paper takes true rates as given, so the simulator tells it."""
    make.takes_oracle = True  # type: ignore[attr-defined]
    return make
