"""HiveD's configuration and pods, as its files write them, in the words of `policy.virtual_clusters`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from gandiva_slurm.policy.virtual_clusters.gangs import CellRequest
from gandiva_slurm.policy.virtual_clusters.site import CellGrant, CellKind, CellSpec, CellsSpec, VcSpec

PLACE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\[\d+\]|'[^']+'|\"[^\"]+\"|[A-Za-z0-9-]+)\.?")


@dataclass(frozen=True)
class Pod:
    """One pod of an affinity group."""

    name: str
    size: int
    request: CellRequest
    ignores_suggested: bool = True


def spec_of(config: dict[str, Any]) -> CellsSpec:
    """Translate a configuration; chains of a GPU type in descending order of their names."""
    physical = config["physicalCluster"]
    kinds = {
        name: CellKind(kind["childCellType"], kind["childCellNumber"], kind.get("isNodeLevel", False))
        for name, kind in physical["cellTypes"].items()
    }
    cells = [_cell(cell) for cell in physical["physicalCells"]]
    cells.sort(key=lambda cell: cell.kind, reverse=True)
    return CellsSpec(kinds, cells, {name: _vc(vc) for name, vc in config["virtualClusters"].items()})


def _cell(cell: dict[str, Any]) -> CellSpec:
    children = tuple(_cell(child) for child in cell.get("cellChildren") or ())
    name = str(cell.get("cellAddress", ""))
    return CellSpec(cell.get("cellType", ""), name, cell.get("pinnedCellId", ""), children)


def _vc(vc: dict[str, Any]) -> VcSpec:
    grants = []
    for owned in vc.get("virtualCells") or ():
        path = owned["cellType"].split(".")
        grants.append(CellGrant(path[0], path[-1], owned["cellNumber"]))
    return VcSpec(tuple(grants), tuple(pin["pinnedCellId"] for pin in vc.get("pinnedCells") or ()))


def overridden(config: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return the configuration with `PATH = VALUE` lines applied; a path may begin with a VC's name."""
    changed = copy.deepcopy(config)
    for line in overrides:
        path, _, value = line.partition("=")
        keys = [_key(match) for match in PLACE.findall(path.strip())]
        place: Any = changed
        if keys[0] in changed["virtualClusters"]:
            place = changed["virtualClusters"]
        elif keys[0] in changed["physicalCluster"]:
            place = changed["physicalCluster"]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = yaml.safe_load(value.strip())
    return changed


def _key(text: str) -> str | int:
    return int(text[1:-1]) if text.startswith("[") else text.strip("'\"")


def pod_of_case(name: str, pod: dict[str, Any]) -> Pod:
    """A pod of the cases file."""
    members = tuple(m["leaf_cells_per_pod"] for m in pod["group_members"] for _ in range(m["pods"]))
    request = CellRequest(
        gang=pod["group"],
        vc=pod["vc"],
        members=members,
        priority=pod["priority"],
        gpu_type=pod["leaf_cell_type"],
        pin=pod["pinned_cell"],
        can_demote=pod["lazy_preemption"],
    )
    return Pod(name, pod["leaf_cell_number"], request, pod["ignore_suggested_nodes"])


def pod_of_step(step: dict[str, Any]) -> Pod:
    """A pod of a step of a random sequence."""
    request = CellRequest(
        gang=step["group"],
        vc=step["vc"],
        members=(step["leaf_num"],) * step["pods_in_group"],
        priority=step["priority"],
        gpu_type=step["leaf_type"],
    )
    return Pod(step["pod"], step["leaf_num"], request)
