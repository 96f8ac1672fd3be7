"""Messages between gandivactld and gandivad: whole, idempotent, numbered (ADR 0005).

Both ways they travel as JSON inside a munge credential (`wire.auth`). Times are integer nanoseconds:
`*_ns` is CLOCK_REALTIME unless the name says `mono`. Unknown fields are ignored, a missing one is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured

VERSION = 1
MAX_BYTES = 4 * 1024 * 1024

#: SQLite's integers, and a page's words, have no more bits.
_WORD = 1 << 63
#: Neither infinite nor no number: rates that pages lie about are less.
_MOST = 1e300

M = TypeVar("M")
Reader = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class PlannedJob:
    """A job that lives on this node, by the controller's plan.

    `tickets` is its integer share of its user's tickets (in parts of a ticket: SCALE of
    `policy.shares.associations`); a user's weight on the node is the sum over the jobs there.
    `submitted_ns` orders ties.

    Of a job of several nodes this is one node's part: `gpus` and `tickets` are the part's, and `span` names
    all its nodes with their GPUs, in Slurm's order. `span` is empty for a job of one node.
    """

    job_id: int
    restart: int
    user: str
    uid: int
    gpus: tuple[int, ...]
    tickets: int
    submitted_ns: int
    name: str = ""
    span: tuple[tuple[str, tuple[int, ...]], ...] = ()
    #: it is to be moved: in its next turn it saves itself at a state boundary and then stays parked
    is_leaving: bool = False
    #: the job it shares its GPUs with, both at a time (packed); 0: none
    mate: int = 0
    #: it has what guaranteed jobs leave, and may be slowed down for the sake of a guaranteed mate
    is_opportunistic: bool = False
    #: its virtual cluster: guaranteed jobs take turns among those of their own
    vc: str = ""
    #: a policy of the controller decides: it is to hold its GPUs, or not; None: the node decides
    is_on: bool | None = None
    #: seconds for which it keeps its turn, to be moved by a checkpoint of its own; 0: its ranks save it
    own_save_s: int = 0
    #: it is not frozen while it is parked: its ranks wait at their boundary, what else it has runs on
    is_trusted: bool = False
    #: Slurm starts it again elsewhere when it gives this node up
    is_requeueable: bool = True
    #: host:port of the node that has the image that it goes on from, where nodes fetch them ("": none has),
    #: and of which incarnation that is
    image_at: str = ""
    image_restart: int = -1

    @property
    def key(self) -> JobKey:
        """The incarnation this plan speaks of."""
        return JobKey(self.job_id, self.restart)


@dataclasses.dataclass(frozen=True)
class NodePlan:
    """Everything one node must know; replaces every earlier plan of a lower (epoch, generation)."""

    node: str
    epoch_ns: int
    generation: int
    quantum_ns: int
    gpus: int
    jobs: tuple[PlannedJob, ...]
    #: incarnations the node must stop if it still has them, and forget
    fence: tuple[tuple[int, int], ...]
    #: holds of `boot` up to this sequence number are safe in the controller's ledger
    ack_boot: str
    ack_seq: int
    #: when the policy made the plan of which this is a part (0: there is none), and how long it holds from
    #: now on (below 0: it is over; None: until there is another)
    turn_ns: int = 0
    turn_left_ms: int | None = None
    #: (job, pass of its user, its own pass): how far each is ahead, for when the node goes by its own stride
    ahead: tuple[tuple[int, int, int], ...] = ()
    #: `mono_ns` of the node's report that the controller had when it began its last look at Slurm; 0: it had
    #: none, None: it does not tell
    echo_ns: int | None = None
    #: the controller cannot look at Slurm, and starts nothing anew for a while: `mono_ns` of the node's last
    #: report that it had; 0: it can look
    contact_ns: int = 0
    #: Slurm hears this node, by that look
    is_heard: bool = True
    #: other nodes (name, host:port) to be asked when neither controller nor slurmctld is heard
    peers: tuple[tuple[str, str], ...] = ()
    #: there are no others
    are_all_peers: bool = False
    #: jobs that wait to be started again, whose process images are kept where the site makes any
    images: tuple[int, ...] = ()
    version: int = VERSION


@dataclasses.dataclass(frozen=True)
class Hold:
    """One interval in which a gang held its GPUs: from the grant until its last rank had released.

    Where its mate comes to the same GPUs, or leaves them, one hold ends and the next begins.
    `seq` numbers the closed holds of one node boot from 1; an open hold has seq 0 and t1_ns of the report.
    `park_ns` is the part of it after the order to park (overrun, charged like the rest).
    """

    seq: int
    job_id: int
    restart: int
    user: str
    gpus: tuple[int, ...]
    t0_ns: int
    t1_ns: int
    park_ns: int
    #: the job that held the same GPUs all that time (packed), each charged half; 0: none
    shared_with: int = 0


@dataclasses.dataclass(frozen=True)
class Resident(Measured):
    """A job as its node sees it now: `state` of model.job, `reason` a code of model.reason."""

    job_id: int
    restart: int
    state: str
    gpus: tuple[int, ...]
    registered_ns: int
    since_ns: int
    world: int
    ranks: int
    steps: int
    rate: float
    suspends: int
    reaims: int
    off_boundary: int
    parked_ns: int
    reason: str
    detail: str
    #: told to leave, it has saved itself: it may be requeued
    has_left: bool = False
    #: told to leave by a checkpoint of its own: it holds its GPUs, and keeps them for that
    has_floor: bool = False
    #: bytes of all its ranks' tensors at a boundary; 0: not known
    live_bytes: int = 0
    #: the percent of the time it may run beside its mate
    duty: int = 100
    #: ns: what its mini-batches take of late, the median and the 99th percentile, alone and beside its mate;
    #: 0: not known
    step_alone_ns: tuple[int, int] = (0, 0)
    step_packed_ns: tuple[int, int] = (0, 0)
    #: the most bytes that it had in host memory, for its part of the GPU was full
    spilled_bytes: int = 0
    #: how busy its processes keep its GPUs, by NVML (-1: not known); idle, though it says that it trains
    gpu_percent: int = -1
    is_doubted: bool = False
    #: when it had done its 100th mini-batch; 0: not yet
    first_ns: int = 0
    #: GPU time it has held here, all its GPUs together; of a shared one half
    gpu_ns: int = 0
    #: mini-batches that its training had done when it began here; -1: not known
    begun: int = -1
    #: how long it took to save itself, to leave; 0: it has not
    save_ns: int = 0
    #: how long it ran, parked, to write itself to disk, in all
    written_ns: int = 0
    #: it goes on from an image of the incarnation before
    is_restored: bool = False
    #: for how long that one, and those before it, had held their GPUs
    spent_ns: int = 0


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """A node's answer to a plan: what lives there, and every hold not yet acknowledged."""

    node: str
    boot: str
    now_ns: int
    epoch_ns: int
    generation: int
    gpus: int
    residents: tuple[Resident, ...]
    holds: tuple[Hold, ...]
    ended: tuple[tuple[int, int], ...]
    #: processes on GPUs that were not given to their job: (GPU, pid, job id or 0, bytes there)
    strangers: tuple[tuple[int, int, int, int], ...] = ()
    #: of `ended`: (job id, restart, mini-batches its training had done when it began, and at its end, -1: not
    #: known; when that was)
    finals: tuple[tuple[int, int, int, int, int], ...] = ()
    #: when it was made, by the node's monotonic clock
    mono_ns: int = 0
    #: what the node cannot do that it should: a word of `node.faults`, and why
    faults: tuple[tuple[str, str], ...] = ()
    #: incarnations (job id, restart) of which it has whole process images that other nodes may fetch
    images: tuple[tuple[int, int], ...] = ()
    version: int = VERSION


