"""A cluster in cells, asked pod by pod as Kubernetes asks HiveD; occupations compared but for names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hived_format import Pod

from gandiva_slurm.policy.placement.topology import common_level
from gandiva_slurm.policy.virtual_clusters.bind import SafetyBroken
from gandiva_slurm.policy.virtual_clusters.cells import PhysicalCell
from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster
from gandiva_slurm.policy.virtual_clusters.gangs import BIND, PREEMPTING, Answer, Deed, RequestError
from gandiva_slurm.policy.virtual_clusters.site import CellsSpec

#: (chain, node, GPU) → who is there
Occupation = dict[tuple[str, str, int], str]
USER_ERROR, BROKEN = "user_error", "broken"


@dataclass
class Result:
    """What one pod was answered."""

    kind: str
    chain: str = ""
    node: str = ""
    gpus: tuple[int, ...] = ()
    victims: tuple[str, ...] = ()
    reason: str = ""
    deed: Deed | None = None
    slot: int = 0


@dataclass
class Slots:
    """Which of a group's members have their pod, and the pods that wait for a preemption."""

    pods: dict[int, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)


class Replay:
    """One cluster and the pods on it."""

    def __init__(self, spec: CellsSpec) -> None:
        self.cluster = CellCluster(spec)
        self.slots: dict[str, Slots] = {}
        self.pods: dict[str, tuple[Pod, Result]] = {}
        self.occupied: Occupation = {}

    def schedule(
        self, pod: Pod, suggested: Collection[str] | None = None, phase: str = "preempting"
    ) -> Result:
        """Ask for one pod; user errors are a kind of answer."""
        try:
            if pod.size not in pod.request.members:
                raise RequestError(f"{pod.name} asks {pod.size} GPUs, its group has {pod.request.members}")
            nodes = None if pod.ignores_suggested or suggested is None else set(suggested)
            answer = self.cluster.ask(pod.request, nodes, phase == "preempting")
            return self._result(pod, answer)
        except RequestError as error:
            return Result(USER_ERROR, reason=str(error))
        except SafetyBroken as error:
            return Result(BROKEN, reason=str(error))

    def _result(self, pod: Pod, answer: Answer) -> Result:
        group = pod.request.gang
        if group in self.cluster.gangs:
            slots = self.slots.setdefault(group, Slots())
            if self.cluster.gangs[group].state == PREEMPTING:
                slots.waiting.add(pod.name)
        for gone in [name for name in self.slots if name not in self.cluster.gangs]:
            del self.slots[gone]
        if answer.kind != BIND or answer.deed is None:
            return Result(answer.kind, victims=answer.victims, reason=answer.reason)
        taken = self.slots[group].pods if group in self.slots else {}
        sizes = pod.request.sizes
        free = [n for n, size in enumerate(sizes) if size == pod.size and n not in taken]
        if not free:
            raise RequestError(f"{pod.name}: all {pod.size}-GPU pods of {group} are there already")
        member = answer.deed.members[free[0]]
        return Result(
            BIND, answer.deed.chain, member.node, member.gpus, deed=answer.deed, slot=free[0]
        )

    def allocate(self, pod: Pod, result: Result) -> None:
        """Take a BIND."""
        assert result.deed is not None
        self.cluster.allocate(pod.request, result.deed)
        slots = self.slots.setdefault(pod.request.gang, Slots())
        slots.pods[result.slot] = pod.name
        slots.waiting.clear()
        self.pods[pod.name] = (pod, result)
        for gpu in result.gpus:
            self.occupied[result.chain, result.node, gpu] = pod.request.gang

    def delete_pod(self, name: str) -> None:
        """End a pod that runs; its group ends with its last one."""
        pod, result = self.pods.pop(name)
        slots = self.slots.get(pod.request.gang, Slots())
        slots.pods.pop(result.slot, None)
        if not slots.pods and pod.request.gang in self.cluster.gangs:
            self.delete_group(pod.request.gang)

    def delete_waiting(self, pod: Pod) -> None:
        """Withdraw a pod that waits; the preemption ends with its last one."""
        group = pod.request.gang
        gang = self.cluster.gangs.get(group)
        if gang is not None and gang.state == PREEMPTING:
            waiting = self.slots.setdefault(group, Slots()).waiting
            waiting.discard(pod.name)
            if not waiting:
                self.delete_group(group)

    def delete_group(self, group: str) -> None:
        """End a group with all its pods."""
        if group in self.cluster.gangs:
            self.cluster.delete(group)
        self.slots.pop(group, None)
        self.pods = {name: entry for name, entry in self.pods.items() if entry[0].request.gang != group}
        self.occupied = {place: who for place, who in self.occupied.items() if who != group}

    def level_of(self, chain: str, node: str, gpus: Collection[int]) -> int | None:
        """Level of the lowest common ancestor of these GPUs."""
        cells = [self.cluster.find_gpu(chain, node, gpu) for gpu in gpus]
        if None in cells:
            return None
        return common_level([cell for cell in cells if cell], lambda cell: [id(up) for up in cell.line()][1:])

    def shape(self, occupied: Mapping[tuple[str, str, int], str]) -> Any:
        """Who is where, with cells that are alike told apart no more."""
        tops = {name: chain.cells[chain.top] for name, chain in self.cluster.chains.items()}
        return {
            name: sorted((_shape(cell, occupied) for cell in cells), key=repr) for name, cells in tops.items()
        }


def _shape(cell: PhysicalCell, occupied: Mapping[tuple[str, str, int], str]) -> Any:
    if not cell.children:
        return (occupied.get((cell.chain, cell.nodes[0], cell.index), ""), cell.is_healthy, cell.pin)
    return (cell.pin, sorted((_shape(child, occupied) for child in cell.children), key=repr))
