"""Rounds do not wait for Slurm: turns change at the quantum's end, however long a look at Slurm takes."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from gandiva_slurm.model import job as states
from tests.controller.fakes import FakeSlurm, World

QUANTUM_S = 0.3


@pytest.fixture
def nodes() -> dict[str, int]:
    """One GPU, for which two jobs take turns."""
    return {"n1": 1}


async def test_turns_go_on_while_a_look_at_slurm_takes_long(world: World) -> None:
    """And nothing is done in Slurm meanwhile; what nodes said then of moves is not forgotten."""
    world.policy, world.quantum_s, world.moves = "gandiva_fair", QUANTUM_S, {"cost_s": 0.1}
    for user in ("user1", "user2"):
        world.slurm.submit(user)
    await world.start()
    jobs = world.controller.engine.jobs.values()
    await world.until(lambda: {job.state for job in jobs} <= {*states.SLICED} and len(jobs) == 2, "both run")
    node, over, plain = world.fleet["n1"], asyncio.Event(), FakeSlurm.snapshot
    looks = 0

    async def hangs(self: FakeSlurm, with_associations: bool) -> object:
        nonlocal looks
        looks += 1
        await over.wait()
        return await plain(self, with_associations)

    with mock.patch.object(FakeSlurm, "snapshot", hangs):
        await world.until(lambda: looks == 1, "a look has begun")
        calls, before = len(world.slurm.calls), len(node.plans)

        def on() -> list[int]:
            plans = [[job.job_id for job in plan.jobs if job.is_on] for plan in node.plans[before:]]
            turns = [holders[0] for holders in plans if len(holders) == 1]
            return [job for job, last in zip(turns, [0, *turns], strict=False) if job != last]

        await world.until(lambda: len(on()) >= 6, "six turns")
        assert len(world.slurm.calls) == calls and looks == 1
        over.set()
    cycle = world.controller.status.cycle
    await world.until(lambda: world.controller.status.cycle > cycle + 2, "it goes on")
    late_s = sorted(world.controller.nodes.late_s)
    assert late_s and late_s[len(late_s) // 2] < 5 * QUANTUM_S


async def test_a_turn_is_told_with_its_end(world: World) -> None:
    world.policy, world.quantum_s, world.moves = "gandiva_fair", 5.0, {"cost_s": 0.1}
    world.slurm.submit("user1")
    await world.start()
    node = world.fleet["n1"]
    await world.until(lambda: node.plan is not None and any(job.is_on for job in node.plan.jobs), "it runs")
    first, seen = node.plan, len(node.plans)
    assert first is not None and first.turn_left_ms is not None and 0 < first.turn_left_ms <= 5000
    await world.until(lambda: len(node.plans) > seen + 1, "it is told again")
    again = node.plans[-1]
    assert again.turn_left_ms is not None
    assert again.turn_ns > first.turn_ns or again.turn_left_ms < first.turn_left_ms