def encode(message: Any) -> bytes:
    """Return a message as JSON bytes."""
    return json.dumps(dataclasses.asdict(message), separators=(",", ":")).encode()


def decode_plan(data: bytes) -> NodePlan:
    """Read a NodePlan; PeerError says which field is wrong."""
    return read(data, NodePlan)


def decode_report(data: bytes) -> NodeReport:
    """Read a NodeReport; PeerError says which field is wrong."""
    return read(data, NodeReport)


def read(data: bytes, kind: type[M]) -> M:
    """Read a message, each of its fields as its type says; PeerError says what is wrong."""
    if len(data) > MAX_BYTES:
        raise PeerError(f"{kind.__name__}: {len(data)} bytes, at most {MAX_BYTES}; is this a gandiva daemon?")
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as err:
        raise PeerError(f"{kind.__name__}: not JSON ({err})") from err
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise PeerError(f"{kind.__name__}: version {VERSION} expected; update the older of the two daemons")
    message: M = _build(kind, raw)
    return message


def _build(kind: Any, raw: Any) -> Any:
    if not isinstance(raw, dict):
        raise PeerError(f"{kind.__name__}: expected an object, got {_shown(raw)}")
    values = {}
    for name, reader, is_needed in _fields(kind):
        if name in raw:
            try:
                values[name] = reader(raw[name])
            except ValueError as err:
                raise PeerError(f"{kind.__name__}: {name}: {err}") from err
        elif is_needed:
            raise PeerError(f"{kind.__name__}: no field {name}; update the older of the two daemons")
    return kind(**values)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Reader, bool], ...]:
    hints = get_type_hints(kind)
    return tuple(
        (field.name, _reader(hints[field.name]), field.default is dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    )


def _reader(hint: Any) -> Reader:
    """Return what takes a value of JSON for one of this type; ValueError: it is none."""
    if dataclasses.is_dataclass(hint):
        return functools.partial(_build, hint)
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is Ellipsis:
            return functools.partial(_read_all, _reader(items[0]))
        return functools.partial(_read_each, tuple(_reader(item) for item in items))
    if get_origin(hint) is UnionType:
        (known,) = (item for item in get_args(hint) if item is not type(None))
        reader = _reader(known)
        return lambda value: None if value is None else reader(value)
    return _SIMPLE[hint]


def _read_all(reader: Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {_shown(value)}")
    return tuple(reader(item) for item in value)


def _read_each(readers: tuple[Reader, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) != len(readers):
        raise ValueError(f"expected a list of {len(readers)}, got {_shown(value)}")
    return tuple(reader(item) for reader, item in zip(readers, value, strict=True))


def _integer(value: Any) -> int:
    if type(value) is not int or not -_WORD <= value < _WORD:
        raise ValueError(f"expected a whole number of 64 bits, got {_shown(value)}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= _MOST:
        raise ValueError(f"expected a number, got {_shown(value)}")
    return value  # type: ignore[no-any-return]


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {_shown(value)}")
    return value


def _text(value: Any) -> str:
    """A lone surrogate is no text: it can be written nowhere."""
    if isinstance(value, str) and (value.isascii() or value == value.encode(errors="replace").decode()):
        return value
    raise ValueError(f"expected a text, got {_shown(value)}")


_SIMPLE: dict[Any, Reader] = {int: _integer, float: _number, bool: _truth, str: _text}


def _shown(value: Any) -> str:
    return repr(value)[:60]
