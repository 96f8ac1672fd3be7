"""The policy that decides: asked when something has changed, what it knows kept for the next life.

It is asked when jobs, nodes or shares are others than they were, and when it wanted to be; in between its
last plan is carried out further (`asked`).

A policy begins anew where the nodes are other ones than those it knows, after a question for which it took
too long (what it knew may be half changed then), and where it fails with what it knew in a former life: that
may have been another release's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.engine.apply.asked import Asked, asked, digest, fingerprint
from gandiva_slurm.engine.apply.carry_out import carry_out, placeable, take_turns
from gandiva_slurm.engine.apply.led_packs import watch_packs
from gandiva_slurm.engine.apply.picture import Picture, key_of
from gandiva_slurm.engine.lifecycle.promotion import follow_promotions
from gandiva_slurm.engine.lifecycle.waiting import is_pausing
from gandiva_slurm.engine.state.cycle import Cycle
from gandiva_slurm.engine.state.records import SECOND_NS
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.policy.memory import NoMemory, kept, recalled
from gandiva_slurm.policy.port import Maker, OfUser, Plan, Policy, View
from gandiva_slurm.policy.soundness import fault_of

#: Of what a decider keeps; another one is not read.
FORM = 1
#: How long a policy that took too long is not asked again.
REST_NS = 60 * SECOND_NS


class TooSlow(GandivaError):
    """A policy thinks for longer than it may."""


def ask(policy: Policy, view: View) -> Plan:
    """Ask a policy, however long it takes."""
    return policy.decide(view)


@dataclass(frozen=True)
class Leader:
    """A policy that is to decide."""

    #: makes it anew
    make: Maker
    #: its name and what it is made with, as plain JSON data: by it `gandiva replay` makes it again
    told: Mapping[str, Any] | None = None
    #: asks it; TooSlow where that takes too long
    ask: Callable[[Policy, View], Plan] = ask


class Decider:
    """A policy and the numbers by which it knows GPUs."""

    def __init__(self, leader: Leader, memory: Mapping[str, Any] | None = None) -> None:
        """`memory`: what `to_json` returned for a policy, perhaps another one."""
        self.leader = leader
        self.policy = leader.make()
        #: ask again then, if nothing happens before; 0: only when something happens
        self.wake_ns = 0
        #: when the plan that holds was made, and by how much users and jobs were ahead then (`Plan.ahead`)
        self.turn_ns = 0
        self.ahead: Mapping[int, tuple[int, int]] = {}
        #: what was wrong with its last answer; "": nothing
        self.fault = ""
        #: what it raised when it was asked last
        self.raised: Exception | None = None
        #: why what it knew could not be kept, or not be read; "": it could
        self.memory_fault = ""
        #: False before its first good plan: until then each node goes by its own stride
        self.has_plan = False
        #: the last question took too long
        self.was_late = False
        #: ask it in each cycle, also where nothing has changed: an error of its is looked for
        self.asks_always = False
        self._rest_until_ns = 0
        self._notes: Mapping[int, str] = {}
        #: the account tree, and what stands for it
        self._tree: tuple[object, str] = (None, "")
        self._asked: Asked | None = None
        #: what it knew is of this very life: a recording is told again
        self.is_same_life = False
        #: it goes on from what it knew in a former life, and has made no good plan since
        self._is_remembered = False
        self._picture: Picture | None = None
        known = memory if isinstance(memory, Mapping) else {}
        self._memory = known if known.get("form") == FORM and known.get("told") == leader.told else None
        if self._memory is not None:
            self.has_plan = bool(known.get("has_plan"))
            self._rest_until_ns = int(known.get("rest_until_ns", 0))

    def to_json(self) -> Mapping[str, Any] | None:
        """Return what another Decider with the same leader goes on with; None: it begins anew."""
        if self._picture is None:
            return self._memory
        try:
            knows, self.memory_fault = kept(self.policy), ""
        except NoMemory as err:
            self.memory_fault = f"{err}; it begins anew with gandivactld"
            return None
        return {
            "form": FORM,
            "is_remembered": self._is_remembered,
            "told": self.leader.told,
            "nodes": [*map(list, self._picture.key)],
            "has_plan": self.has_plan,
            "rest_until_ns": self._rest_until_ns,
            "asked": self._asked.to_json() if self._asked is not None else None,
            "knows": base64.b64encode(knows).decode(),
        }

    def decide(self, at: Cycle, is_round: bool = False) -> None:
        """Ask the policy, and do what its plan asks for; in a round between two looks turns alone."""
        if self._picture is None or self._picture.key != key_of(at.state.nodes, at.settings.cells):
            is_first, self._picture = self._picture is None, Picture(at.state.nodes, at.settings.cells)
            self._asked = None
            remembered = self._remembered(self._picture) if is_first else None
            self.policy = remembered or self.leader.make()
        ready = placeable(at)
        pausing = [record for record in at.state.jobs.values() if is_pausing(at, record)]
        watch_packs(at)
        may_pack = at.settings.packing and getattr(self.policy, "fits_memory", False)
        view = self._picture.view(at, [*ready.values(), *pausing], may_pack)
        plan = self._answer(view, at.is_late)
        if plan is None:  # what held GPUs goes on, what is on the way arrives
            on = {job_id: job.gpus for job_id, job in view.jobs.items() if job_id in at.state.on and job.gpus}
            plan, self.turn_ns, self.ahead = Plan(on, view.now_ns + at.settings.retry_ns), at.now_ns, {}
        else:
            self.has_plan, self._notes, self._is_remembered = True, plan.notes, False
        self.wake_ns = plan.wake_ns or 0
        if is_round:
            take_turns(at, {job_id: self._picture.places(gpus) for job_id, gpus in plan.runs.items()})
        else:
            carry_out(at, self._picture, view, plan, ready)
        follow_promotions(at, plan.promoted, ready)

    def explain(self, job_id: int, now_ns: int) -> list[str]:
        """Return what the policy says of a job: its plan's note, and where the job stands."""
        noted = [self._notes[job_id]] if job_id in self._notes else []
        explain = getattr(self.policy, "explain", None)
        try:
            return noted + ([str(line) for line in explain(job_id, now_ns)] if explain is not None else [])
        except Exception:  # whatever a policy of others does: `why` has more to say
            return noted

    def of_users(self) -> dict[str, OfUser]:
        """Return what the policy tells of users; {}: nothing."""
        tell = getattr(self.policy, "of_users", None)
        try:
            return dict(tell()) if tell is not None else {}
        except Exception:  # whatever a policy of others does
            return {}

    def _answer(self, view: View, is_late: bool) -> Plan | None:
        """Return the plan that holds now; None: there is none."""
        if self._tree[0] is not view.associations:
            self._tree = (view.associations, digest(view.associations))
        seen = fingerprint(view, self._tree[1])
        if self._asked is not None and not self.asks_always and self._asked.holds(view, seen):
            return self._asked.plan
        plan = self._ask(view, is_late)
        if plan is None and self._is_remembered and not self.was_late:  # what it knew may be the fault
            self._is_remembered = False
            self._begin_anew()
            plan = self._ask(view, is_late=False)
        self._asked = asked(view, seen, plan) if plan is not None else None
        if plan is not None:
            self.turn_ns, self.ahead = view.now_ns, plan.ahead
        return plan

    def _remembered(self, picture: Picture) -> Policy | None:
        """Return the policy with what it knew in a former life; None: it knew nothing of these nodes."""
        memory, self._memory = self._memory, None
        if memory is None or json.dumps(memory["nodes"]) != json.dumps(picture.key):
            return None
        try:
            policy = recalled(base64.b64decode(memory["knows"]), self.policy, picture.cluster)
            self._asked = Asked.from_json(memory["asked"]) if memory["asked"] is not None else None
            self._is_remembered = not self.is_same_life or bool(memory["is_remembered"])
        except (NoMemory, KeyError, TypeError, ValueError) as err:
            self.memory_fault = f"{err}; it begins anew"
            return None
        return policy

    def _ask(self, view: View, is_late: bool) -> Plan | None:
        """Return the policy's plan; None: there is none that can be. `is_late`: it took too long then."""
        if view.now_ns < self._rest_until_ns:
            return None
        self.raised = None
        try:
            if is_late:
                raise TooSlow("took too long")
            plan = self.leader.ask(self.policy, view)
            is_plan = isinstance(plan, Plan)
            wrong = fault_of(view, plan) if is_plan else f"answers {type(plan).__name__}, not a plan"
        except TooSlow as err:
            plan, wrong = None, f"{err}; it begins anew {REST_NS // SECOND_NS} s after that"
            self.was_late, self._rest_until_ns = True, view.now_ns + REST_NS
            self._begin_anew()
        except Exception as err:  # whatever a policy of others does
            plan, wrong, self.raised = None, f"fails: {type(err).__name__}: {err}", err
        self.fault = f"policy {self.policy.name} {wrong}" if wrong else ""
        return None if wrong else plan

    def _begin_anew(self) -> None:
        try:
            self.policy = self.leader.make()
        except Exception as err:  # it is asked again as it is
            self.memory_fault = f"policy {self.policy.name} cannot be made again: {type(err).__name__}: {err}"
