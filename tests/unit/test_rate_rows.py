"""Rates are learnt by array: what one user's jobs are told to run at is no row of another's."""

from __future__ import annotations

import pytest

from gandiva_slurm.model import event as ev
from gandiva_slurm.model import job as states
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.measured import Measured
from tests.fake_world import FakeWorld


@pytest.fixture
def world() -> FakeWorld:
    """A liar's job and another user's, called alike, of the same model."""
    world = FakeWorld({"n1": 2})
    for user in ("liar", "honest"):
        world.submit(user, name="resnet50")
    world.run(5)
    return world


def models(world: FakeWorld) -> list[str]:
    """By what rates of the two are kept."""
    return [world.engine.jobs[job].model for job in (1, 2)]


def tell(world: FakeWorld, job_id: int, **measured: float) -> None:
    """Have the node tell what it has measured of a job."""
    seen = Measured(**measured)  # type: ignore[arg-type]
    gpus = world.engine.jobs[job_id].places["n1"]
    told = ev.ResidentSeen("n1", JobKey(job_id, 0), states.RUNNING, gpus, "Running", "", measured=seen)
    world.engine.handle([told, ev.CycleTick()], world.now_ns)


@pytest.mark.parametrize("rate", [1e-300, 1e300])
def test_a_row_that_one_user_has_poisoned_is_that_users_alone(world: FakeWorld, rate: float) -> None:
    kind = world.engine.state.nodes["n1"].node.gpu_type
    tell(world, 2, rate_alone=7.0)
    tell(world, 1, rate_alone=rate, rate_packed=rate, mate=2)
    rates, (one, two) = world.engine.state.rates, models(world)
    assert rates.alone(one, 1, kind) == rate
    assert rates.alone(two, 1, kind) == 7.0
    assert rates.packed(two, one, kind) is None, "nothing is known of a pair before both were measured"


def test_of_a_pair_each_is_measured_by_itself(world: FakeWorld) -> None:
    kind = world.engine.state.nodes["n1"].node.gpu_type
    tell(world, 1, rate_alone=5.0, rate_packed=1e9, mate=2)
    tell(world, 2, rate_alone=7.0, rate_packed=3.0, mate=1)
    one, two = models(world)
    assert world.engine.state.rates.packed(two, one, kind) == (3.0, 1e9)
