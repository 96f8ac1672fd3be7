"""The node floor: real processes on a real gandivad, without Slurm; invariants checked at each test's end."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.node import witness
from tests.node.harness import NodeHarness
from tests.skips import NO_ROOT


@pytest.fixture
def make_node() -> Iterator[Callable[..., NodeHarness]]:
    """Return a function that starts a node; all are ended, checked and removed afterwards."""
    if os.geteuid() != 0:
        pytest.skip(NO_ROOT)
    nodes: list[NodeHarness] = []

    def make(**settings: Any) -> NodeHarness:
        node = NodeHarness(**settings)
        nodes.append(node)
        node.start()
        return node

    yield make
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.close)
            stack.callback(check_invariants, node)


def check_invariants(node: NodeHarness) -> None:
    """No GPU held by two that are no pack, by the log and the scripts' own notes; parks at boundaries."""
    # Steps are read before the log: what lets them be is in there by then.
    steps = {path: witness.read_steps(path) for path in node.out.glob("steps.*.*")}
    events = node.events()
    assert witness.overlaps(events) == []
    gpus = {event["job"]: set(event["gpus"]) for event in events if event["event"] == "grant"}
    paths = {job: sorted(path for path in steps if path.name.startswith(f"steps.{job}.")) for job in gpus}
    notes = {job: [steps[path] for path in found] for job, found in paths.items()}
    packs = witness.packs(events)
    for one, two in itertools.combinations(gpus, 2):
        together = packs.get(frozenset({one, two}), [])
        if gpus[one] & gpus[two]:
            pairs = itertools.product(notes[one], notes[two])
            for mine, other in pairs:
                found = witness.overlapping(mine, other)
                both = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in found]
                found = [span for span in both if not witness.within(span, together)]
                assert found == [], f"jobs {one} and {two} stepped at the same time"
    assert [e for e in events if e["event"] == "parked" and e["off_boundary"] and not e["frozen"]] == []
