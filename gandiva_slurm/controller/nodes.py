"""The controller's end of every gandivad: plans go out, reports come in.

Each node has a link with a task of its own, so that a node that does not answer delays nobody. A link sends
the whole plan each cycle and at once after a change; what the answer reports is the node's news (ADR 0005).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gandiva_slurm.config import Config
from gandiva_slurm.controller.image_places import ImagePlaces
from gandiva_slurm.controller.peers import peers_of
from gandiva_slurm.engine.state.records import Placement
from gandiva_slurm.model.errors import GandivaError, PeerError
from gandiva_slurm.wire.messages import NodePlan, NodeReport, PlannedJob, decode_report, encode

#: How long one exchange with a node may take.
EXCHANGE_DEADLINE_S = 2.0
#: The first failure of a row is logged, then one in so many.
LOG_EVERY = 60

#: Sends (node, path, payload, deadline in seconds) and returns the node's answer: PeerError, AuthError.
Transport = Callable[[str, str, bytes, float], Awaitable[bytes]]
#: Turns of nodes whose lateness is remembered.
LATEST = 1000
#: A look at Slurm that is so old is none; and for how long after a plan that says so no requeued job starts:
#: as long as a node lets another incarnation of it work on such a plan (`node.isolation.KEPT_BACK_NS`).
BLIND_S, HELD_S = 5.0, 10.0

#: (job, pass of its user, its own pass), each ahead of the one furthest behind.
Ahead = tuple[tuple[int, int, int], ...]
PLAN_PATH, REPORT_PATH = "/v1/plan", "/v1/report"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlanBody:
    """What a plan says, without its number."""

    gpus: int
    jobs: tuple[PlannedJob, ...] = ()
    fence: tuple[tuple[int, int], ...] = ()
    images: tuple[int, ...] = ()


@dataclass(frozen=True)
class Turn:
    """What a policy's plan says of time. Times in seconds are monotonic."""

    #: when it was made, unix time; 0: there is none
    turn_ns: int = 0
    #: when it was due, and when the next one is (None: when something happens)
    due_s: float = 0.0
    end_s: float | None = None


def planned(at: Placement, config: Config) -> PlannedJob:
    """Return a place of the engine's as a node's plan has it."""
    return PlannedJob(
        at.key.job_id,
        at.key.restart,
        at.user,
        at.uid,
        at.gpus,
        at.tickets,
        at.submitted_ns,
        at.name,
        at.span,
        at.is_leaving,
        at.mate,
        at.is_opportunistic,
        at.vc,
        at.is_on,
        at.own_save_s,
        config.trusts(at.partition),
        at.is_requeueable,
    )


def without_turns(body: PlanBody) -> PlanBody:
    """Return a plan that leaves it to the node which of its jobs hold GPUs."""
    return replace(body, jobs=tuple(replace(job, is_on=None) for job in body.jobs))


@dataclass(frozen=True)
class Vouched:
    """What a node is told of a look at Slurm (`wire.messages.NodePlan` says what each is)."""

    echo_ns: int = 0
    is_heard: bool = False
    peers: tuple[tuple[str, str], ...] = ()
    are_all_peers: bool = False


@dataclass(frozen=True)
class LinkSettings:
    """What all links share: this controller's epoch and the file's times."""

    epoch_ns: int
    quantum_ns: int
    cycle_s: float
    silent_after_s: float


