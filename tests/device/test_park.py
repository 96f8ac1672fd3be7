"""A whole rank on the card: a script that runs ahead of its device is parked by its node."""

import subprocess
import sys

import pytest

from gandiva_slurm.wire.page import TIER_TORCH, W_HELD, W_RELEASED, W_SEQ, W_TIER_USED
from tests.device import card
from tests.device.conftest import CONTEXT, MIB
from tests.park_harness import Harness

#: What is still queued when a step's call of the optimizer has returned.
QUEUED_S = 3.0

AHEAD = f"""
import torch
from tests.device import backend
cuda = backend.install()
torch.set_num_threads(1)
import gandiva_slurm as gandiva
model = torch.nn.Linear(256, 256).to("card")
optimizer = torch.optim.AdamW(model.parameters())
for _ in gandiva.steps(range(1000)):
    cuda.synchronize()
    loss = model(torch.ones(8, 256, device="card")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    cuda.queue_work({QUEUED_S})
"""


@pytest.fixture
def node(tmp_path):
    harness = Harness(str(tmp_path / "node.sock"), 1, {"ok": True, "park_deadline_s": 30})
    yield harness
    harness.close()


def test_a_park_behind_three_seconds_of_queued_work_succeeds(node, card_env, card_path, tmp_path):
    env = {**card_env, "GANDIVA_SOCKET": str(tmp_path / "node.sock")}
    process = subprocess.Popen([sys.executable, "-c", AHEAD], env=env)
    try:
        node.serve(boundaries=2)
        took_s = node.park()
        view = node.views()[0]
        assert node.gang.phase == "parked" and took_s > 1
        assert view[W_TIER_USED] == TIER_TORCH and view[W_RELEASED] > 256 * 1024
        assert view[W_HELD] <= 2 * MIB, "of what is small, one segment may stay"
        assert card.used(card_path) == {process.pid: CONTEXT + view[W_HELD]}
        node.resume()
        node.wait(lambda: node.views()[0][W_SEQ] > view[W_SEQ], "training to go on", between=node.tick)
    finally:
        process.kill()
        process.wait()
