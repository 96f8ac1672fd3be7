"""Orders about spans from gandivactld to gandivad, and their answers (`POST /v1/span`, signed as a plan is).

An answer is held back until the order is fulfilled, refused, or `wait_ms` is over: that is how a node tells
at once what happened there. Each order of one controller has a higher `seq` than the one before; a node obeys
nothing older than the newest (epoch_ns, seq) it has seen for that job, and answers the same order again.
An order that comes while an older one of its job waits ends that wait (`stale`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime, PartStand
from gandiva_slurm.wire.messages import read

VERSION = 1
SPAN_PATH = "/v1/span"
#: No order is waited for longer than this; an answer may come so much after `wait_ms`.
LONGEST_WAIT_MS = 60_000
ANSWER_SLACK_MS = 1_000


@dataclass(frozen=True)
class SpanOrder:
    """One order (`model.span.ORDERS`); `job_id` is 0 for those to the whole node.

    `at`: of AIM; `saves` likewise: the ranks save themselves before they release. `comes_back` of FREE: it
    is BACK, not OUT. ROUND alone: `spans` is (job_id, restart, where: in, on, out, back) for every span of
    this node; after `lease_ms` without another ROUND the node brings its spans in by itself.
    """

    node: str
    epoch_ns: int
    seq: int
    what: str
    job_id: int = 0
    restart: int = 0
    at: int = 0
    wait_ms: int = 0
    spans: tuple[tuple[int, int, str], ...] = ()
    lease_ms: int = 0
    saves: bool = False
    comes_back: bool = False
    version: int = VERSION

    @property
    def key(self) -> JobKey:
        """The incarnation it is about."""
        return JobKey(self.job_id, self.restart)


@dataclass(frozen=True)
class SpanAnswer:
    """What became of an order. `parts`: the job's part, or all of the node; `held`: of GATHER alone.

    `boot` names the series of `held` counters: with another name they began anew at nothing.
    """

    node: str
    boot: str
    epoch_ns: int
    seq: int
    ok: bool
    code: str = ""
    why: str = ""
    parts: tuple[PartStand, ...] = ()
    held: tuple[HeldTime, ...] = ()
    version: int = VERSION


def decode_order(data: bytes) -> SpanOrder:
    """Read a SpanOrder; PeerError says which field is wrong."""
    return read(data, SpanOrder)


def decode_answer(data: bytes) -> SpanAnswer:
    """Read a SpanAnswer; PeerError says which field is wrong."""
    return read(data, SpanAnswer)