class NodeLink:
    """One node: its plan, its last report, and whether it answers."""

    def __init__(self, name: str, transport: Transport, settings: LinkSettings) -> None:
        self.name = name
        self.settings = settings
        self.report: NodeReport | None = None
        #: monotonic time of the last answer; None before the first
        self.answered_s: float | None = None
        self.error = "has not answered yet"
        self.generation = 0
        #: called after each answer; the flag tells that the node was silent before it
        self.on_report: Callable[[NodeReport, bool], None] = lambda report, was_silent: None
        self._transport = transport
        #: called when the node has heard of a turn, with how late that was, in seconds
        self.on_turn: Callable[[float], None] = lambda late_s: None
        self._plan = NodePlan(name, settings.epoch_ns, 0, settings.quantum_ns, 0, (), (), "", 0)
        self._turn = Turn()
        self._vouched = Vouched()
        self._vouched_s = time.monotonic()
        #: called when a plan goes out that rests on an old look at Slurm, where nodes heed that
        self.on_blind: Callable[[], None] | None = None
        #: when it made the report that was here before the look at Slurm under way, by its own clock
        self._mark_ns = 0
        self._told_ns = 0
        self._body: PlanBody | None = None
        self._accepted = -1
        self._failures = 0
        self._changed = asyncio.Event()
        self._answered = asyncio.Condition()

    @property
    def age_s(self) -> float | None:
        """Seconds since the last answer, None before the first."""
        return None if self.answered_s is None else time.monotonic() - self.answered_s

    @property
    def is_silent(self) -> bool:
        """True when nothing must be started there: it never answered, or not for too long."""
        return self.age_s is None or (self._failures > 0 and self.age_s > self.settings.silent_after_s)

    def set_plan(self, body: PlanBody) -> None:
        """Plan anew; the same body again changes nothing."""
        if body != self._body:
            self._body = body
            self._renumber(gpus=body.gpus, jobs=body.jobs, fence=body.fence, images=body.images)

    def set_turn(self, turn: Turn, ahead: Callable[[str], Ahead]) -> None:
        """Tell of a turn, and how far users and jobs are ahead; the same turn again changes nothing."""
        if turn.turn_ns != self._turn.turn_ns:
            self._turn = turn
            self._plan = replace(self._plan, turn_ns=turn.turn_ns, ahead=ahead(self.name))
            self._changed.set()

    def mark(self) -> None:
        """A look at Slurm begins: what it shows is no older than the node's last report."""
        self._mark_ns = self.report.mono_ns if self.report is not None else 0

    def vouch(self, is_heard: bool, peers: tuple[tuple[str, str], ...], are_all: bool) -> None:
        """Tell, with each plan from now on, that it is of the look that was begun last."""
        self._vouched, self._vouched_s = Vouched(self._mark_ns, is_heard, peers, are_all), time.monotonic()

    def acknowledge(self, boot: str, seq: int) -> None:
        """Tell the node that its holds up to `seq` are safe (with the next exchange)."""
        if (boot, seq) != (self._plan.ack_boot, self._plan.ack_seq):
            self._renumber(wake=False, ack_boot=boot, ack_seq=seq)

    def apply(self, settings: LinkSettings) -> None:
        """Take changed settings over."""
        self.settings = settings
        if (settings.epoch_ns, settings.quantum_ns) != (self._plan.epoch_ns, self._plan.quantum_ns):
            self._renumber(epoch_ns=settings.epoch_ns, quantum_ns=settings.quantum_ns)

    async def delivered(self, timeout_s: float) -> None:
        """Return when the node has accepted the plan as it is now; PeerError when it does not in time."""
        wanted = self._plan.generation
        try:
            async with asyncio.timeout(timeout_s), self._answered:
                await self._answered.wait_for(lambda: self._accepted >= wanted)
        except TimeoutError as err:
            reason = self.error or f"it keeps plan {self._accepted}, {wanted} was sent"
            raise PeerError(f"{self.name} did not accept its plan within {timeout_s:g} s: {reason}") from err

    async def run(self) -> None:
        """Exchange plan and report for ever."""
        while True:
            self._changed.clear()
            started_s = time.monotonic()
            await self._exchange()
            rest_s = max(0.0, self.settings.cycle_s - (time.monotonic() - started_s))
            # A changed plan goes out at once, but a node that fails is asked once a cycle.
            if self._failures:
                await asyncio.sleep(rest_s)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._changed.wait()

    async def _exchange(self) -> None:
        turn = self._turn
        try:
            report = decode_report(await self._send())
            if report.node != self.name:
                raise PeerError(f"answers as node {report.node}; compare node.addresses in gandiva.yaml")
        except GandivaError as err:
            self._fail(str(err))
        except Exception as err:
            log.exception("exchange with %s failed", self.name)
            self._fail(f"{type(err).__name__}: {err}")
        else:
            if turn.turn_ns != self._told_ns:
                self._told_ns = turn.turn_ns
                self.on_turn(time.monotonic() - turn.due_s)
            await self._take(report)

    async def _send(self) -> bytes:
        """Before there is a plan only ask: what lives there may be all that is known of it."""
        if self._body is None:
            return await self._transport(self.name, REPORT_PATH, b"{}", EXCHANGE_DEADLINE_S)
        end_s = self._turn.end_s
        left_ms = None if end_s is None else round((end_s - time.monotonic()) * 1000)
        more = vars(self._vouched) | {"contact_ns": self._contact_ns()}
        payload = encode(replace(self._plan, turn_left_ms=left_ms, **more))
        return await self._transport(self.name, PLAN_PATH, payload, EXCHANGE_DEADLINE_S)

    def _contact_ns(self) -> int:
        """Not 0 where Slurm has not been looked at for a while: then nothing is started anew for a while."""
        is_blind = time.monotonic() - self._vouched_s > BLIND_S
        if self.on_blind is None or self.report is None or not is_blind:
            return 0
        self.on_blind()
        return self.report.mono_ns

    def _fail(self, sentence: str) -> None:
        if self._failures % LOG_EVERY == 0:
            log.warning("node %s: %s", self.name, sentence)
        self._failures += 1
        self.error = sentence

    async def _take(self, report: NodeReport) -> None:
        was_silent = self.is_silent
        if self._failures:
            log.info("node %s answers after %d failures", self.name, self._failures)
        self._failures, self.error = 0, ""
        self.answered_s = time.monotonic()
        self.report = report
        if report.epoch_ns == self.settings.epoch_ns:
            self.generation = report.generation
            async with self._answered:
                self._accepted = report.generation
                self._answered.notify_all()
        self.on_report(report, was_silent)

    def _renumber(self, wake: bool = True, **changes: object) -> None:
        self._plan = replace(self._plan, generation=self._plan.generation + 1, **changes)  # type: ignore[arg-type]
        if wake:
            self._changed.set()


