"""The world of a test: two nodes of four GPUs, and at its end the invariants."""

import pytest

from gandiva_slurm.engine.invariants import no_job_is_lost, violations
from tests.controller.fakes import World
from tests.replaying import replay_journal


@pytest.fixture
def nodes() -> dict[str, int]:
    """The GPUs of each node."""
    return {"n1": 4, "n2": 4}


@pytest.fixture
async def world(tmp_path, nodes):
    made = World(tmp_path, nodes)
    yield made
    await made.kill()
    controller = getattr(made, "controller", None)
    if controller is not None:
        assert violations(controller.engine) == []
        live = {job_id: made.slurm.jobs[job_id].restart for job_id in made.live()}
        assert made.slurm.is_down or no_job_is_lost(controller.engine.state, live) == []
        assert controller.status.errors == made.want_errors, controller.status.last_error
        tally = replay_journal(made.state_dir / "journal.sqlite")
        assert tally.cycles and tally.first is None
    assert made.unplanned_starts == []
