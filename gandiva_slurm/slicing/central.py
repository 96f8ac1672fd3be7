"""Which spans hold their GPUs in the next quantum: gang-aware stride over nodes that spans join (ADR 0015).

Over a domain runs the very stride of a single node, on one pool of all its GPUs, with all gangs that live
there, charged by what the nodes say they held. Only what it says of spans is binding: the rest of its choice
stands for what the nodes will do around them.

A round: `gather` for each node that answers, `silence` for the others, then `decide`. Pure, and nothing of it
need outlive the controller: levelling keeps every gap within one round of the pool anyway, so that a restart
forgives a round at most (a start-up's debt included); nodes count what was held, and the first `gather` of a
node only tells where its counters stand. Accounts are kept by the ledger, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import ENDED, IN, OFF, ON, OUT, READY, RESERVED, STAY, HeldTime, PartStand
from gandiva_slurm.slicing.backoff import Lucks, union
from gandiva_slurm.slicing.domains import Planned, fits, has_all_ranks
from gandiva_slurm.slicing.local import Gang, LocalStride
from gandiva_slurm.slicing.starvation import Starving
from gandiva_slurm.slicing.verdict import Seen
from gandiva_slurm.slicing.verdict import Verdict as Verdict

#: Two clocks measure one interval: a node may say so much more than passed here, and an eighth.
SLACK_NS = 50_000_000
#: A park's bound is kept by deciding two quanta and this much before it.
LEAD_NS = 2_000_000_000
#: Phases of a part that holds no GPUs.
WITHOUT = frozenset((OFF, RESERVED, READY))


@dataclass
class CentralSettings:
    """What the site sets. `refusal_bound_ns`: how long others bear a span that does not park; 0: for ever."""

    quantum_ns: int
    client_wait_ns: int
    refusal_bound_ns: int = 0


class Domain:
    """The stride of one domain."""

    def __init__(self, settings: CentralSettings, stride: LocalStride | None = None) -> None:
        self.settings = settings
        self.stride = stride or LocalStride(0, settings.quantum_ns)
        self.nodes: dict[str, int] = {}
        self.spans: dict[JobKey, Planned] = {}
        self.verdicts: dict[JobKey, Verdict] = {}
        self.seen: dict[str, Seen] = {}
        self._planned: Mapping[JobKey, Planned] = {}
        self._owed: list[tuple[JobKey, str, int, int]] = []
        self._over: set[JobKey] = set()
        self.lucks = Lucks()
        self._starving: Starving[JobKey] = Starving()

    def follow(self, nodes: Mapping[str, int], jobs: Mapping[JobKey, Planned]) -> None:
        """Take over the plan: the domain's nodes with their GPUs, and all planned jobs."""
        self.nodes, self._planned = dict(sorted(nodes.items())), jobs
        spans = [job for _, job in sorted(jobs.items()) if job.is_span]
        self.spans = {
            job.key: job for job in spans if all(fits(gpus, nodes.get(node, 0)) for node, gpus in job.places)
        }
        self.seen = {node: seen for node, seen in self.seen.items() if node in nodes}
        self._over &= self.spans.keys()
        self.lucks.keep(self.spans)
        self.verdicts = {key: verdict for key, verdict in self.verdicts.items() if key in self.spans}

    def gather(
        self, node: str, boot: str, held: Sequence[HeldTime], parts: Sequence[PartStand], now_ns: int
    ) -> None:
        """A node says what was held there, in all, and how its parts stand; what is new of it is owed."""
        last = self.seen.get(node)
        # Slurm may use a job's number again after it has lost its state: the living one is meant.
        rows = {row.key: row for row in sorted(held, key=lambda row: row.state != ENDED)}
        if last is not None:
            elapsed = now_ns - last.at_ns
            for key, row in rows.items():
                before = last.held.get(key) if last.boot == boot else None
                self._owe(row, before, elapsed + elapsed // 8 + SLACK_NS)
        self.seen[node] = Seen(boot, rows, {part.key: part for part in parts}, now_ns)

    def silence(self, node: str) -> None:
        """A node did not answer: what lives there stays as it is, and is charged when it answers again."""
        if node in self.seen:
            self.seen[node] = self.seen[node]._replace(is_silent=True)

    def decide(self, moving: Mapping[JobKey, str], is_end: bool = True) -> dict[JobKey, Verdict]:
        """Return where each span is to be; `moving` are those under way, IN or OUT.

        At a quantum's end everybody is asked anew; in the middle of one (`is_end` False) whoever holds GPUs
        keeps them, and spans are given what is idle.
        """
        self._charge(is_end)
        self._set_gangs()
        self._look_at_refusals()
        kept, can_run, holders = self._kept(moving), self._runnable(moving), self._holders()
        overdue = self._overdue() + self._starving.starved()
        pinned, yielding = set(kept), holders
        if is_end:
            coming = [key for key in kept if moving.get(key) == IN]
            on_merit = self.stride.choose(can_run, coming, overdue, yielding)
            self._over = {key for key in self.spans if self._has_gpus(key) and key not in on_merit}
        else:
            pinned |= {key for key in holders if moving.get(key) != OUT}
            pinned -= {key for key in self.spans if self._is_to_save(key)}
            pinned -= {key for key in self.spans if self._is_off(key) and key not in kept}
            pinned -= self.stride.giving_way(can_run, kept, overdue, pinned)
            yielding = set()
        chosen = set(self.stride.choose(can_run, pinned, overdue, yielding))
        # Who has refused is asked again, who is to be moved may save itself for long: nobody is sent to
        # wait for their GPUs, they are given when free.
        slow = {key for key, span in self.spans.items() if span.is_leaving or self.lucks.of(key).is_refusing}
        asked = (slow & holders) - chosen
        if asked:
            chosen = set(self.stride.choose(can_run, pinned | asked, overdue, yielding)) - asked
        if is_end:
            self._starving.note(self.stride.waiters({*can_run, *chosen}), chosen)
        told = [] if is_end else [key for key, verdict in self.verdicts.items() if verdict.comes_back]
        self.verdicts = {
            key: self._verdict(key, key in chosen, kept.get(key, ""), moving) for key in self.spans
        }
        for key in self._alone(told):
            self.verdicts[key] = self.verdicts[key]._replace(comes_back=True)
        return self.verdicts

    def tried(self, key: JobKey, error: str, parts: Mapping[str, PartStand], move: str = OUT) -> None:
        """A span's change of hands is over: why it failed, "" if it did not, and how its parts stand now.

        `move`: IN, OUT, FREEZE, a way out for one that refused to park, or LEAVE: its save failed.
        """
        for node, part in parts.items():
            if node in self.seen:
                seen = self.seen[node]
                self.seen[node] = seen._replace(parts={**seen.parts, key: part})
        self.lucks.of(key).tried(move, error, self._asked_ns())

    def trouble(self, key: JobKey) -> str:
        """Return why a span's last change of hands failed, "" when it did not."""
        return self.lucks.of(key).why

    def parts(self, key: JobKey) -> dict[str, PartStand]:
        """Return how a span's parts stood when their nodes were asked last; those that answered, by node."""
        seen = {node: self.seen.get(node) for node in self.spans[key].nodes}
        found = {node: at.parts.get(key) for node, at in seen.items() if at is not None and not at.is_silent}
        return {node: part for node, part in found.items() if part is not None}

    # what is charged

    def _owe(self, row: HeldTime, before: HeldTime | None, bound_ns: int) -> None:
        held = min(max(row.held_ns - (before.held_ns if before else 0), 0), bound_ns)
        over = row.over_ns - (before.over_ns if before else 0)
        if row.key in self.spans:
            # Its quantum is decided here, not at its nodes.
            over = held if row.key in self._over else 0
            self.lucks.of(row.key).held_ns += held
        size = len(row.gpus)
        self._owed.append((row.key, row.user, held * size, min(max(over, 0), held) * size))

    def _charge(self, is_end: bool) -> None:
        for key, user, work, over in self._owed:
            self.stride.charge_work(key, user, work, over, self._group(key))
        self._owed = []
        if is_end:
            self.stride.settle()
            self.lucks.end_round()

    # who is there

    def _set_gangs(self) -> None:
        offset, first = 0, {}
        for node, count in self.nodes.items():
            first[node] = offset
            offset += count
        local = [(row.key, row.user, ((node, row.gpus),)) for node, row in self._local()]
        whole = [(job.key, job.user, job.places) for job in self.spans.values()]
        gangs = {}
        for key, user, places in (*local, *whole):
            plan = self._planned.get(key)
            pool = tuple(first[node] + gpu for node, gpus in places for gpu in gpus)
            gangs[key] = Gang(key, user, 1, pool, 0)
            if plan:
                tickets, since_ns = max(1, plan.tickets), plan.submitted_ns
                gangs[key] = Gang(key, user, tickets, pool, since_ns, 0, plan.is_opportunistic, plan.vc)
        self.stride.gpus, self.stride.quantum_ns = offset, self.settings.quantum_ns
        self.stride.set_gangs(list(gangs.values()))

    def _group(self, key: JobKey) -> str:
        plan = self._planned.get(key)
        return plan.group if plan else ""

    def _local(self) -> Iterable[tuple[str, HeldTime]]:
        """Yield all residents but the parts of spans, with their nodes."""
        for node, seen in self.seen.items():
            for key, row in seen.held.items():
                if key not in self.spans and row.state != ENDED and fits(row.gpus, self.nodes[node]):
                    yield node, row

    def _holders(self) -> set[JobKey]:
        return {row.key for _, row in self._local() if row.state == ON} | set(filter(self._is_on, self.spans))

    def _phases(self, key: JobKey) -> frozenset[str]:
        """The phases of a span's parts, on silent nodes as they were last; empty when none is known."""
        seen = [self.seen[node] for node in self.spans[key].nodes if node in self.seen]
        return frozenset(at.parts[key].phase for at in seen if key in at.parts)

    def _is_on(self, key: JobKey) -> bool:
        return bool(self._phases(key)) and not self._phases(key) & WITHOUT

    def _has_gpus(self, key: JobKey) -> bool:
        """True when some part of it has GPUs."""
        return not self._phases(key) <= WITHOUT

    def _silent(self, key: JobKey) -> str:
        nodes = self.spans[key].nodes
        silent = [node for node in nodes if node not in self.seen or self.seen[node].is_silent]
        return f"{', '.join(silent)} does not answer" if silent else ""

    # what refuses to go

    def _asked_ns(self) -> int:
        """When the nodes were asked last."""
        return max((seen.at_ns for seen in self.seen.values()), default=0)

    def _look_at_refusals(self) -> None:
        masks, holders = {gang.key: gang.mask for gang in self.stride.gangs}, self._holders()
        on = {key: masks[key] for key in self.spans if key in holders}
        for key in on:
            knows_all = bool(self._silent(key)) or has_all_ranks(list(self.parts(key).values()))
            self.lucks.of(key).look(len(self.spans[key].places), knows_all, self._asked_ns())
        gone = holders.union(filter(self._has_saved, self.spans))
        waiting = union(mask for key, mask in masks.items() if key not in gone)
        # One that is stopped before it has begun is in nobody's way for longer.
        begun = self.spans.keys() | {row.key for _, row in self._local() if row.held_ns}
        overdue = union(masks[key] for key in self._overdue() if key in begun and key not in holders)
        self.lucks.press(on, waiting, overdue, self.settings.refusal_bound_ns)

    # what cannot be chosen freely

    def _kept(self, moving: Mapping[JobKey, str]) -> dict[JobKey, str]:
        """Return who is on, or comes on, whatever the passes say, and why."""
        local = [row for _, row in self._local() if row.state == ON and row.must_stay]
        kept = {row.key: "it cannot be parked" for row in local}
        spans = {key: self._why_kept(key, moving.get(key, "")) for key in self.spans}
        crossed = self._crossed()
        return kept | {key: why for key, why in spans.items() if why and key not in crossed}

    def _crossed(self) -> set[JobKey]:
        """Return torn spans that wait for GPUs of another torn one, and it for theirs: the first may stay.

        Two nodes can come to that by themselves, each without the controller. Neither gang comes to a
        boundary any more: one must be stopped where it is.
        """
        masks = {gang.key: gang.mask for gang in self.stride.gangs}
        taken, crossed = 0, set()
        for key in sorted(self.spans, key=lambda key: (self.spans[key].submitted_ns, key)):
            if not self._has_gpus(key) or self._is_on(key) or self._silent(key):
                continue
            if taken & masks[key]:
                crossed.add(key)
            taken |= masks[key]
        return crossed

    def _why_kept(self, key: JobKey, moving: str) -> str:
        phases = self._phases(key)
        if moving == IN:
            return "its GPUs are being cleared"
        if moving == OUT or not self._has_gpus(key):
            return ""
        if phases & WITHOUT:
            return self._silent(key) or "some of its parts hold their GPUs: the others follow"
        keeps = "it saves itself upon its signal, to be moved" if self.spans[key].keeps_turn else ""
        return self._silent(key) or self._why_unparkable(key) or keeps

    def _why_unparkable(self, key: JobKey) -> str:
        parts, luck = list(self.parts(key).values()), self.lucks.of(key)
        if luck.pause and not luck.is_over:
            return f"its last park failed: {luck.why}"
        if any(part.must_stay for part in parts):
            return "a part of it starts up, moves, or failed to park just now"
        blind_ns = max([luck.blind_ns, *(part.blind_ns for part in parts)])
        if blind_ns < self.settings.client_wait_ns and not has_all_ranks(parts):
            return "not all of its ranks have registered and passed enough boundaries"
        return ""

    def _why_out(self, key: JobKey, moving: Mapping[JobKey, str]) -> str:
        """Why a span cannot be given GPUs in this round, "" when it can."""
        luck = self.lucks.of(key)
        if moving.get(key) == OUT:
            return "it is being parked"
        if self._silent(key):
            return self._silent(key)
        if len(self.parts(key)) < len(self.spans[key].nodes):
            return "not all of its nodes know it yet"
        if key in self._crossed():
            return "another gang is on in part on its nodes, too: it comes when that one is whole"
        if luck.pause and not self._is_on(key):
            return f"it was to come in and could not: {luck.why}"
        if self._is_to_save(key):
            return "it saves itself, to be moved"
        return "it has saved itself, to be moved" if self._has_saved(key) else ""

    def _is_to_save(self, key: JobKey) -> bool:
        """True when it is to be moved, is on, and all its ranks can be asked to save themselves now."""
        plan = self.spans[key]
        if not plan.is_leaving or plan.keeps_turn or not self._is_on(key) or self.lucks.of(key).rest:
            return False
        can_park = not self._silent(key) and not self._why_unparkable(key)
        return can_park and has_all_ranks(list(self.parts(key).values()))

    def _has_saved(self, key: JobKey) -> bool:
        """True when it is to be moved and all of it has saved itself: it waits to be requeued."""
        parts, plan = self.parts(key).values(), self.spans[key]
        return plan.is_leaving and len(parts) == len(plan.nodes) and all(part.has_saved for part in parts)

    def _runnable(self, moving: Mapping[JobKey, str]) -> list[JobKey]:
        local = [row.key for _, row in self._local()]
        able = local + [key for key in self.spans if not self._why_out(key, moving)]
        return [key for key in able if not self._is_off(key)]

    def _is_off(self, key: JobKey) -> bool:
        """True where a policy has decided that it has no turn; one that leaves has one, to save itself."""
        plan = self._planned.get(key)
        return plan is not None and plan.is_on is False and not plan.is_leaving

    def _overdue(self) -> list[JobKey]:
        lead_ns = 2 * self.settings.quantum_ns + LEAD_NS
        left = [(row.key, row.left_ns) for _, row in self._local() if row.state == OFF]
        spans = [key for key in self.spans if not self._has_saved(key)]
        left += [(key, part.left_ns) for key in spans for part in self.parts(key).values()]
        due = [key for key, left_ns in left if 0 <= left_ns <= lead_ns]
        return due + [key for key in spans if self._must_save(key)]

    def _must_save(self, key: JobKey) -> bool:
        """True where a policy has it leave and it is parked: it needs a turn at once, to save itself."""
        plan = self.spans[key]
        is_asked = plan.is_on is not None and plan.is_leaving and not self.lucks.of(key).rest
        return is_asked and not self._is_on(key)

    def _verdict(self, key: JobKey, is_chosen: bool, kept: str, moving: Mapping[JobKey, str]) -> Verdict:
        is_on = self._is_on(key)
        is_torn = self._has_gpus(key) and not is_on
        if not is_chosen:
            luck = self.lucks.of(key)
            why, freezes = self._why_out(key, moving) or luck.told(), is_on and luck.is_over
            return Verdict(OUT, why, is_on, is_torn, freezes=freezes, saves=self._is_to_save(key))
        return Verdict(STAY if is_on or self._silent(key) else IN, kept, is_on, is_torn)

    def _alone(self, told: Sequence[JobKey]) -> list[JobKey]:
        """Return the spans that are out and meet, on no node, one that is to be in or one of these.

        Those that were `told` so before go first: in the middle of a quantum nodes hear nothing new of them.
        """
        masks = {gang.key: gang.mask for gang in self.stride.gangs if gang.key in self.spans}
        taken, alone = 0, []
        for key, mask in masks.items():
            if self.verdicts[key].where != OUT:
                taken |= mask
        for key in [*(key for key in told if key in masks), *masks]:
            is_free = key not in alone and not taken & masks[key] and not self.spans[key].is_leaving
            if self.verdicts[key].where == OUT and is_free:
                taken |= masks[key]
                alone.append(key)
        return alone
