"""The nodes of a live cluster in virtual time: each with its own stride, and the central one over spans.

What gandivad and the controller's rounds do at a quantum's end and when something changes, but that every
park and resume is done at once: what they cost is the simulator's matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gandiva_slurm.engine.central import CentralSettings, Domain
from gandiva_slurm.engine.cluster import Central
from gandiva_slurm.engine.domains import whole_jobs
from gandiva_slurm.engine.local import Gang, LocalStride
from gandiva_slurm.engine.state import Placement
from gandiva_slurm.model import span as words
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime, PartStand

#: One boot: counters of held time never begin anew.
_BOOT = "sim"

Plans = Mapping[str, tuple[Placement, ...]]


class LiveNodes:
    """All nodes: who lives there, who holds GPUs now, what each has held."""

    def __init__(self, gpus: Mapping[str, int], quantum_ns: int, is_led: bool = False) -> None:
        """`is_led`: plans say which gangs hold GPUs; no stride here chooses."""
        self.gpus, self._is_led = dict(gpus), is_led
        #: who holds GPUs now, and who has saved itself and is parked until it is requeued
        self.on: set[JobKey] = set()
        self.left: set[JobKey] = set()
        #: how long each has held its GPUs; of two that share them each half
        self.held_ns: dict[JobKey, int] = {}
        self._locals = {node: LocalStride(count, quantum_ns) for node, count in gpus.items()}
        self._central = Central(CentralSettings(quantum_ns, client_wait_ns=0))
        self._plans: Plans = {}
        self._leaving: set[JobKey] = set()
        self._mates: dict[JobKey, JobKey] = {}
        self._now_ns = 0

    def charge(self, now_ns: int) -> None:
        """Charge all that held GPUs until now."""
        held_ns, self._now_ns = now_ns - self._now_ns, now_ns
        shared = {place.key for node, place in self.placements() if self._shares(node, place.key)}
        for key in self.on:
            self.held_ns[key] = self.held_ns.get(key, 0) + held_ns // (2 if key in shared else 1)
        for node, place in () if self._is_led else self.placements():
            if place.key in self.on:
                self._locals[node].charge(place.key, held_ns, 0, place.key in shared)

    def follow(self, plans: Plans) -> None:
        """Take over the plans of all nodes, of jobs that run there; whoever is in none is gone."""
        self._plans = plans
        here = {place.key for places in plans.values() for place in places}
        self._leaving = {place.key for places in plans.values() for place in places if place.is_leaving}
        self.on &= here
        self.left &= self._leaving
        self.held_ns = {key: held for key, held in self.held_ns.items() if key in here}
        if self._is_led:
            return
        for node, local in self._locals.items():
            local.set_gangs([_gang(place) for place in plans.get(node, ())])
        self._central.follow(self.gpus, whole_jobs(plans))

    def obey(self) -> None:
        """Gangs that are planned to hold GPUs do; those told to leave have saved themselves."""
        keys = {place.key.job_id: place.key for _, place in self.placements()}
        self._mates = {place.key: keys[place.mate] for _, place in self.placements() if place.mate in keys}
        self.left |= self._leaving
        planned = {place.key for _, place in self.placements() if place.is_on}
        self.on = planned - self.left

    def decide(self, is_end: bool) -> None:
        """Choose who holds GPUs from now on; in mid-quantum nobody who holds some loses them."""
        if is_end:
            for local in self._locals.values():
                local.settle()
        holders = set(self.on)
        for domain in self._central.domains:
            self._round(domain, is_end)
        for node, local in self._locals.items():
            self._choose(node, local, holders, is_end)
        # Told to leave, a gang saves itself when its turn has come, and is off; others may have its GPUs now.
        saved = self.on & self._leaving
        if saved:
            self.on -= saved
            self.left |= saved
            self.decide(False)

    def runs(self) -> dict[JobKey, tuple[tuple[str, tuple[int, ...]], ...]]:
        """Who holds which GPUs of which nodes."""
        found: dict[JobKey, tuple[tuple[str, tuple[int, ...]], ...]] = {}
        for node, places in self._plans.items():
            for place in places:
                if place.key in self.on:
                    found[place.key] = place.span or ((node, place.gpus),)
        return found

    def placements(self) -> Iterable[tuple[str, Placement]]:
        """Yield all that lives on the nodes."""
        for node, places in self._plans.items():
            for place in places:
                yield node, place

    def _shares(self, node: str, key: JobKey) -> bool:
        """True when it holds its GPUs together with its mate."""
        mate = self._mates.get(key) if self._is_led else self._locals[node].mate_of(key)
        return key in self.on and mate in self.on

    def _choose(self, node: str, local: LocalStride, holders: set[JobKey], is_end: bool) -> None:
        """A node's own stride around the spans that are on."""
        places = self._plans.get(node, ())
        spans = [place.key for place in places if place.span and place.key in self.on]
        taken = {gpu for place in places if place.key in spans for gpu in place.gpus}
        free = [place for place in places if not place.span and place.key not in self.left]
        runnable, pinned = [place.key for place in free], set(spans)
        yielding = [place.key for place in places if place.key in holders]
        if not is_end:
            pinned |= {p.key for p in free if p.key in holders and taken.isdisjoint(p.gpus)}
            pinned -= local.giving_way(runnable, spans, (), pinned)
            yielding = []
        chosen = set(local.choose(runnable, pinned, (), yielding))
        for place in free:
            (self.on.add if place.key in chosen else self.on.discard)(place.key)

    def _round(self, domain: Domain, is_end: bool) -> None:
        """What the controller does in a round: ask all, decide, have spans change hands, leavers first."""
        for node in domain.nodes:
            places = self._plans.get(node, ())
            parts = [self._part(node, place) for place in places if place.span]
            domain.gather(node, _BOOT, [self._row(place) for place in places], parts, self._now_ns)
        verdicts = domain.decide({}, is_end)
        for key in sorted(verdicts, key=lambda key: (verdicts[key].where != words.OUT, key)):
            is_wanted = verdicts[key].where != words.OUT
            if is_wanted == (key in self.on):
                continue
            (self.on.add if is_wanted else self.on.discard)(key)
            now = {node: self._part(node, place) for node, place in self.placements() if place.key == key}
            domain.tried(key, "", now, words.IN if is_wanted else words.OUT)

    def _row(self, place: Placement) -> HeldTime:
        state = words.ON if place.key in self.on else words.OFF
        return HeldTime(*place.key, place.user, place.gpus, self.held_ns.get(place.key, 0), 0, state)

    def _part(self, node: str, place: Placement) -> PartStand:
        """One rank on each of its nodes, ready to be parked."""
        phase = words.ON if place.key in self.on else words.OFF
        nodes = [node for node, _ in place.span]
        rank = nodes.index(node)
        return PartStand(*place.key, phase, len(nodes), (rank,), 9, 9, 1, 1, 1, is_parkable=True)


def _gang(place: Placement) -> Gang:
    order, mate, is_spare = place.submitted_ns, place.mate, place.is_opportunistic
    return Gang(place.key, place.user, place.tickets, place.gpus, order, mate, is_spare, place.vc)
