"""Safety of cells: what a VC could do alone on the whole cluster, it can always do beside the others."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from gandiva_slurm.policy.virtual_clusters.cells import FREE, LEAF
from gandiva_slurm.policy.virtual_clusters.cluster import CellCluster
from gandiva_slurm.policy.virtual_clusters.gangs import (
    BEING_PREEMPTED,
    BIND,
    PREEMPT,
    PREEMPTING,
    CellRequest,
)
from gandiva_slurm.policy.virtual_clusters.site import CellGrant, CellKind, CellSpec, CellsSpec, VcSpec
from gandiva_slurm.policy.virtual_clusters.stock import spare_cells
from tests.slow import long_form

#: How many, and how often at least the best packing by quotas alone must have failed among them.
TRACES = [(1_000, 0), long_form(10_000, 1, why="24 s; a thousand in make test")]
EVENTS = 15


def node(number: int) -> CellSpec:
    return CellSpec(name=f"n{number}")


SPEC = CellsSpec(
    {"switch": CellKind("v100", 2), "node": CellKind("switch", 2, is_node=True), "rack": CellKind("node", 4)},
    [CellSpec("rack", children=tuple(node(number) for number in range(4)))],
    {
        "one": VcSpec((CellGrant("rack", "node", 2),)),
        "two": VcSpec((CellGrant("rack", "node", 1),)),
        "three": VcSpec((CellGrant("rack", "switch", 1), CellGrant("rack", "v100", 2))),
    },
)
MEMBERS = ((1,), (1,), (1,), (2,), (4,), (4,), (1, 1), (4, 4))


@dataclass
class QuotaOnly:
    """The same quotas counted in GPUs, not in cells. Nodes: the fullest that fits, or the emptiest."""

    packs: bool
    free: dict[str, int] = field(default_factory=lambda: {f"n{number}": 4 for number in range(4)})
    held: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    def binds(self, request: CellRequest) -> bool:
        free, places = dict(self.free), []
        for size in sorted(request.members, reverse=True):
            fitting = sorted((left, node) for node, left in free.items() if left >= size)
            if not fitting:
                return False
            node = fitting[0 if self.packs else -1][1]
            free[node] -= size
            places.append((node, size))
        self.free = free
        self.held[request.gang] = places
        return True

    def delete(self, gang: str) -> None:
        for node, size in self.held.pop(gang, ()):
            self.free[node] += size


class Trace:
    """One random life of the cluster, and of each VC alone on one like it."""

    def __init__(self, shared: CellCluster, alone: dict[str, CellCluster], seed: int) -> None:
        self.shared, self.alone = shared, alone
        self.random = random.Random(seed)
        self.quotas = (QuotaOnly(packs=True), QuotaOnly(packs=False))
        self.requests: dict[str, CellRequest] = {}
        self.bound = self.lost = 0
        self.quotas_lost = [0, 0]

    def run(self) -> None:
        for number in range(EVENTS):
            if self.requests and self.random.random() < 0.35:
                self.end(self.random.choice(list(self.requests)))
            else:
                self.begin(number)
        for name in list(self.requests):
            self.end(name)

    def begin(self, number: int) -> None:
        vc = self.random.choice(("one", "one", "two", "three"))
        priority = -1 if self.random.random() < 0.25 else 0
        request = CellRequest(f"g{number}", vc, self.random.choice(MEMBERS), priority)
        if priority < 0:
            self.take(self.shared, request)
            return
        may = self.take(self.alone[vc], request)
        does = self.take(self.shared, request)
        self.bound += may and does
        self.lost += may and not does
        assert may or not does, "beside others it can do no more than alone"
        for index, quota in enumerate(self.quotas):
            self.quotas_lost[index] += may and not quota.binds(request)

    def take(self, cluster: CellCluster, request: CellRequest) -> bool:
        answer = cluster.ask(request)
        if answer.kind == PREEMPT:
            for victim in answer.victims:
                assert cluster.gangs[victim].request.priority < 0, "only opportunistic gangs are put out"
                cluster.delete(victim)
                self.requests.pop(victim)
            answer = cluster.ask(request)
        if answer.kind != BIND or answer.deed is None:
            return False
        cluster.allocate(request, answer.deed)
        self.requests[request.gang] = request
        return True

    def end(self, name: str) -> None:
        request = self.requests.pop(name)
        for cluster in (self.shared, self.alone[request.vc]):
            if name in cluster.gangs:
                cluster.delete(name)
        for quota in self.quotas:
            quota.delete(name)


@pytest.mark.parametrize(("traces", "least_packed_lost"), TRACES)
def test_legal_traces_are_bound_where_quotas_alone_fail(traces, least_packed_lost):
    shared, alone = CellCluster(SPEC), {vc: CellCluster(SPEC) for vc in SPEC.vcs}
    bound = lost = packed_lost = spread_lost = 0
    for seed in range(traces):
        trace = Trace(shared, alone, seed)
        trace.run()
        bound, lost = bound + trace.bound, lost + trace.lost
        packed_lost += trace.quotas_lost[0] > 0
        spread_lost += trace.quotas_lost[1] > 0
    assert lost == 0
    assert bound > 4 * traces
    assert spread_lost > traces // 20, f"{spread_lost} failures of quotas alone: too easy to prove anything"
    assert packed_lost >= least_packed_lost, "even the best packing fails now and then"
    print(f"{bound} binds, 0 failures; quotas alone: {spread_lost} traces spread, {packed_lost} packed")


def check(cluster: CellCluster) -> None:
    """What holds after every call, whatever it was."""
    for name, chain in cluster.chains.items():
        ledger = cluster.ledgers[name]
        spare = spare_cells(ledger.stock.free, ledger.all_owed(), chain.widths)
        assert min(spare) >= 0, "a promise is broken"
        for level in range(LEAF, chain.top + 1):
            cells = chain.cells[level]
            loose = [cell for cell in cells if cell.is_loose]
            assert ledger.left[level] == len(loose)
            assert {id(c) for c in ledger.bad[level]} == {id(c) for c in loose if not c.is_healthy}
            for cell in cells:
                assert cell.virtual is None or cell.virtual.physical is cell
                assert cell.is_healthy == cluster.bad_nodes.isdisjoint(cell.nodes)
                assert sum(cell.used.values()) == sum(gpu.priority > FREE for gpu in cell.leaves())
        for gpu in chain.cells[LEAF]:
            free = [cell for cell in gpu.line() if cell in ledger.stock.free[cell.level]]
            assert len(free) == gpu.is_loose
            assert (gpu.gang is None and gpu.heir is None) == (gpu.priority == FREE)
    for gang in cluster.gangs.values():
        assert (gang.state == BEING_PREEMPTED) == (
            gang.state != PREEMPTING and any(gpu.heir for gpu in gang.gpus())
        )
        for gpu, own in gang.pairs():
            assert gang in (gpu.gang, gpu.heir)
            is_its_own = gpu.heir in (None, gang)
            assert own is None or not is_its_own or gpu.virtual is own


def rack(first: int) -> CellSpec:
    pairs = [CellSpec(children=(node(number), node(number + 1))) for number in (first, first + 2)]
    return CellSpec("rack", children=tuple(pairs))


RACKS = CellsSpec(
    {
        "switch": CellKind("v100", 2),
        "node": CellKind("switch", 2, is_node=True),
        "pair": CellKind("node", 2),
        "rack": CellKind("pair", 2),
    },
    [rack(0), rack(4)],
    {
        "one": VcSpec((CellGrant("rack", "pair", 2),)),
        "two": VcSpec((CellGrant("rack", "node", 2),)),
        "three": VcSpec((CellGrant("rack", "switch", 4),)),
    },
)


@pytest.mark.parametrize("seed", range(60))
def test_invariants_hold_through_failures_preemptions_and_demotions(seed):
    choose = random.Random(seed)
    cluster = CellCluster(RACKS)
    for number in range(50):
        disturb(cluster, choose, number)
        check(cluster)
    for name in list(cluster.gangs):
        cluster.delete(name)
        check(cluster)
    for node_name in list(cluster.bad_nodes):
        cluster.set_healthy(node_name)
        check(cluster)
    for ledger in cluster.ledgers.values():
        assert len(ledger.stock.free[-1]) == 2, "all buddies have merged again"


def disturb(cluster: CellCluster, choose: random.Random, number: int) -> None:
    """Do something at random; answers on bad GPUs are wrong while healthy ones are free."""
    what = choose.random()
    if what < 0.1:
        cluster.set_bad(choose.choice(list(cluster.nodes)))
    elif what < 0.18:
        cluster.set_healthy(choose.choice(list(cluster.nodes)))
    elif what < 0.4 and cluster.gangs:
        cluster.delete(choose.choice(list(cluster.gangs)))
    else:
        size = choose.choice((1, 1, 2, 4))
        members = (size,) * choose.choice((1, 1, 2, 3))
        vc, priority = choose.choice(list(cluster.vcs)), choose.choice((-1, 0, 0, 1, 2))
        request = CellRequest(f"g{number}", vc, members, priority, can_demote=choose.random() < 0.2)
        answer = cluster.ask(request)
        if answer.deed is not None:
            nodes = {member.node for member in answer.deed.members}
            assert nodes.isdisjoint(cluster.bad_nodes), "nothing new goes to a bad node"
        for victim in answer.victims if choose.random() < 0.7 else ():
            cluster.delete(victim)
            answer = cluster.ask(request)
        if answer.kind == BIND and answer.deed is not None:
            cluster.allocate(request, answer.deed)