class Nodes:
    """All links, one for each node of our partitions."""

    def __init__(self, transport: Transport, settings: LinkSettings) -> None:
        self.settings = settings
        self._transport = transport
        self._links: dict[str, NodeLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._inbox: dict[str, NodeReport] = {}
        self.images = ImagePlaces()
        #: seconds from when a turn was due until a node had heard of it, of the latest
        self.late_s: deque[float] = deque(maxlen=LATEST)
        #: True where nodes freeze jobs that may work elsewhere (`isolation`), and when one was told last that
        #: Slurm cannot be looked at
        self.are_isolating = False
        self._blind_s = float("-inf")
        #: called when something came in that should not wait for the next cycle
        self.on_news: Callable[[], None] = lambda: None

    def __getitem__(self, name: str) -> NodeLink:
        return self._links[name]

    def __iter__(self) -> Iterator[NodeLink]:
        return iter(self._links.values())

    def get(self, name: str) -> NodeLink | None:
        """Return the node's link, None when it is not of our partitions."""
        return self._links.get(name)

    def follow(self, names: Iterable[str]) -> None:
        """Keep exactly these nodes' links."""
        wanted = set(names)
        for name in self._links.keys() - wanted:
            self._tasks.pop(name).cancel()
            self.images.forget(name)
            del self._links[name]
        for name in sorted(wanted - self._links.keys()):
            link = NodeLink(name, self._transport, self.settings)
            link.on_report, link.on_turn = self._receive, self.late_s.append
            link.on_blind = self._note_blind if self.are_isolating else None
            self._links[name] = link
            self._tasks[name] = asyncio.create_task(link.run(), name=f"link-{name}")

    def publish(
        self,
        bodies: Mapping[str, PlanBody],
        turn: Turn,
        ahead: Callable[[str], Ahead],
    ) -> None:
        """Give each node its plan, and tell it how long that holds; `ahead` says what else it hears then."""
        for name, body in bodies.items():
            if name in self._links:
                self._links[name].set_plan(body)
                self._links[name].set_turn(turn, ahead)

    @property
    def may_requeued_start(self) -> bool:
        """False while a node may let an older incarnation work, for it was told that Slurm cannot be seen."""
        return time.monotonic() - self._blind_s > HELD_S

    def _note_blind(self) -> None:
        self._blind_s = time.monotonic()

    def mark(self) -> None:
        """A look at Slurm begins."""
        for link in self:
            link.mark()

    def vouch(self, names: Iterable[str], heard: Collection[str], config: Config) -> None:
        """The plans of these nodes are of the look that was begun last, by which Slurm hears `heard`."""
        for name in names:
            others = peers_of(name, self._links) if config.isolation != "never" else ()
            peers = tuple((other, "{}:{}".format(*config.node_address(other))) for other in others)
            if name in self._links:
                self._links[name].vouch(name in heard, peers, len(peers) == len(self._links) - 1)

    def apply(self, settings: LinkSettings) -> None:
        """Take changed settings over."""
        self.settings = settings
        for link in self:
            link.apply(settings)

    def isolate(self, are_isolating: bool) -> None:
        """Where nodes freeze jobs they are told when Slurm cannot be looked at."""
        self.are_isolating = are_isolating
        for link in self:
            link.on_blind = self._note_blind if are_isolating else None

    def take_reports(self) -> list[NodeReport]:
        """Return the newest report of each node that sent one since the last call."""
        reports, self._inbox = list(self._inbox.values()), {}
        return reports

    def lateness(self) -> dict[str, float]:
        """Return how long after a turn was due its node had heard of it, in ms: of the latest, or nothing."""
        late_ms = sorted(late_s * 1000 for late_s in self.late_s)
        if not late_ms:
            return {}
        parts = {"p50_ms": 0.5, "p99_ms": 0.99}
        found = {
            name: late_ms[min(len(late_ms) - 1, int(len(late_ms) * part))] for name, part in parts.items()
        }
        return found | {"turns": len(late_ms)}

    async def close(self) -> None:
        """End all links."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._links.clear()
        self._tasks.clear()

    def _receive(self, report: NodeReport, was_silent: bool) -> None:
        self._inbox[report.node] = report
        self.images.note(report)
        if report.epoch_ns > self.settings.epoch_ns:
            # The clock was set back and the journal lost: without a newer epoch no node would obey again.
            log.warning("node %s obeyed a newer controller; its plans are now overtaken", report.node)
            self.apply(replace(self.settings, epoch_ns=report.epoch_ns + 1))
        if was_silent:
            self.on_news()
