"""The cases file: steps on named pods, each with what HiveD's own test expects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hived_format import Pod, overridden, pod_of_case, spec_of
from hived_replay import USER_ERROR, Occupation, Replay, Result

from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.policy.virtual_clusters.gangs import BIND, PREEMPT

Differs = Callable[[Replay, Result, dict[str, Any], int], str]
FAILS_TO_BUILD = "construction fails"
KIND = re.compile(r"bind|wait|preempt|user_error")
NODE = re.compile(r"[\w.-]+")


class Case:
    """One case under way: the cluster, the pods in the order they came, what HiveD holds."""

    def __init__(self, config: dict[str, Any], pods: dict[str, Pod], level: int, differs: Differs) -> None:
        self.config, self.pods, self.level, self.differs = config, pods, level, differs
        self.replay = Replay(spec_of(config))
        self.order: list[str] = []
        self.waiting: list[str] = []
        self.theirs = Occupation()

    def step(self, step: dict[str, Any]) -> list[str]:
        """Do a step; one entry for each answer, empty where it agrees."""
        doer = getattr(self, f"do_{step['op']}", None)
        return doer(step) if doer else [f"unknown step {step['op']}"]

    def do_schedule(self, step: dict[str, Any]) -> list[str]:
        """Ask for a pod and compare."""
        pod, expect = self.pods[step["pod"]], dict(step.get("expect") or {})
        nodes = self._nodes(step.get("suggested_nodes", "all"))
        ours = self.replay.schedule(pod, nodes, step.get("phase", "preempting"))
        if ours.kind in _kinds(expect.get("kind", "")):
            expect["kind"] = ours.kind
        allowed = expect.pop("victims_subset_of", None)
        difference = self.differs(self.replay, ours, expect, self.level) if "kind" in expect else ""
        if not difference and allowed and self.level > 1:
            victims = {name for name, (p, _) in self.replay.pods.items() if p.request.gang in ours.victims}
            difference = "" if victims and victims <= set(allowed) else f"victims {sorted(victims)}"
        if ours.kind == BIND and "allocate" in step.get("then", ""):
            self._allocate(pod, ours, expect)
            if not difference and self.level > 1 and self._shapes_differ():
                difference = "the occupation differs by more than names"
        if ours.kind == PREEMPT:
            self.waiting.append(pod.name)
        difference = difference or self._groups(expect)
        return [difference and f"{pod.name}: {difference}"]

    def _allocate(self, pod: Pod, ours: Result, expect: dict[str, Any]) -> None:
        self.replay.allocate(pod, ours)
        self.order.append(pod.name)
        node, gpus = expect.get("node", ours.node), expect.get("leaf_cells", ours.gpus)
        for gpu in gpus:
            self.theirs[ours.chain, node, gpu] = pod.request.gang

    def _shapes_differ(self) -> bool:
        return bool(self.replay.shape(self.replay.occupied) != self.replay.shape(self.theirs))

    def do_schedule_expect_user_error(self, step: dict[str, Any]) -> list[str]:
        """One of these pods must be refused as wrong, and not wait."""
        kinds = []
        for name in step["pods"]:
            result = self.replay.schedule(self.pods[name])
            kinds.append(result.kind)
            if result.kind == BIND:
                self._allocate(self.pods[name], result, {})
        return ["" if USER_ERROR in kinds else f"{step['pods']}: {kinds}"]

    def do_delete_all_reverse(self, step: dict[str, Any]) -> list[str]:
        """End all pods, the last first, then withdraw those that wait."""
        for name in reversed(self.order):
            self._end(name)
        for name in self.waiting:
            self.replay.delete_waiting(self.pods[name])
        self.order, self.waiting = [], []
        return [self._groups(step.get("expect") or {})]

    def do_delete(self, step: dict[str, Any]) -> list[str]:
        """End pods that run, or withdraw pods that wait."""
        for name in step.get("pods") or [step["pod"]]:
            if name in self.order:
                self._end(name)
                self.order.remove(name)
            else:
                self.replay.delete_waiting(self.pods[name])
        return [self._groups(step["expect"])] if step.get("expect") else []

    do_delete_pod = do_delete_pods = do_delete_allocated = do_delete_unallocated = do_delete
    do_delete_allocated_pod = do_delete_unallocated_pod = do_delete

    def do_set_bad_node(self, step: dict[str, Any]) -> list[str]:
        """Nodes fail."""
        for node in step.get("nodes") or [step["node"]]:
            self.replay.cluster.set_bad(node)
        return [self._groups(step["expect"])] if step.get("expect") else []

    def do_set_healthy_node(self, step: dict[str, Any]) -> list[str]:
        """Nodes are well again."""
        for node in step.get("nodes") or [step["node"]]:
            self.replay.cluster.set_healthy(node)
        return [self._groups(step["expect"])] if step.get("expect") else []

    def do_reconfigure(self, step: dict[str, Any]) -> list[str]:
        """The configuration changes under the groups that run."""
        spec = spec_of(overridden(self.config, step["config_overrides"]))
        self.replay.cluster = self.replay.cluster.reconfigured(spec)
        return [self._groups(step["expect"])] if step.get("expect") else []

    def _nodes(self, told: Any) -> list[str] | None:
        """Suggested nodes: a list, "all", or all but those named in a text or an object."""
        if told == "all" or told is None:
            return None
        if isinstance(told, list):
            return told
        return [node for node in self.replay.cluster.nodes if node not in NODE.findall(str(told))]

    def _end(self, name: str) -> None:
        if name in self.replay.pods:
            pod = self.replay.pods[name][0]
            self.replay.delete_pod(name)
            if pod.request.gang not in self.replay.cluster.gangs:
                self.theirs = {at: who for at, who in self.theirs.items() if who != pod.request.gang}

    def _groups(self, expect: dict[str, Any]) -> str:
        there = self.replay.cluster.gangs
        left = [group for group in expect.get("groups_gone", ()) if group in there]
        lost = [group for group in expect.get("groups_exist", ()) if group not in there]
        kept = [group for group in expect.get("groups_demoted", ()) if not there[group].demoted_by]
        wrong = [
            group
            for group, state in expect.get("group_states", {}).items()
            if group not in there or there[group].state != state
        ]
        if left or lost or kept or wrong:
            return f"still there: {left}, gone: {lost}, not demoted: {kept}, in another state: {wrong}"
        return ""


def _kinds(told: Any) -> set[str]:
    """Kinds of answer that an expectation allows: one, several, or all but those it names."""
    named = set(KIND.findall(str(told)))
    is_negated = str(told).startswith(("not", "no ", "no_"))
    return {"bind", "wait", "preempt", USER_ERROR} - named if is_negated else named


def run_cases(data: dict[str, Any], level: int, differs: Differs) -> list[dict[str, Any]]:
    """Replay all cases; one whose note begins with "Continue" goes on where the former stopped."""
    pods = {name: pod_of_case(name, pod) for name, pod in data["pods"].items()}
    parts, case = [], None
    for entry in data["cases"]:
        config = overridden(data["config"], entry.get("config_overrides") or ())
        if isinstance(entry.get("expect"), str) and entry["expect"].startswith(FAILS_TO_BUILD):
            answers = [_must_not_build(config)]
        else:
            if case is None or not entry.get("note", "").startswith("Continue"):
                case = Case(config, pods, level, differs)
            answers = [answer for step in entry.get("steps", ()) for answer in case.step(step)]
        first = next((answer for answer in answers if answer), "")
        agreed = sum(not answer for answer in answers)
        part = {"id": entry["id"], "level": level, "asked": len(answers), "agreed": agreed, "first": first}
        parts.append(part)
    return parts


def _must_not_build(config: dict[str, Any]) -> str:
    try:
        Replay(spec_of(config))
    except ConfigError:
        return ""
    return "the configuration was accepted"
