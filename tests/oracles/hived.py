"""Replay HiveD's own cases, or random sequences that HiveD answered, on our cells.

    python tests/oracles/hived.py FILE [--level 1|2|3]

prints one JSON line and ends with 0 if all answers agree. Level 1: the kind of answer (bind, wait, preempt,
user error). Level 2: also the same occupation up to relabelling of cells that are alike, the same level of
the lowest common ancestor, and no other victims. Level 3: the same node and GPU numbers. Sequences that HiveD
itself answered differently from run to run (`"stable": "kind"`) are compared at level 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hived_cases import run_cases
from hived_format import pod_of_step, spec_of
from hived_replay import Occupation, Replay, Result

from gandiva_slurm.policy.virtual_clusters.gangs import BIND, PREEMPT

Verdict = dict[str, Any]


def differs(replay: Replay, ours: Result, theirs: dict[str, Any], level: int) -> str:
    """Say how an answer differs at this level; empty: it agrees. Both were not yet taken."""
    if ours.kind != theirs["kind"]:
        return f"{ours.kind} instead of {theirs['kind']} ({ours.reason})"
    if level == 1:
        return ""
    if ours.kind == PREEMPT:
        victims = theirs.get("victim_pods") or ()
        return "" if set(victims) <= set(ours.victims) else f"victims {ours.victims} instead of {victims}"
    if ours.kind == BIND and "node" in theirs:
        if level == 3 and (ours.node, list(ours.gpus)) != (theirs["node"], theirs["leaf_cells"]):
            return f"{ours.node} {ours.gpus} instead of {theirs['node']} {theirs['leaf_cells']}"
        near = replay.level_of(ours.chain, ours.node, ours.gpus)
        if near != replay.level_of(ours.chain, theirs["node"], theirs["leaf_cells"]):
            return f"GPUs {ours.gpus} are not as near as {theirs['leaf_cells']}"
    return ""


def run_sequence(sequence: dict[str, Any], config: dict[str, Any], level: int) -> Verdict:
    """Replay one random sequence."""
    level = level if sequence["stable"] == "exact" else 1
    replay, theirs_occupied = Replay(spec_of(config)), Occupation()
    asked, agreed, first = 0, 0, ""
    for number, step in enumerate(sequence["steps"]):
        if step["op"] != "schedule":
            theirs_occupied = _change(replay, step, theirs_occupied)
            continue
        pod, theirs = pod_of_step(step), step["result"]
        ours = replay.schedule(pod)
        difference = differs(replay, ours, theirs, level)
        if ours.kind == BIND:
            replay.allocate(pod, ours)
        if theirs["kind"] == BIND:
            for gpu in theirs["leaf_cells"]:
                theirs_occupied[theirs["cell_chain"], theirs["node"], gpu] = step["group"]
        if level > 1 and not difference and replay.shape(replay.occupied) != replay.shape(theirs_occupied):
            difference = "the occupation differs by more than names"
        asked += 1
        agreed += not difference
        first = first or (difference and f"step {number}, {step['pod']}: {difference}")
    return {"id": sequence["id"], "level": level, "asked": asked, "agreed": agreed, "first": first}


def _change(replay: Replay, step: dict[str, Any], theirs: Occupation) -> Occupation:
    if step["op"] == "set_bad_node":
        replay.cluster.set_bad(step["node"])
    elif step["op"] == "set_healthy_node":
        replay.cluster.set_healthy(step["node"])
    elif step["op"] in ("delete_group", "evict_group"):
        replay.delete_group(step["group"])
        return Occupation({place: who for place, who in theirs.items() if who != step["group"]})
    else:
        raise ValueError(f"unknown step {step['op']}")
    return theirs


def read(path: Path) -> dict[str, Any]:
    """Read a file; ValueError when it is of neither format."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not {"sequences", "cases"} & data.keys():
        raise ValueError("neither cases nor sequences in it")
    return data


def run_file(name: str, data: dict[str, Any], level: int) -> Verdict:
    """Replay a file of either format."""
    if "sequences" in data:
        parts = [run_sequence(s, data["configs"][s["config"]], level) for s in data["sequences"]]
    else:
        parts = run_cases(data, level, differs)
    return {
        "file": name,
        "level": level,
        "cases": len(parts),
        "cases_agreed": sum(part["asked"] == part["agreed"] for part in parts),
        "answers": sum(part["asked"] for part in parts),
        "answers_agreed": sum(part["agreed"] for part in parts),
        "at_level_1_only": [part["id"] for part in parts if part["level"] < level],
        "differences": [part for part in parts if part["first"]],
    }


def main() -> int:
    """Parse the command line; print the verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=1)
    options = parser.parse_args()
    try:
        data = read(options.file)
    except (OSError, ValueError) as err:
        print(json.dumps({"file": str(options.file), "error": f"it cannot be replayed: {err}"}))
        return 1
    verdict = run_file(options.file.name, data, options.level)
    print(json.dumps(verdict))
    return 0 if verdict["cases"] == verdict["cases_agreed"] else 1


if __name__ == "__main__":
    sys.exit(main())
