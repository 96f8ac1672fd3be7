"""HiveD's own answers: both files of them, and the scenarios of its unit test (MIT, see tests/data/hived)."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "oracles"))

from hived_format import overridden, pod_of_case, spec_of  # noqa: E402
from hived_replay import Replay  # noqa: E402

from gandiva_slurm.policy.virtual_clusters.gangs import ALLOCATED, BEING_PREEMPTED, PREEMPTING  # noqa: E402

DATA = TESTS / "data" / "hived"
CASES = DATA / "hived_cases_dev.json"
FILE = json.loads(CASES.read_text(encoding="utf-8"))
PODS = {name: pod_of_case(name, pod) for name, pod in FILE["pods"].items()}
CHAIN_3, CHAIN_4 = "3-DGX2-V100-NODE", "4-DGX2-V100-NODE"
NODE_LEVEL = 5
LIMIT_S = 600.0


def replay_of(*overrides: str) -> Replay:
    return Replay(spec_of(overridden(FILE["config"], overrides)))


def ask(replay: Replay, name: str, nodes=None, phase: str = "preempting") -> tuple[str, str]:
    """Schedule a pod and take a bind: kind of answer and node."""
    result = replay.schedule(PODS[name], nodes, phase)
    if result.kind == "bind":
        replay.allocate(PODS[name], result)
    return result.kind, result.node


def states(replay: Replay) -> dict[str, str]:
    return {name: gang.state for name, gang in replay.cluster.gangs.items()}


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "cases", "answers"), [("hived_cases_dev.json", 5, 27), ("hived_random_oracle_dev.json", 11, 509)]
)
def test_oracle_replay_agrees(name, cases, answers, level):
    command = [sys.executable, str(TESTS / "oracles" / "hived.py"), str(DATA / name), "--level", str(level)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    verdict = json.loads(done.stdout)
    agreed = (verdict["cases_agreed"], verdict["answers_agreed"])
    assert (done.returncode, *agreed) == (0, cases, answers), verdict


def test_oracle_replay_notices_a_wrong_answer(tmp_path):
    wrong = copy.deepcopy(FILE)
    wrong["cases"][0]["steps"][6]["expect"] = {"kind": "bind", "node": "1.0.0.0", "leaf_cells": [0]}
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(wrong), encoding="utf-8")
    command = [sys.executable, str(TESTS / "oracles" / "hived.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert "pod7: wait instead of bind" in done.stdout


def test_only_suggested_nodes_are_used():
    replay = replay_of()
    assert ask(replay, "pod37", ["0.0.3.0"]) == ("bind", "0.0.3.0")
    assert ask(replay, "pod38", ["0.0.3.1"]) == ("bind", "0.0.3.1")
    replay.delete_pod("pod37")
    replay.delete_pod("pod38")
    others = [node for node in replay.cluster.nodes if node != "0.0.3.1"]
    assert ask(replay, "pod27", others)[0] == "wait"
    assert ask(replay, "pod27", list(replay.cluster.nodes))[0] == "bind"


def test_a_preemption_is_kept_only_while_its_nodes_are_good():
    replay = replay_of()
    everywhere = list(replay.cluster.nodes)
    others = [node for node in everywhere if node != "0.0.3.1"]
    ask(replay, "pod27", everywhere)
    assert ask(replay, "pod33", everywhere, "filtering")[0] == "preempt"
    assert "group24" not in states(replay), "only asked, nothing set aside"
    assert ask(replay, "pod33", others)[0] == "wait"
    assert ask(replay, "pod33", everywhere)[0] == "preempt"
    assert states(replay) == {"group18": BEING_PREEMPTED, "group24": PREEMPTING}
    assert ask(replay, "pod33", others)[0] == "wait"
    assert states(replay) == {"group18": ALLOCATED}


def test_binding_goes_around_nodes_and_a_demotion_that_did_not_help_is_undone():
    replay = replay_of("VC1.virtualCells[0].cellNumber = 0", "VC1.virtualCells[3].cellNumber = 3")
    assert ask(replay, "pod39", ["0.0.3.2", "0.0.3.3"]) == ("bind", "0.0.3.2")
    assert ask(replay, "pod40", ["0.0.4.3"]) == ("bind", "0.0.4.3")
    assert ask(replay, "pod41", ["0.0.3.2", "0.0.3.3", "0.0.4.3"])[0] == "wait"
    for name in ("group27", "group28"):
        gang = replay.cluster.gangs[name]
        assert (gang.state, gang.demoted_by) == (ALLOCATED, "")
        assert gang.virtual is not None


def test_preemptions_are_preempted_in_turn():
    replay = replay_of()
    assert ask(replay, "pod28") == ("bind", "0.0.3.0")
    kinds = [ask(replay, f"pod{number}")[0] for number in range(29, 34)]
    assert kinds == ["preempt", "wait", "preempt", "wait", "preempt"]
    assert states(replay) == {"group19": BEING_PREEMPTED, "group24": PREEMPTING}
    replay.delete_pod("pod28")
    assert ask(replay, "pod34") == ("bind", "0.0.3.0")
    assert "group24" not in states(replay)
    assert ask(replay, "pod35")[0] == "preempt"
    promised = replay.cluster.gangs["group26"].gpus()
    replay.delete_waiting(PODS["pod35"])
    assert states(replay) == {"group25": ALLOCATED}
    for gpu in promised:
        assert (gpu.state, gpu.priority) in (("free", -2), ("used", PODS["pod34"].request.priority))


def test_cells_are_doomed_when_healthy_ones_no_longer_suffice():
    replay = replay_of(f"VC2.virtualCells[2].cellType = '{CHAIN_3}.DGX2-V100-NODE'")
    cluster = replay.cluster

    def health() -> tuple[list[bool], list[bool]]:
        one, two = (cluster.vcs[vc].roots[CHAIN_3][NODE_LEVEL] for vc in ("VC1", "VC2"))
        return [root.is_healthy for root in one], [root.is_healthy for root in two]

    assert ask(replay, "pod42", ["0.0.2.0"])[0] == "bind"
    cluster.set_bad("0.0.2.1")
    assert health() == ([True, True], [True])
    assert ask(replay, "pod43", ["0.0.2.2"])[0] == "bind"
    assert health() == ([True, False], [True])
    replay.delete_pod("pod43")
    assert health() == ([True, True], [True])
    cluster.set_bad("0.0.2.2")
    assert health() == ([True, False], [False])
    cluster.set_healthy("0.0.2.2")
    assert health() == ([True, True], [True])
    cluster.set_bad("0.0.2.0")
    cluster.set_bad("0.0.2.2")
    replay.delete_pod("pod42")
    assert health() == ([False, False], [False])


def test_higher_cells_are_split_around_bad_nodes_only_while_nobody_is_owed_them():
    pair = f"{CHAIN_4}.2-DGX2-V100-NODE"
    replay = replay_of(
        "VC1.virtualCells[0].cellNumber = 4",
        "VC1.virtualCells[2].cellNumber = 0",
        "VC1.virtualCells[3].cellNumber = 0",
        f"VC2.virtualCells[2] = {{cellType: '{pair}', cellNumber: 1}}",
    )
    nodes = ["0.0.3.2", "0.0.3.3", "0.0.4.2", "0.0.4.3"]
    assert ask(replay, "pod44", nodes) == ("bind", "0.0.3.2")
    replay.cluster.set_bad("0.0.3.3")
    assert ask(replay, "pod45", nodes) == ("bind", "0.0.4.2")
    replay.cluster.set_bad("0.0.4.3")
    assert ask(replay, "pod46", [*nodes, "0.0.4.0", "0.0.4.1"])[0] == "wait"


def test_gangs_outlive_a_reconfiguration_and_run_by_chance_where_their_cells_are_gone():
    replay = replay_of()
    running = [step["pod"] for step in FILE["cases"][0]["steps"]]
    for name in running:
        ask(replay, name)
    changed = copy.deepcopy(FILE["config"])
    physical = changed["physicalCluster"]
    physical["cellTypes"]["DGX2-V100-NODE"] = {
        "childCellType": "DGX2-V100",
        "childCellNumber": 16,
        "isNodeLevel": True,
    }
    physical["physicalCells"][7]["cellChildren"][0]["cellChildren"][0]["cellAddress"] = "0.0.3.100"
    changed["virtualClusters"]["VC2"]["virtualCells"][0]["cellNumber"] = 1
    tree = physical["physicalCells"][8]
    nodes = [node for pair in tree["cellChildren"] for node in pair["cellChildren"]]
    physical["physicalCells"] += [{**node, "cellType": "DGX2-V100-NODE"} for node in copy.deepcopy(nodes)]
    for number, node in enumerate(nodes):
        node["cellAddress"] = f"0.0.4.10{number}"

    cluster = replay.cluster.reconfigured(spec_of(changed))

    demoted = {name for name, gang in cluster.gangs.items() if gang.demoted_by}
    assert demoted == {PODS[name].request.gang for name in ("pod8", "pod20", "pod24")}
    assert len(cluster.gangs["group5"].gpus()) == 16, "one of its nodes is gone"
    assert "group11" not in cluster.gangs, "it only waited"
    for name in list(cluster.gangs):
        cluster.delete(name)
    assert all(not cell.used for chain in cluster.chains.values() for cell in chain.cells[chain.top])
