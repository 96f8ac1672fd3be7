"""gandivactld's cycle: news in, one decision, plans out, what is to be done in Slurm, and a rest.

A cycle is held for each look at Slurm (`slurm_side`), and for each round of the policy's in between: that one
decides by what is known whose turn it is, and waits neither for Slurm nor for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gandiva_slurm.config import NS_PER_S, Config
from gandiva_slurm.controller.blaming import Guarded
from gandiva_slurm.controller.books import Books, moves_among
from gandiva_slurm.controller.bounds import BoundsWatch
from gandiva_slurm.controller.clock import Clock
from gandiva_slurm.controller.differences import Picture, daemon_events, look, report_events, slurm_events
from gandiva_slurm.controller.executor import Executor
from gandiva_slurm.controller.later import Later, without_signals
from gandiva_slurm.controller.leading import Lead
from gandiva_slurm.controller.nodes import Nodes, PlanBody, Transport, Turn, planned
from gandiva_slurm.controller.orders import Orders
from gandiva_slurm.controller.record import Record
from gandiva_slurm.controller.recorder import Recorder
from gandiva_slurm.controller.requests import Requests
from gandiva_slurm.controller.settings import engine_settings, leader, link_settings, span_settings
from gandiva_slurm.controller.slurm_side import SHORT_REST_S, SlurmSide
from gandiva_slurm.controller.spans import Spans
from gandiva_slurm.controller.status import Status
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.lifecycle.draining import drain_texts
from gandiva_slurm.engine.lifecycle.owners import promised_too_much
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.model import job as states
from gandiva_slurm.model.action import Action
from gandiva_slurm.model.event import ActionDone, ClockSkew, CycleTick, Event, JobGone, RoundTick
from gandiva_slurm.model.snapshot import SlurmJob, Snapshot
from gandiva_slurm.model.span import lease_ns
from gandiva_slurm.slurm.limits import Limits
from gandiva_slurm.slurm.port import SlurmPort
from gandiva_slurm.wire.messages import NodeReport

#: Rounds are not closer together than this, whatever a policy asks for.
SHORTEST_ROUND_S = 0.02
#: How long a cycle under way may go on when the daemon is told to end.
STOP_GRACE_S = 1.0
#: The record of spans, in the state directory.
RECORD_NAME = "spans.jsonl"
#: Its even time, there too.
CLOCK_NAME = "clock.json"

log = logging.getLogger(__name__)


class Controller:
    """Everything of one gandivactld but its sockets and signals."""

    def __init__(
        self,
        config: Config,
        port: SlurmPort,
        transport: Transport,
        clock: Clock | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.config = config
        self.books = Books(Path(config.controller.state_dir))
        self.clock = clock or Clock(Path(config.controller.state_dir) / CLOCK_NAME)
        self.status = Status(self.clock.shown_ns() / NS_PER_S)
        self.engine = self._restore()
        self._recorder = Recorder(lambda: self.config)
        self._guarded = Guarded(self._recorder, self.engine)
        epoch_ns = self.books.begin_epoch(self.clock.now_ns())
        self.nodes = Nodes(transport, link_settings(config, epoch_ns))
        self.nodes.isolate(config.isolation != "never")
        orders = Orders(transport, lambda: self.nodes.settings.epoch_ns)
        record = Record(Path(config.controller.state_dir) / RECORD_NAME)
        self.spans = Spans(orders, span_settings(config), record)
        self.picture: Picture | None = None
        #: the reports the ledger has taken in: closed holds of these are in the file
        self.reports: dict[str, NodeReport] = {}
        self._clock_ns = self.clock.now_ns
        self._bounds = BoundsWatch(limits)
        self._executor = Executor(port, limits, self.nodes, self.clock.shown_ns)
        self._slurm = SlurmSide(port, self._bounds, self._executor, self.status, self._write_outcomes)
        #: names the way to Slurm and the versions, for `gandiva check`
        self.back_end: Callable[[], str] = lambda: ""
        #: called after each decision; what it returns is logged and counted
        self.invariants: Callable[[Engine], Iterable[str]] = lambda engine: ()
        self._last_turn = Turn()
        self._vanished: list[int] = []
        self._later = Later(self.books.journal.open_actions())
        self._overtaken: list[ActionDone] = []
        self._new_reports: list[NodeReport] = []
        #: reports that no cycle with a look at Slurm has heard yet
        self._early: dict[str, NodeReport] = {}
        self._alive: dict[str, bool] = {}
        self._leaves: set[tuple[str, str]] = set()
        self._promises: list[str] = []
        self._drains: dict[str, str] = {}
        #: set when something came in that should not wait for the next round
        self._news = asyncio.Event()
        self._slurm.on_look, self._slurm.on_begin = self._news.set, self.nodes.mark
        self.nodes.on_news = self._hear
        self.requests = Requests(self._hear)
        self._lead = Lead(lambda: self.config, self._bring, self.status.fail)
        self._resting = asyncio.Event()
        self._seen_cycle = -1

    async def run(self, stop: asyncio.Event) -> None:
        """Cycle until `stop`; what goes wrong in a cycle is logged and counted, and the next begins anew."""
        self.nodes.follow(self.engine.nodes)
        looks = self._slurm.run(lambda: self.config.controller.cycle_s)
        upkeep = self.books.keep_up(self._clock_ns, lambda: self.config.controller.keep_holds_days)
        always = (self._cycle_for_ever(), looks, self._lead.watch(), upkeep)
        tasks = [asyncio.create_task(each) for each in always]
        try:
            await stop.wait()
            await self.idle(STOP_GRACE_S)
        finally:
            # What is cut off is done at the next start: the journal has it, without an outcome.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.spans.close()
            await self.nodes.close()
            self.books.close()

    async def idle(self, timeout_s: float) -> None:
        """Wait until no cycle is under way and nothing is done in Slurm, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._resting.wait()
                await self._slurm.is_idle.wait()

    def has_moved(self) -> bool:
        """Return True unless the cycle is under way that was when this was asked last."""
        last, self._seen_cycle = self._seen_cycle, self.status.cycle
        return self._resting.is_set() or last != self._seen_cycle

    async def _cycle_for_ever(self) -> None:
        while True:
            self._resting.clear()
            try:
                await self.cycle()
            except Exception as err:
                log.exception("cycle %d failed", self.status.cycle)
                self.status.fail(f"{type(err).__name__}: {err}")
                self._start_over()
            self._resting.set()
            await self.rest()

    async def cycle(self) -> None:
        """One cycle but for the rest at its end."""
        self.status.cycle += 1
        snapshot = self._slurm.take()  # 1
        try:
            events = self.find_differences(snapshot)  # 2
            actions = self.decide(events)  # 3
            is_look = snapshot is not None
            if not is_look:  # whose turn it is need not be kept, and nodes need not wait for the disk
                self.publish()
            await self.keep(actions, is_look)  # 4
            if is_look and self.picture is not None:
                self.publish()  # 5
                self.nodes.vouch(self.reports, self.picture.heard, self.config)
            await self.ask(actions)  # 6
        finally:
            if snapshot is not None:
                self._slurm.go_on()

    def find_differences(self, snapshot: Snapshot | None) -> list[Event]:
        """Step 2: what happened since the last cycle, as events."""
        is_round = snapshot is None and self._is_round_due()
        outcomes = [*self._overtaken, *self._slurm.outcomes()]
        events: list[Event] = [*outcomes, *self._bounds.take(), *self.requests.take()]
        self._overtaken = []
        if self.clock.look() != self.engine.state.skew_ns:
            events.insert(0, ClockSkew(self.clock.skew_ns))
        if snapshot is not None:
            picture = look(snapshot, self.picture, self._held())
            events += slurm_events(self.picture, picture, self._held(), self.engine.nodes)
            self.picture = picture
            self.nodes.follow(picture.nodes)
            self.reports = {name: report for name, report in self.reports.items() if name in picture.nodes}
            self._watch_leaves(picture)
        self._new_reports = self.nodes.take_reports()
        events += self._told_by_nodes(snapshot is not None)
        alive = {link.name: not link.is_silent for link in self.nodes}
        events += daemon_events(self._alive, alive)
        self._alive = alive
        if snapshot is not None:
            # Deadlines do not run on an old picture.
            events.append(CycleTick())
        elif is_round:
            events.append(RoundTick())
        return events

    def _told_by_nodes(self, is_look: bool) -> list[Event]:
        """Return what nodes say of their residents.

        Moves go on at a look, so what a round has heard since the last one is told again then, but for what
        was held.
        """
        others, events = self.picture.others if self.picture else {}, list[Event]()
        new = {report.node: report for report in self._new_reports}
        early, self._early = self._early, {} if is_look else self._early | new
        for report in (early | new if is_look else new).values():
            sighted = [key for node, key in self.engine.state.sightings if node == report.node]
            heard_ns = self._heard_ns(report.node) if report.node in new else 0
            events += report_events(report, sighted, others, heard_ns)
            self.reports[report.node] = report
        return events

    def _is_round_due(self) -> bool:
        """True when the policy is to be asked between two looks: what is known of Slurm must not be old."""
        is_asked = self.requests.are_waiting or self._until_round_s() <= 0
        age_s = time.monotonic() - self.status.fresh_s
        is_fresh = age_s < lease_ns(self.config.quantum_ns) / NS_PER_S
        return is_asked and is_fresh and self.engine.state.has_read_slurm

    def _heard_ns(self, node: str) -> int:
        """When a node's last report came, in unix time."""
        link = self.nodes.get(node)
        return self._clock_ns() - round((link.age_s if link and link.age_s else 0.0) * NS_PER_S)

    def decide(self, events: Sequence[Event]) -> list[Action]:
        """Step 3: the engine."""
        self.engine, actions = self._guarded.handle(self.engine, events, self._clock_ns())
        has_ticked = any(isinstance(event, CycleTick | RoundTick) for event in events)
        self._lead.heard(self.engine.decider, has_ticked)
        promises = promised_too_much(self.engine.state, self.engine.settings)
        for sentence in promises if promises != self._promises else ():
            log.error("gandiva.yaml: virtual_clusters: %s; those named last get what is left", sentence)
        self._promises = promises
        drains = drain_texts(Cycle(self.engine.state, self.engine.settings, self._clock_ns()))
        for name, text in drains.items() - self._drains.items():
            log.warning("node %s is drained: %s", name, text)
        self._drains = drains
        for sentence in self.invariants(self.engine):
            log.error("invariant broken: %s", sentence)
            self.status.fail(sentence)
        self._vanished = [event.job_id for event in events if isinstance(event, JobGone) and not event.state]
        return actions

    @property
    def troubles(self) -> list[str]:
        """What is wrong with the policy's decisions now."""
        return self._lead.troubles

    async def keep(self, actions: Sequence[Action], is_look: bool) -> None:
        """Step 4: journal first; then the ledger, and only then are holds acknowledged to their nodes."""
        now_ns, shown_ns, books = self._clock_ns(), self.clock.shown_ns(), self.books
        state = self._guarded.note(self.engine)
        released, self._executor.released = self._executor.released, {}
        signalled, self._executor.signalled = self._executor.signalled, {}
        await books.write(
            partial(books.journal.write, state, actions, now_ns, self._recorder.batch),
            partial(books.journal.raise_epoch, self.nodes.settings.epoch_ns),
            partial(self.clock.save),
            *(self._of_look(shown_ns) if is_look else ()),
            *(partial(books.ledger.record_release, key, *told) for key, told in released.items()),
            *(partial(books.ledger.record_signal, *told) for told in signalled.items()),
            *(partial(books.ledger.record_move, key, shown_ns, by) for key, by in moves_among(actions)),
        )
        if not books.is_failing(books.journal.write):
            self.requests.note_kept()
        reports = self._new_reports
        safe = await books.write(*(partial(books.ledger.record_report, report) for report in reports))
        for report, seq in zip(reports, safe, strict=True):
            link = self.nodes.get(report.node)
            if link is not None and seq is not None:
                link.acknowledge(report.boot, seq)

    def publish(self) -> None:
        """Step 5: plans to the nodes; what a plan says already is not told again."""
        # A node whose residents the engine has not heard of yet gets no plan that might leave them out.
        self._lead.publish({name: self._plan(name) for name in self.reports})

    async def ask(self, actions: Sequence[Action]) -> None:
        """Step 6: have the actions done; their outcomes are events of a later cycle."""
        todo: list[Action] = []
        if not self.status.slurm_error:
            todo, self._overtaken = self._later.take_up(self.reports, self.engine.jobs)
        todo += self._later.put_off(actions, self.reports, todo)
        if self.books.is_failing(self.books.journal.write):
            todo, unkept = without_signals(todo)
            self._overtaken += unkept
        if not self.nodes.may_requeued_start:
            todo = self._later.hold_requeued(todo)
        self._slurm.ask(todo, self.picture.jobs if self.picture else {})
        await self._write_outcomes(self._overtaken)

    async def rest(self) -> None:
        """Step 7: sleep until a look has come, a round is due, or something happened that should not wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rest_s()):
                await self._news.wait()
        if self.requests.are_waiting:  # users do not set the pace
            await asyncio.sleep(min(SHORT_REST_S, self._rest_s()))
        self._news.clear()

    def _rest_s(self) -> float:
        return min(self.config.controller.cycle_s, max(SHORTEST_ROUND_S, self._until_round_s()))

    def _until_round_s(self) -> float:
        """Seconds until the policy wants to be asked again."""
        wake_ns = self.engine.decider.wake_ns
        return (wake_ns - self._clock_ns()) / NS_PER_S if wake_ns else float("inf")

    def _hear(self) -> None:
        self._news.set()
        self._slurm.hurry()

    async def _write_outcomes(self, outcomes: Sequence[ActionDone]) -> None:
        await self.books.write(partial(self.books.journal.write_outcomes, outcomes, self._clock_ns()))

    def reload(self, config: Config) -> None:
        """Take over what may change while running; the rest needs a restart (main tells)."""
        led_by = leader(config)
        if led_by.told != leader(self.config).told:
            self.engine.lead(led_by)
            log.info("from now on policy %s decides", config.policy)
        self.config = config
        self.engine.settings = engine_settings(config)
        self.nodes.apply(link_settings(config, self.nodes.settings.epoch_ns))
        self.nodes.isolate(config.isolation != "never")
        self.spans.apply(span_settings(config))

    def _restore(self) -> Engine:
        settings, led_by = engine_settings(self.config), leader(self.config)
        state = self.books.journal.engine_state()
        if state is None:
            return Engine(settings, led_by)
        try:
            engine = Engine.from_json(settings, state, led_by)
        except (KeyError, TypeError, ValueError) as err:
            log.error("the journalled state cannot be used (%r); it is rebuilt from Slurm and nodes", err)
            return Engine(settings, led_by)
        for sentence in engine.state.unread:
            log.error("%s; that job is taken up anew from Slurm and its nodes", sentence)
        return engine

    def _start_over(self) -> None:
        """After an error nothing of the last cycle is trusted: journalled state, and all pictures anew."""
        self.engine = self._restore()
        self._guarded.note(self.engine)
        self.picture, self.reports, self._early, self._alive = None, {}, {}, {}
        self._bounds.forget()

    def _held(self) -> dict[int, SlurmJob]:
        records, aside = self.engine.jobs.items(), self.engine.state.aside.items()
        held = {job_id: record.job for job_id, record in records if record.state != states.ENDED}
        return held | {job_id: each.seen for job_id, each in aside if each.seen is not None}

    def _watch_leaves(self, picture: Picture) -> None:
        """A user never seen before may have shares: read them with the next picture."""
        leaves = {(job.account, job.user) for job in picture.jobs.values()}
        if leaves - self._leaves:
            self._leaves |= leaves
            self._slurm.want_associations()

    def _of_look(self, shown_ns: int) -> list[partial[None]]:
        if self.picture is None:
            return []
        return self.books.of_look(self.picture, self.engine.tickets().values(), self._vanished, shown_ns)

    def _bring(self, bodies: Mapping[str, PlanBody]) -> None:
        """Bring plans to their nodes, and to the rounds of jobs of several nodes."""
        self.nodes.publish(bodies, self._turn(), self.engine.ahead)
        gpus, jobs_of = {n: b.gpus for n, b in bodies.items()}, {n: b.jobs for n, b in bodies.items()}
        self.spans.follow(gpus, jobs_of)

    def _turn(self) -> Turn:
        """Return the turn of the plan that holds."""
        decider, now_s = self.engine.decider, time.monotonic()
        if decider.turn_ns != self._last_turn.turn_ns:
            last_s, wake_ns = self._last_turn.end_s, decider.wake_ns
            end_s = now_s + (wake_ns - self._clock_ns()) / NS_PER_S if wake_ns else None
            due_s = now_s if last_s is None else min(last_s, now_s)
            self._last_turn = Turn(decider.turn_ns, due_s, end_s)
        return self._last_turn

    def _plan(self, name: str) -> PlanBody:
        record = self.engine.nodes.get(name)
        places = (planned(place, self.config) for place in self.engine.plan_jobs(name))
        jobs = tuple(self.nodes.images.named(job, name, self.config) for job in places)
        fence = tuple((key.job_id, key.restart) for key in self.engine.fences(name))
        images = self.engine.waiting_again() if self.config.node.process_images else ()
        return PlanBody(record.gpus if record else 0, jobs, fence, images)
