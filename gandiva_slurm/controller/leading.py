"""What nodes hear of a policy's turns, and when these are left to them.

A policy that has not decided for a while leaves turns to the nodes, each of which goes by its own stride,
whatever it is that keeps it: Slurm does not answer, cycles fail, its plans are bad. A job that it has parked
waits no longer than it would if gandivactld itself were away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from gandiva_slurm.config import NS_PER_S, Config
from gandiva_slurm.controller.nodes import PlanBody, without_turns
from gandiva_slurm.engine.apply.decider import Decider
from gandiva_slurm.model.span import lease_ns

#: How often it is looked whether the policy has decided, at most.
LOOK_S = 0.5

log = logging.getLogger(__name__)


class Lead:
    """The policy that decides, as the nodes and the log hear of it."""

    def __init__(
        self,
        config: Callable[[], Config],
        publish: Callable[[Mapping[str, PlanBody]], None],
        fail: Callable[[str], None],
    ) -> None:
        """`publish` brings plans to their nodes; `fail` counts a sentence as an error of our own."""
        self._config, self._publish, self._fail = config, publish, fail
        self._bodies: Mapping[str, PlanBody] = {}
        self._decided_s = time.monotonic()
        #: the last cycle has decided; its plan is on its way to the nodes
        self._has_decided = self._has_let_go = self._has_plan = False
        self._fault = self._forgot = ""

    @property
    def troubles(self) -> list[str]:
        """What is wrong with decisions now, a sentence each, for `gandiva check` and `why`."""
        is_left = self._has_let_go or not self._has_plan
        found = [self._fault + ("" if is_left else "; its last good plan stays")] if self._fault else []
        if self._has_let_go or (self._fault and is_left):
            for_s = time.monotonic() - self._decided_s
            found.append(f"no decision of the policy for {for_s:.0f} s: turns are each node's own meanwhile")
        return found

    def heard(self, decider: Decider, has_ticked: bool) -> None:
        """Note what came of a cycle, and say once what is new of it. `has_ticked`: there was a decision."""
        self._tell(decider)
        self._has_plan = decider.has_plan
        self._has_decided = has_ticked and not self._fault

    def publish(self, bodies: Mapping[str, PlanBody]) -> None:
        """Bring a cycle's plans to their nodes; without turns where the policy is late.

        A decision counts from here on: one that never comes so far holds nobody.
        """
        if self._has_decided:
            self._decided_s, self._has_decided = time.monotonic(), False
            if self._has_let_go:
                log.info("the policy decides again on whose turn it is")
            self._has_let_go = False
        self._bring(bodies)

    def _bring(self, bodies: Mapping[str, PlanBody]) -> None:
        if self._left_s() <= 0 and _have_turns(bodies):
            if not self._has_let_go:
                for_s = self._lease_s()
                log.warning("no decision of the policy for %.0f s: nodes go by their own strides", for_s)
            self._has_let_go = True
            bodies = {node: without_turns(body) for node, body in bodies.items()}
        self._bodies = bodies
        self._publish(bodies)

    async def watch(self) -> None:
        """Leave turns to the nodes as soon as the policy is late, whatever the cycle does meanwhile."""
        while True:
            await asyncio.sleep(max(self._left_s(), LOOK_S))
            if self._left_s() > 0 or not _have_turns(self._bodies):
                continue
            try:
                self._bring(self._bodies)
            except Exception:  # it is tried again: a job that is parked waits for it
                log.exception("nodes could not be told to go by their own strides")

    def _lease_s(self) -> float:
        return lease_ns(self._config().quantum_ns) / NS_PER_S

    def _left_s(self) -> float:
        """Seconds until the policy is late."""
        return self._decided_s + self._lease_s() - time.monotonic()

    def _tell(self, decider: Decider) -> None:
        """Say once what is wrong with a policy's plans, and that it is well again."""
        fault = decider.fault
        if fault and fault != self._fault:
            log.error("%s; its last good plan stays, for %.0f s", fault, self._lease_s())
            self._fail(fault)
        elif self._fault and not fault:
            log.info("policy %s makes plans again", self._config().policy)
        self._fault = fault
        forgot = decider.memory_fault
        if forgot and forgot != self._forgot:
            log.warning("%s", forgot)
        self._forgot = forgot


def _have_turns(bodies: Mapping[str, PlanBody]) -> bool:
    return any(job.is_on is not None for body in bodies.values() for job in body.jobs)
