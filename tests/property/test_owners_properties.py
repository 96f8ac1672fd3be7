"""Virtual clusters, whatever they ask for: what each would have alone it has beside the others."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine.settings import EngineSettings
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.deal import Bay, deal
from tests.builders import SECOND_NS, TICKET, Slicer, a_gang
from tests.fake_world import ruled

VCS = ("a", "b", "")
sizes = st.lists(st.sampled_from((1, 2, 4, 6, 8)), min_size=1, max_size=6)
shares = st.fixed_dictionaries({"a": st.integers(0, 20), "b": st.integers(0, 20)})


@settings(deadline=None)
@given(sizes, shares, st.sets(st.integers(0, 5)))
def test_each_has_what_it_was_promised_while_there_is_so_much(
    gpus: list[int], wanted: dict[str, int], down: set[int]
) -> None:
    whole = [Bay(f"n{n}", "v100", count) for n, count in enumerate(gpus)]
    told = {vc: {"v100": count} for vc, count in wanted.items()}
    before = deal(told, whole)
    now = deal(told, [bay._replace(is_down=n in down) for n, bay in enumerate(whole)])
    assert {node: len(names) for node, names in before.items()} == {bay.node: bay.gpus for bay in whole}
    owned = {vc: sum(names.count(vc) for names in before.values()) for vc in wanted}
    assert sum(owned.values()) == min(sum(wanted.values()), sum(gpus))
    assert owned == wanted or sum(wanted.values()) > sum(gpus)
    up = [bay.node for n, bay in enumerate(whole) if n not in down]
    assert all(now[node][g] == vc for node in up for g, vc in enumerate(before[node]) if vc), "none moves"
    left = sum(before[node].count("") for node in up)
    lost = sum(bool(vc) for node in before.keys() - set(up) for vc in before[node])
    assert sum(now[node].count("") for node in up) == max(0, left - lost), "as much of it as is left"


gang = st.tuples(
    st.sampled_from("xyz"),
    st.sampled_from(VCS),
    st.integers(1, 9 * TICKET),
    st.booleans(),
    st.sets(st.integers(0, 3), min_size=1, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(gang, min_size=1, max_size=9), st.integers(1, 20))
def test_the_rounds_of_a_virtual_cluster_are_those_it_would_have_alone(
    rows: list[tuple[str, str, int, bool, set[int]]], rounds: int
) -> None:
    """GPUs 0 and 1 are a's, 2 is b's, 3 nobody's; who is beyond his own there is opportunistic."""
    owned = {"a": {0, 1}, "b": {2}, "": {3}}
    gangs = [
        replace(
            a_gang(n, user, tuple(sorted(gpus)), tickets),
            vc=vc,
            is_opportunistic=is_spare or not gpus <= owned[vc],
        )
        for n, (user, vc, tickets, is_spare, gpus) in enumerate(rows)
    ]
    together = Slicer(4, yields=True)
    together.local.set_gangs(gangs)
    together.run(rounds)
    for vc in VCS:
        mine = [gang for gang in gangs if gang.group == vc]
        alone = Slicer(4, yields=True)
        alone.local.set_gangs(mine)
        alone.run(rounds)
        own = {gang.key for gang in mine}
        assert [[key for key in on if key in own] for on in together.rounds] == [[*on] for on in alone.rounds]
        if mine:
            assert together.local.passes(vc) == alone.local.passes(vc)


jobs = st.lists(st.tuples(st.sampled_from(("a", "b", "")), st.sampled_from((1, 1, 2, 4))), max_size=10)


@settings(max_examples=40, deadline=None)
@given(jobs, st.sampled_from(((4, 2), (4, 1, 1), (2, 2, 2), (2, 1), (4,))), st.booleans())
def test_what_a_virtual_clusters_cells_hold_starts_at_once_whoever_was_there_before(
    others: list[tuple[str, int]], mine: tuple[int, ...], has_ended: bool
) -> None:
    """`c` owns a node and a half; gangs that fit into these side by side do so, on GPUs of its own."""
    settings = EngineSettings(
        virtual_clusters={"c": {"v100": 6}, "a": {"v100": 2}}, slots_per_gpu=2, quantum_ns=SECOND_NS
    )
    world = ruled({"n1": 4, "n2": 4, "n3": 4}, settings)
    for n, (vc, gpus) in enumerate(others):
        world.submit(f"user{n % 3 + 1}", gpus, vc=vc)
    world.run(3)
    if has_ended and world.running():
        world.finish(world.running()[0])
    found = [world.submit("user1", gpus, vc="c") for gpus in mine]
    world.run(3)
    for job_id in found:
        record = world.engine.jobs[job_id]
        assert record.state == states.RUNNING and not record.is_opportunistic, record.told()
