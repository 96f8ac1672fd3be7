"""A policy decides whose turn it is, and leaves that to the nodes where it cannot for a while."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from unittest import mock

import pytest

from gandiva_slurm.engine.apply import decider as deciders
from gandiva_slurm.engine.apply.decider import TooSlow
from gandiva_slurm.model import job as states
from gandiva_slurm.model import span
from gandiva_slurm.policy.port import Plan, Policy, View
from gandiva_slurm.wire.messages import NodePlan
from tests import patience
from tests.controller.fakes import FakeSlurm, World

#: For how long a decision stands in these tests on a quiet machine, beside no quantum.
LEASE_S = 0.6
#: How often it is measured at most, and how often it is looked whether this process runs meanwhile.
MEASURED, TICK_S = 3, 0.01
OWN_STRIDES = "nodes go by their own strides"


@pytest.fixture
def nodes() -> dict[str, int]:
    """One GPU, for which two jobs take turns."""
    return {"n1": 1}


@pytest.fixture
async def led(monkeypatch: pytest.MonkeyPatch, world: World) -> World:
    """Two jobs live on the GPU, one of them is on, by a policy."""
    monkeypatch.setattr(span, "LEASE_QUANTA", 0)
    lease_ns = round(LEASE_S * patience.slowness() * 1e9)
    monkeypatch.setattr(span, "LEASE_NS", lease_ns)
    monkeypatch.setattr(deciders, "REST_NS", lease_ns)
    world.policy, world.quantum_s, world.moves = "gandiva_fair", 0.3, {"cost_s": 0.1}
    for user in ("user1", "user2"):
        world.slurm.submit(user)
    await world.start()
    await world.until(lambda: turns(world) == {True, False}, "one is on, and one is off")
    jobs = world.controller.engine.jobs.values()
    await world.until(lambda: {job.state for job in jobs} <= {*states.SLICED}, "Slurm has started both")
    return world


def turns(world: World) -> set[bool | None]:
    """What the node was last told of the jobs' turns, where more than one lives there."""
    plan = world.fleet["n1"].plan
    return {job.is_on for job in plan.jobs} if plan is not None and len(plan.jobs) > 1 else set()


@contextmanager
def slurm_down(world: World) -> Iterator[None]:
    world.slurm.is_down = True
    yield
    world.slurm.is_down = False


@contextmanager
def slurm_silent(world: World) -> Iterator[None]:
    """A look at Slurm that was begun does not end."""
    over = asyncio.Event()
    plain = FakeSlurm.snapshot

    async def hangs(self: FakeSlurm, with_associations: bool) -> object:
        await over.wait()
        return await plain(self, with_associations)

    with mock.patch.object(FakeSlurm, "snapshot", hangs):
        yield
    over.set()


@contextmanager
def failing(world: World, step: str) -> Iterator[None]:
    """Each cycle fails at this step."""
    with mock.patch.object(world.controller, step, side_effect=RuntimeError("broken")):
        yield
    world.want_errors = world.controller.status.errors


def cycles_failing(world: World) -> AbstractContextManager[None]:
    return failing(world, "find_differences")


def plans_kept_back(world: World) -> AbstractContextManager[None]:
    """The policy decides, and what it decides comes no further."""
    return failing(world, "keep")


@contextmanager
def policy_late(world: World) -> Iterator[None]:
    """The policy takes too long to answer, each time it is asked, and it is asked: there is a third job."""

    def thinks(policy: Policy, view: View) -> Plan:
        raise TooSlow("thinks")

    decider = world.controller.engine.decider
    assert decider is not None
    leader, decider.leader = decider.leader, replace(decider.leader, ask=thinks)
    world.slurm.submit("user3")
    yield
    decider.leader = leader
    world.want_errors = world.controller.status.errors


@pytest.mark.parametrize("trouble", [slurm_down, slurm_silent, cycles_failing, plans_kept_back, policy_late])
async def test_nodes_go_by_their_own_strides_while_the_policy_cannot_decide(
    led: World, trouble: Callable[[World], object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with trouble(led):
        await led.until(lambda: turns(led) == {None}, "turns are left to the node")
        await led.until(lambda: OWN_STRIDES in caplog.text, "it says so")
        told = caplog.text.count(OWN_STRIDES)
        seen = led.fleet["n1"].plan.jobs
        end_s = time.monotonic() + 2 * LEASE_S
        await led.until(lambda: time.monotonic() > end_s)
        assert led.fleet["n1"].plan.jobs == seen, "told once"
        assert caplog.text.count(OWN_STRIDES) == told
    await led.until(lambda: "the policy decides again" in caplog.text, "it says so")
    await led.until(lambda: turns(led) >= {True, False}, "it decides again")


async def test_a_policy_that_decides_is_obeyed_for_as_long_as_it_does(led: World) -> None:
    """A plan that stays the same for long is decided anew in each cycle."""
    for _ in range(MEASURED):
        await led.until(lambda: turns(led) == {True, False}, "it decides")
        begun, lease_s = led.controller.status.cycle, span.LEASE_NS / 1e9
        plans, gap_s = await watched(led, 3 * lease_s)
        # Where this process itself stood still nobody could decide: then it is measured again.
        if gap_s < lease_s / 2:
            break
    assert led.controller.status.cycle > begun and turns(led) == {True, False}, gap_s
    assert all({job.is_on for job in plan.jobs} <= {True, False} for plan in plans), gap_s


async def watched(world: World, lasting_s: float) -> tuple[list[NodePlan], float]:
    """The plans that the node was told in that time, and for how long nothing ran here at the most."""
    plans = world.fleet["n1"].plans
    first, gap_s, before_s = len(plans), 0.0, time.monotonic()
    end_s = before_s + lasting_s
    while before_s < end_s:
        await asyncio.sleep(TICK_S)
        now_s = time.monotonic()
        gap_s, before_s = max(gap_s, now_s - before_s), now_s
    return plans[first:], gap_s
