"""gandivactld while the system's clock is set: retries come when they are due, over restarts too."""

from __future__ import annotations

import time

import pytest

from gandiva_slurm.accounting.queries import OpenHold
from gandiva_slurm.controller import clock
from gandiva_slurm.controller.api import Api
from gandiva_slurm.controller.api import _until as until
from gandiva_slurm.controller.privacy import read_rules
from gandiva_slurm.model.ids import JobKey

HOUR_NS = 3600 * 10**9
STEPS = pytest.mark.parametrize("step_ns", [-HOUR_NS, HOUR_NS, -24 * HOUR_NS, 24 * HOUR_NS])


@pytest.fixture
def set_clock(monkeypatch):
    """Set the system's clock as gandivactld sees it, by so much from the true one."""
    by = [0]
    monkeypatch.setattr(clock.Clock.__init__, "__defaults__", (
        clock.boot_ns, lambda: time.time_ns() + by[0], clock.host_boot,
    ))  # fmt: skip
    return lambda by_ns: by.__setitem__(0, by_ns)


def seconds_left(world, job):
    """Until a job may be started again."""
    controller = world.controller
    return (controller.engine.jobs[job].retry_ns - controller.clock.now_ns()) / 1e9


@STEPS
async def test_a_retry_comes_when_it_is_due(world, set_clock, step_ns):
    controller = await world.start()
    world.slurm.refuse_start = "Requested node configuration is not available"
    job = world.slurm.submit("user1")
    await world.until(lambda: len(world.slurm.calls_of(job)) >= 1 and world.state(job) == "HELD", "a refusal")
    left_s = seconds_left(world, job)
    set_clock(step_ns)
    await world.until(lambda: abs(controller.engine.state.skew_ns - step_ns) < 10**9, "the step heard of")
    assert left_s < 30
    world.slurm.refuse_start = ""
    begin_s = time.monotonic()
    await world.until(lambda: world.runs(job), "the retry")
    assert time.monotonic() - begin_s > left_s - 5
    api = Api(controller, frozenset({0}), lambda: read_rules(world.slurm))
    story = (await api._data(b'{"ask": "why", "args": {"job_id": %d, "story": true}}' % job, 0))["story"]
    assert abs(story[-1]["t_s"] - (time.time() + step_ns / 1e9)) < 60


async def test_a_restart_after_a_step_moves_no_retry(world, set_clock):
    await world.start()
    world.slurm.refuse_start = "Requested node configuration is not available"
    job = world.slurm.submit("user1")
    await world.until(lambda: len(world.slurm.calls_of(job)) >= 1 and world.state(job) == "HELD", "a refusal")
    await world.cycles(2)
    left_s, began_s = seconds_left(world, job), time.monotonic()
    await world.stop()
    set_clock(-HOUR_NS)
    await world.start()
    left_after_s, elapsed_s = seconds_left(world, job), time.monotonic() - began_s
    assert left_s < 30 and abs(left_s - left_after_s - elapsed_s) < 1
    world.slurm.refuse_start = ""
    await world.until(lambda: world.runs(job), "the retry")


@STEPS
def test_an_open_hold_of_a_node_with_other_dates_is_not_drawn_out(step_ns):
    """Its node's clock, or this one's, was set since."""
    hold = OpenHold("n1", JobKey(1, 0), "user1", (0,), 100 * HOUR_NS, 101 * HOUR_NS, 0)
    assert until(hold, hold.t1_ns + step_ns) == hold
    assert until(hold, hold.t1_ns + 10**9).t1_ns == hold.t1_ns + 10**9
