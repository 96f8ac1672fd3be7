"""The nodes of a cluster in virtual time: they obey plans at once; the simulator charges what that costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gandiva_slurm.engine.state.records import Placement
from gandiva_slurm.model.ids import JobKey

Plans = Mapping[str, tuple[Placement, ...]]


class Nodes:
    """All nodes: which jobs live there, which hold GPUs now, and how long each has."""

    def __init__(self) -> None:
        #: the jobs that hold GPUs now, and those that have saved themselves and are parked until requeued
        self.on: set[JobKey] = set()
        self.left: set[JobKey] = set()
        #: how long each has held its GPUs; of two that share them each half
        self.held_ns: dict[JobKey, int] = {}
        self._plans: Plans = {}
        self._leaving: set[JobKey] = set()
        self._mates: dict[JobKey, JobKey] = {}
        self._now_ns = 0
        #: how long until the first of those that load has done so; None: none loads
        self.loaded_ns: int | None = None

    def charge(self, now_ns: int) -> None:
        """Charge all that held GPUs until now."""
        held_ns, self._now_ns = now_ns - self._now_ns, now_ns
        for key in self.on:
            shares = self._mates.get(key) in self.on
            self.held_ns[key] = self.held_ns.get(key, 0) + held_ns // (2 if shares else 1)

    def follow(self, plans: Plans) -> None:
        """Take over the plans of all nodes, of jobs that run there; what is in none is gone."""
        self._plans = plans
        here = {place.key for places in plans.values() for place in places}
        self._leaving = {place.key for places in plans.values() for place in places if place.is_leaving}
        self.on &= here
        self.left &= self._leaving
        self.held_ns = {key: held for key, held in self.held_ns.items() if key in here}

    def obey(self, load_ns: int = 0) -> None:
        """Gangs that are planned to hold GPUs do; those told to leave have saved themselves.

        One that has not held its GPUs for `load_ns` since it came to them loads, and cannot be parked.
        """
        keys = {place.key.job_id: place.key for _, place in self.placements()}
        self._mates = {place.key: keys[place.mate] for _, place in self.placements() if place.mate in keys}
        self.left |= self._leaving
        left_ns = {key: load_ns - self.held_ns.get(key, 0) for key in self.on - self.left}
        loading = {key for key, rest_ns in left_ns.items() if rest_ns > 0}
        self.loaded_ns = min((left_ns[key] for key in loading), default=None)
        spots = [(place.key, {(node, gpu) for gpu in place.gpus}) for node, place in self.placements()]
        taken = {spot for key, mine in spots if key in loading for spot in mine}
        barred = {key for key, mine in spots if not taken.isdisjoint(mine)} - loading
        planned = {place.key for _, place in self.placements() if place.is_on}
        self.on = (planned - barred | loading) - self.left

    def runs(self) -> dict[JobKey, tuple[tuple[str, tuple[int, ...]], ...]]:
        """Which GPUs of which nodes each holds."""
        found: dict[JobKey, tuple[tuple[str, tuple[int, ...]], ...]] = {}
        for node, place in self.placements():
            if place.key in self.on:
                found[place.key] = place.span or ((node, place.gpus),)
        return found

    def placements(self) -> Iterable[tuple[str, Placement]]:
        """Yield all that lives on the nodes."""
        for node, places in self._plans.items():
            for place in places:
                yield node, place
