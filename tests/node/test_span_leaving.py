"""A gang over two nodes that is to be moved: saved whole or not at all, bit for bit the same afterwards."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from gandiva_slurm.model import span as words
from tests import patience
from tests.node.gangs import ALONE_S, ENDLESS
from tests.node.harness import HERE, ROOT
from tests.node.test_spans import SPAN, Pair, a_part
from tests.ports import free_port
from tests.slow import slow

SCRIPT = str(HERE / "scripts" / "attached_gang.py")


class Attached(Pair):
    """Its span is a gang that can be moved, of one checkpoint directory."""

    def start_ranks(self, restart=0, nodes=None):
        """Start a rank on each node, in this order."""
        for rank, node in enumerate(nodes or self.nodes):
            env = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
            env["GANDIVA_CHECKPOINT_DIR"] = str(self.one.out / "kept" / "%j")
            node.start_job(SPAN, [SCRIPT, str(ENDLESS)], restart=restart, step="0", env=env)

    def tell(self, is_leaving, restart=0):
        """Send the plan that tells it to leave, or to stay."""
        for node in self.nodes:
            node.plan(dataclasses.replace(a_part(), is_leaving=is_leaving, restart=restart))

    def residents(self):
        return [node.resident(SPAN) for node in self.nodes]

    def leave(self):
        """Tell it to leave, and give the order to save itself."""
        self.one.wait(lambda: all(resident.is_movable for resident in self.residents()))
        self.tell(True)
        self.one.wait(lambda: self.control.park(SPAN, saves=True))

    def losses(self, node):
        path = node.out / f"loss.{SPAN}"
        return path.read_text().splitlines() if path.exists() else []

    def end(self, node):
        """Stop it; return what rank 0 has written on this node."""
        for each in self.nodes:
            (each.out / f"stop.{SPAN}").touch()
        node.wait(lambda: self.losses(node)[-1:] == ["end"])
        return self.losses(node)


def alone(out, steps):
    """What the same ranks compute when nobody touches them."""
    env = {"OUT": str(out), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    env |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    env["GANDIVA_CHECKPOINT_DIR"] = str(out / "alone")
    ranks = [
        subprocess.Popen([sys.executable, SCRIPT, str(steps)], env=env | {"RANK": str(n)}) for n in range(2)
    ]
    # How they end says nothing: gloo's threads may abort an interpreter that is at its end (PyTorch #179291).
    for rank in ranks:
        rank.wait(ALONE_S * patience.slowness())
    losses = (out / "loss.alone").read_text().splitlines()
    assert losses[-1:] == ["end"]
    return losses


@pytest.fixture
def floor(make_node):
    """The gang, on and warm."""
    floor = Attached(make_node)
    floor.run_gang()
    floor.one.wait(lambda: len(floor.losses(floor.one)) > 20)
    return floor


@slow("25 s; cluster/test_moving moves a gang over nodes")
def test_a_gang_that_has_left_goes_on_where_it_is_started_again_and_loses_no_bit(floor):
    floor.leave()
    assert [resident.has_left for resident in floor.residents()] == [True, True]
    # One that did not work may have been left behind.
    found = (floor.one.out / "kept" / str(SPAN)).glob("attached_gang-*")
    saved = max(found, key=lambda path: path.stat().st_mtime)
    assert sorted(path.name for path in saved.glob("rank-*.json")) == ["rank-0-of-2.json", "rank-1-of-2.json"]
    written = floor.losses(floor.one)
    floor.two.kill9()
    floor.two.start()
    assert [resident.has_left for resident in floor.residents()] == [True, True]
    for number, node in enumerate(floor.nodes, start=1):
        node.wait(lambda node=node, n=number: node.states()[n] == "RUNNING")
        node.kill_job(SPAN)
    assert floor.losses(floor.one) == written, "it trained on after it had left"
    floor.tell(False, restart=1)
    floor.control.restart = 1
    floor.port = free_port()
    floor.start_ranks(restart=1, nodes=floor.nodes[::-1])
    floor.control.come_in(SPAN)
    floor.two.wait(lambda: len(floor.losses(floor.two)) > 20)
    found = [*written, *floor.end(floor.two)]
    assert found == alone(floor.one.out, len(found) - 1)


@slow("13 s; one that fails on a node alone is in test_leaving, its gang in unit/test_node_span_leaving")
def test_a_save_that_fails_on_one_node_is_taken_back_on_both_and_costs_nothing(floor):
    (floor.two.out / f"fail.{SPAN}").touch()
    floor.one.wait(lambda: all(resident.is_movable for resident in floor.residents()))
    floor.tell(True)
    floor.one.wait(lambda: floor.control.park(SPAN, until=words.HOLDING, saves=True))
    answers = floor.control.tell(words.COMMIT, SPAN)
    assert answers[floor.two.name].code == words.NO and "disk full" in answers[floor.two.name].why
    floor.control.do(words.RUN, SPAN)
    floor.trains()
    assert not any(resident.has_left for resident in floor.residents())
    assert all("save failed" in resident.detail for resident in floor.residents())
    floor.tell(False)
    floor.park()
    floor.control.come_in(SPAN)
    floor.trains()
    found = floor.end(floor.one)
    assert found == alone(floor.one.out, len(found) - 1)
