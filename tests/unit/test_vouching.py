"""What gandivactld tells nodes of its looks at Slurm, and what it holds up when it cannot look there."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from gandiva_slurm.config import Config
from gandiva_slurm.controller import nodes as links
from gandiva_slurm.controller.later import Later
from gandiva_slurm.controller.nodes import LinkSettings, Nodes, PlanBody
from gandiva_slurm.controller.peers import MOST_PEERS, peers_of
from gandiva_slurm.model.action import Start
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.wire.messages import NodePlan, NodeReport, decode_plan, encode


def test_each_node_asks_others_from_all_over_the_cluster() -> None:
    names = [f"n{number:03}" for number in range(200)]
    assert peers_of("n1", ["n1"]) == ()
    assert peers_of("n2", ["n1", "n2", "n3"]) == ("n3", "n1")
    for name in names:
        peers = peers_of(name, names)
        assert len(set(peers)) == MOST_PEERS and name not in peers
        places = sorted((int(peer[1:]) - int(name[1:])) % 200 for peer in peers)
        assert max(b - a for a, b in itertools.pairwise(places)) <= 7


class Wire:
    """Two nodes that answer; what they were sent last."""

    def __init__(self) -> None:
        self.plans: dict[str, NodePlan] = {}
        self.mono_ns = 1000

    async def __call__(self, name: str, path: str, payload: bytes, timeout_s: float) -> bytes:
        if path == links.PLAN_PATH:
            self.plans[name] = decode_plan(payload)
        self.mono_ns += 1
        return encode(NodeReport(name, "b", 0, 1, 0, 1, (), (), (), mono_ns=self.mono_ns))


def a_config(tmp_path: Path, **more: Any) -> Config:
    controller = {"host": "c", "state_dir": str(tmp_path)}
    raw = {"cluster": "mini", "partitions": ["gandiva"], "controller": controller, "isolation": 60}
    return Config.model_validate(raw | more)


async def test_a_plan_is_as_old_as_the_report_before_the_look(tmp_path: Path, monkeypatch: Any) -> None:
    wire = Wire()
    nodes = Nodes(wire, LinkSettings(1, 10**9, 60.0, 60.0))
    nodes.isolate(True)
    nodes.follow([])
    for name in ("n1", "n2"):
        nodes._links[name] = link = links.NodeLink(name, wire, nodes.settings)
        link.on_blind = nodes._note_blind
    link = nodes["n1"]
    await link._exchange()
    assert link.report is not None
    before_ns = link.report.mono_ns
    nodes.mark()
    await link._exchange()  # it reports again while the look is under way
    link.set_plan(PlanBody(1))
    nodes.vouch(["n1"], {"n1"}, a_config(tmp_path))
    await link._exchange()
    plan = wire.plans["n1"]
    assert (plan.echo_ns, plan.is_heard, plan.contact_ns) == (before_ns, True, 0)
    assert plan.peers == (("n2", "n2:7322"),) and plan.are_all_peers
    assert nodes.may_requeued_start
    late_s = time.monotonic() + links.BLIND_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: late_s)
    reported_ns = link.report.mono_ns
    await link._exchange()
    assert wire.plans["n1"].contact_ns == reported_ns and wire.plans["n1"].echo_ns == before_ns
    assert not nodes.may_requeued_start


async def test_where_nothing_is_frozen_nothing_waits(tmp_path: Path) -> None:
    wire = Wire()
    nodes = Nodes(wire, LinkSettings(1, 10**9, 60.0, 60.0))
    nodes._links["n1"] = link = links.NodeLink("n1", wire, nodes.settings)
    await link._exchange()
    link.set_plan(PlanBody(1))
    nodes.mark()
    nodes.vouch(["n1"], {"n1"}, a_config(tmp_path, isolation="never"))
    link._vouched_s = float("-inf")
    await link._exchange()
    assert (wire.plans["n1"].contact_ns, wire.plans["n1"].peers) == (0, ())
    assert nodes.may_requeued_start


def test_starts_of_requeued_jobs_are_held() -> None:
    later = Later([])
    new, again = (Start(f"start:{n}", JobKey(n, n), (("n1", (0,)),), "", "") for n in (0, 1))
    assert later.hold_requeued([new, again]) == [new]
    assert later._actions == [again]
