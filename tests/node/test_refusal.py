"""A gang that never parks, beside a job that does: others get their turns, and it goes on where it was."""

from __future__ import annotations

import itertools
import os
import signal

import pytest

from tests import patience
from tests.node.harness import HERE, a_planned_job
from tests.records import share_of_turns

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
REFUSE = [str(HERE / "scripts" / "refuse.py")]
BOUND_NS = 1_500_000_000


class Scene:
    """Job 1, two ranks that come to no common boundary, and job 2 on the same GPU."""

    def __init__(self, make_node, **settings):
        bounds = {"quantum_s": 0.3, "park_deadline_ns": 400_000_000, "refusal_bound_ns": BOUND_NS} | settings
        self.node = make_node(gpus=1, **bounds)
        self.node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
        for rank in "01":
            env = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
            self.node.start_job(1, REFUSE, step=rank, env=env)
        self.node.wait(lambda: self.node.resident(1).ranks == 2 and self.node.resident(1).steps > 10)
        self.node.start_job(2, LOOP)

    def losses(self, rank):
        """What it has written so far; a line that is being written is left out."""
        text = (self.node.out / f"loss.1.{rank}").read_text()
        return [int(line) for line in text.rsplit("\n", 1)[0].split("\n")]

    def trained(self):
        """How many losses each rank has."""
        return [len(self.losses(rank)) for rank in (0, 1)]

    def freezes(self):
        """(begin, end) of each freeze of it that is over."""
        off = [event["mono_ns"] for event in self.node.events("parked", 1)]
        on = [event["mono_ns"] for event in self.node.events("thaw", 1)]
        return list(zip(off, on, strict=False))

    def goes_on(self):
        """Wait until both ranks do more than what was under way."""
        before = self.trained()
        self.node.wait(lambda: all(now > was + 5 for now, was in zip(self.trained(), before, strict=True)))

    def check_losses(self):
        """Each follows from the one before: nothing was lost, nothing done twice."""
        for rank in (0, 1):
            found = self.losses(rank)
            assert all(b == a * 48271 % 2147483647 for a, b in itertools.pairwise(found))


@pytest.fixture
def scene(make_node):
    return lambda **settings: Scene(make_node, **settings)


def test_others_get_turns_beside_a_gang_that_never_parks_and_it_goes_on(scene):
    floor = scene()
    node = floor.node
    frozen = node.wait(lambda: (seen := node.resident(1)).state == "SUSPENDED" and seen)
    assert frozen.reason == "Frozen" and frozen.off_boundary == frozen.suspends
    assert "failed to park" in frozen.detail and "at the latest" in frozen.detail
    node.wait(lambda: node.stands_still(1))
    node.wait(lambda: (seen := node.resident(1)).state == "RUNNING" and seen.suspends)
    floor.goes_on()
    node.wait(lambda: node.resident(1).suspends >= 5)
    parks = node.events("parked", 1)
    assert all(park["frozen"] for park in parks), "it never came to a boundary"
    refused = [event["mono_ns"] for event in node.events("unparkable", 1)]
    assert parks[0]["mono_ns"] - refused[0] >= BOUND_NS - 400_000_000
    holds = [event["held_ms"] for event in node.events("release", 1)]
    for held_ms, (begin_ns, end_ns) in zip(holds[1:], floor.freezes(), strict=False):
        assert held_ms > (end_ns - begin_ns) / 1e6 - 50, "on for as long as it had been frozen"
    node.wait(lambda: 0.4 < share_of_turns(node.events(), 1, (2,), turns=4) < 0.6)
    floor.check_losses()


def test_a_daemon_that_comes_back_knows_it_as_frozen_and_keeps_its_bound(scene):
    # A daemon is started again within the bound, on a busy machine, too.
    slowness = patience.slowness()
    short_ns, bound_ns = round(1_000_000_000 * slowness), round(12_000_000_000 * slowness)
    floor = scene(quantum_s=60, freeze_bound_ns=bound_ns, refusal_bound_ns=100_000_000)
    node = floor.node

    def turn_of():
        """Whose turn it is, and since when."""
        grant = node.wait(lambda: [event for event in node.events("grant") if event["job"] in (1, 2)])[-1]
        return grant["job"], grant["mono_ns"]

    def is_frozen_for_long():
        """In a turn of the other that takes a minute; the bound, which ends it, is not near."""
        parks = len(node.events("parked", 1))
        node.quantum_ns = short_ns
        node.plan()
        node.wait(lambda: len(node.events("parked", 1)) > parks, 120)
        node.quantum_ns = 60_000_000_000
        node.plan()
        # A rank whose hello nobody hears would keep its turn until it has said it again.
        node.wait(lambda: turn_of()[0] == 2 and node.resident(2).steps > 3)
        # The turn may still end by the short quantum, where that was over before the long one was known.
        begun_ns = turn_of()[1]
        node.wait(lambda: turn_of()[0] == 1 or node.report().mono_ns > begun_ns + 2 * short_ns)
        return turn_of()[0] == 2 and node.stands_still(1) and node.report().mono_ns < begun_ns + bound_ns / 3

    node.wait(is_frozen_for_long)
    began_ns = node.events("parked", 1)[-1]["mono_ns"]
    thaws = len(node.events("thaw", 1))
    node.kill9()
    node.start()
    assert node.stands_still(1)
    found = node.resident(1)
    assert (found.state, found.reason) == ("SUSPENDED", "Frozen") and "failed to park" in found.detail
    thawed_ns = node.wait(lambda: node.events("thaw", 1)[thaws], 20 + bound_ns / 1e9)["mono_ns"]
    assert 0.75 * bound_ns < thawed_ns - began_ns < 5 * bound_ns
    floor.goes_on()
    floor.check_losses()


def test_the_guard_lets_it_go_when_the_daemon_is_dead(scene):
    floor = scene(guard_grace_ns=300_000_000)
    node = floor.node

    def is_caught():
        """The daemon is stopped while the job is frozen: its turn may begin after a look."""
        if node.resident(1).state != "SUSPENDED" or not node.stands_still(1):
            return False
        os.kill(node.daemon.pid, signal.SIGSTOP)
        if not node.stands_still(1):
            os.kill(node.daemon.pid, signal.SIGCONT)
            return False
        return True

    # It is to run beside nobody, and not by the daemon's doing.
    node.wait(is_caught)
    node.kill_job(2)
    assert node.stands_still(1)
    node.kill9()
    floor.goes_on()
    floor.check_losses()
    node.start()
