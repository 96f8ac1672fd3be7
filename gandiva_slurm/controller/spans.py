"""Gangs over nodes: a task a domain asks, decides and orders, once a quantum (ADR 0015).

A round: every node of the domain says what was held and how its parts stand; the central stride chooses; all
nodes are told, which ends their quantum; then spans change hands, each on its own, side by side. In between
idle GPUs are given to spans that fit, as soon as something has changed. A node that does not answer keeps
what it has. Everything is asked anew each round: nothing here must outlive the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.controller.orders import PROMPT_S, SILENT_S, Orders
from gandiva_slurm.controller.record import Record
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import BACK, GATHER, IN, OFF, ON, OUT, ROUND, STAY, lease_ns
from gandiva_slurm.slicing.central import CentralSettings, Domain, Verdict
from gandiva_slurm.slicing.cluster import Central
from gandiva_slurm.slicing.domains import PlannedPart, whole_jobs
from gandiva_slurm.slicing.span_park import MoveSettings, SpanMove, Stood, move_wanted
from gandiva_slurm.wire.span import SpanAnswer

#: Between two looks within a quantum, at least.
REST_S = 0.02
_MS = 1_000_000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpanSettings:
    """The times of the configuration."""

    quantum_ns: int
    park_deadline_ns: int
    client_wait_ns: int
    refusal_bound_ns: int = 0
    save_deadline_ns: int = 0


class _Lead:
    """What belongs to one domain: its task, and the flag that wakes it."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.changed = asyncio.Event()
        self.answered: set[str] = set()
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Hold no more rounds."""
        if self.task is not None:
            self.task.cancel()


class Spans:
    """All domains and all changes of hands."""

    def __init__(self, orders: Orders, settings: SpanSettings, record: Record) -> None:
        self.settings = settings
        self._orders = orders
        self._record = record
        bounds = (settings.client_wait_ns, settings.refusal_bound_ns)
        self._central = Central(CentralSettings(settings.quantum_ns, *bounds))
        self._leads: dict[int, _Lead] = {}
        self._moves: dict[JobKey, SpanMove] = {}
        self._movers: dict[JobKey, asyncio.Task[None]] = {}
        self._plan: tuple[Mapping[str, int], Mapping[JobKey, Any]] = ({}, {})

    def follow(self, gpus: Mapping[str, int], plans: Mapping[str, Iterable[PlannedPart]]) -> None:
        """Take over the plan: GPUs and jobs of each node. The same plan again changes nothing."""
        plan = (dict(gpus), whole_jobs(plans))
        if plan == self._plan:
            return
        self._plan = plan
        self._central.follow(*plan)
        domains = {id(domain): domain for domain in self._central.domains}
        for gone in self._leads.keys() - domains.keys():
            self._leads.pop(gone).stop()
        for number, domain in domains.items():
            lead = self._leads.setdefault(number, _Lead(domain))
            lead.changed.set()
            if lead.task is None:
                lead.task = asyncio.create_task(self._lead(lead), name=f"domain-{min(domain.nodes)}")
        alive = {key for domain in domains.values() for key in domain.spans}
        for key in self._movers.keys() - alive:
            self._movers[key].cancel()

    def apply(self, settings: SpanSettings) -> None:
        """Take changed settings over."""
        self.settings = settings
        self._central.settings.quantum_ns = settings.quantum_ns
        self._central.settings.client_wait_ns = settings.client_wait_ns
        self._central.settings.refusal_bound_ns = settings.refusal_bound_ns

    async def close(self) -> None:
        """End all; what is in mid-turn is brought back by its nodes."""
        tasks = [lead.task for lead in self._leads.values() if lead.task] + list(self._movers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._leads.clear()
        self._record.close()

    def evidence(self, key: JobKey) -> list[str]:
        """Return what the command line says of a span beside its nodes' word; nothing for other jobs."""
        lead = self._lead_of(key)
        if lead is None:
            return []
        domain, verdict, move = lead.domain, lead.domain.verdicts.get(key), self._moves.get(key)
        lines = [f"decided for {len(domain.spans)} span(s) on {','.join(domain.nodes)} together"]
        if verdict is None:
            return [*lines, "no round has been held for it yet"]
        words = {STAY: "holds its GPUs", IN: "is to come in", OUT: "is out"}
        lines.append(f"this quantum it {words[verdict.where]}" + (f": {verdict.why}" if verdict.why else ""))
        if move is not None:
            lines.append(f"changes hands now: {move.stage} on {','.join(move.nodes)}")
        trouble = domain.trouble(key)
        return [*lines, f"the last change of hands failed: {trouble}"] if trouble else lines

    def _lead_of(self, key: JobKey) -> _Lead | None:
        return next((lead for lead in self._leads.values() if key in lead.domain.spans), None)

    # one domain

    async def _lead(self, lead: _Lead) -> None:
        """Hold rounds for ever: at each quantum's end, and when something has changed."""
        loop = asyncio.get_running_loop()
        end_s = loop.time()
        while True:
            is_end = loop.time() >= end_s
            if is_end:
                # Missed ends are not made up for.
                end_s = max(end_s, loop.time() - 0.1) + self.settings.quantum_ns / 1e9
            lead.changed.clear()
            try:
                await self._round(lead, is_end)
            except Exception:
                log.exception("a round of %s failed", ",".join(lead.domain.nodes))
            await asyncio.sleep(REST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end_s):
                    await lead.changed.wait()

    async def _round(self, lead: _Lead, is_end: bool) -> None:
        domain = lead.domain
        await self._gather(lead)
        moving = {key: move.to for key, move in self._moves.items() if key in domain.spans}
        verdicts = domain.decide(moving, is_end)
        for key in moving:
            self._moves[key].comes_back = verdicts[key].comes_back
        stood = self._stood(lead, {})
        if is_end:
            told = await self._tell_nodes(lead, verdicts)
            stood = self._stood(lead, told)
            self._write_round(lead, verdicts)
        for key, verdict in verdicts.items():
            parts = stood.get(key, {})
            if self._is_free(lead, key, is_end) and parts.keys() >= set(domain.spans[key].nodes):
                self._move(key, verdict, {node: parts[node] for node in domain.spans[key].nodes})

    async def _gather(self, lead: _Lead) -> None:
        domain = lead.domain
        timeouts = {node: self._patience(lead, node) for node in domain.nodes}
        answers = await self._orders.ask_all(GATHER, timeouts, {})
        for node in list(domain.nodes):
            if node in answers:
                answer, asked_ns = answers[node]
                domain.gather(node, answer.boot, answer.held, answer.parts, asked_ns)
            else:
                domain.silence(node)
        lead.answered = set(answers)

    def _patience(self, lead: _Lead, node: str) -> float:
        is_first = node not in lead.domain.seen
        return PROMPT_S if is_first or node in lead.answered else SILENT_S

    async def _tell_nodes(
        self, lead: _Lead, verdicts: Mapping[JobKey, Verdict]
    ) -> dict[str, tuple[SpanAnswer, int]]:
        """ROUND to all that answer: their quantum ends."""
        domain = lead.domain
        nodes = [node for node in domain.nodes if node in lead.answered]
        spans = {
            node: tuple(
                (*key, BACK if verdict.comes_back else verdict.where)
                for key, verdict in verdicts.items()
                if key in domain.spans and node in domain.spans[key].nodes
            )
            for node in nodes
        }
        lease_ms = lease_ns(self.settings.quantum_ns) // _MS
        fields = {node: {"spans": spans[node], "lease_ms": lease_ms} for node in nodes}
        return await self._orders.ask_all(ROUND, dict.fromkeys(nodes, PROMPT_S), fields)

    def _stood(
        self, lead: _Lead, told: Mapping[str, tuple[SpanAnswer, int]]
    ) -> dict[JobKey, dict[str, Stood]]:
        """How the parts of each span stand, by the newest answer of each node that answered."""
        seen = lead.domain.seen.items()
        newest = [
            (node, part, at.at_ns) for node, at in seen if not at.is_silent for part in at.parts.values()
        ]
        newest += [
            (node, part, asked_ns) for node, (answer, asked_ns) in told.items() for part in answer.parts
        ]
        stood: dict[JobKey, dict[str, Stood]] = {}
        for node, part, asked_ns in newest:
            stood.setdefault(part.key, {})[node] = Stood(part, asked_ns)
        return stood

    def _is_free(self, lead: _Lead, key: JobKey, is_end: bool) -> bool:
        """True when a span may change hands now; after a failure only at a quantum's end."""
        known = key in lead.domain.spans and key not in self._moves
        return known and (is_end or not lead.domain.trouble(key))

    def _write_round(self, lead: _Lead, verdicts: Mapping[JobKey, Verdict]) -> None:
        spans = [[*key, v.where, v.is_on, v.why] for key, v in verdicts.items()]
        silent = sorted(lead.domain.nodes.keys() - lead.answered)
        rtt_ms = round(self._orders.rtt_ns / _MS, 3)
        self._record.write("round", nodes=list(lead.domain.nodes), silent=silent, spans=spans, rtt_ms=rtt_ms)

    # one change of hands

    def _move(self, key: JobKey, verdict: Verdict, stood: Mapping[str, Stood]) -> None:
        to = move_wanted((at.part.phase for at in stood.values()), verdict.where)
        if not to:
            return
        times = self.settings.park_deadline_ns, self._orders.rtt_ns, self.settings.save_deadline_ns
        ways = {"freezes": verdict.freezes, "saves": verdict.saves} if to == OUT else {}
        self._moves[key] = move = SpanMove(stood, to, MoveSettings(*times), **ways)
        move.comes_back = verdict.comes_back
        mover = asyncio.create_task(self._carry_out(key, move), name=f"span-{key}")
        self._movers[key] = mover
        mover.add_done_callback(lambda _: self._moved(key, move))

    async def _carry_out(self, key: JobKey, move: SpanMove) -> None:
        try:
            await self._orders.carry_out(key, move)
        except Exception as err:
            log.exception("job %s: its change of hands failed", key)
            move.error = f"{type(err).__name__}: {err}"

    def _moved(self, key: JobKey, move: SpanMove) -> None:
        del self._moves[key], self._movers[key]
        self._write_move(key, move)
        lead = self._lead_of(key)
        if lead is not None:
            parts = {node: at.part for node, at in move.stood.items()}
            lead.domain.tried(key, move.error, parts, move.kind)
            # Idle GPUs may fit somebody now. A span that came in as it was told changes nothing for others.
            if move.outcome != ON or move.error:
                lead.changed.set()

    def _write_move(self, key: JobKey, move: SpanMove) -> None:
        if not move.marks:
            return
        first_ns = move.marks[0].at_ns
        stages = [[mark.stage, round((mark.at_ns - first_ns) / _MS, 3)] for mark in move.marks]
        parts = [stood.part for stood in move.stood.values()]
        self._record.write(
            "span",
            job=key.job_id,
            restart=key.restart,
            to=move.to,
            saves=move.saves,
            outcome=move.outcome or "cut",
            error=move.error,
            nodes=list(move.nodes),
            took_ms=stages[-1][1],
            stages=stages,
            at=move.at,
            margin=move.margin,
            reaims=move.reaims,
            step_ms=round(max((part.step_ns for part in parts), default=0) / _MS, 3),
            rtt_ms=round(move.settings.rtt_ns / _MS, 3),
        )
        if move.outcome not in (ON, OFF) or move.error:
            log.info("job %s: %s ended %s: %s", key, move.to, move.outcome or "cut", move.error)
