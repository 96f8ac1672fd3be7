"""Trainings of frameworks other than PyTorch, as far as they are parked; make setup installs none of them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gandiva_slurm.wire.page import TIER_HOLD, W_RELEASED, W_SEQ, W_TIER_USED
from tests.park_harness import Harness
from tests.skips import NO_JAX

ROOT = Path(__file__).parents[2]
PARKS, STEPS = 3, 1000
HAS_JAX = all(importlib.util.find_spec(name) for name in ("jax", "optax"))


@pytest.mark.skipif(not HAS_JAX, reason=NO_JAX)
def test_jax_is_parked_to_the_bit_and_keeps_its_memory(tmp_path):
    """By gandiva.steps, for the hook knows PyTorch's optimizers alone; memory that is not torch's stays."""
    node = Harness(str(tmp_path / "node"), 1)
    argv = [sys.executable, str(ROOT / "tests/attach/jax_train.py")]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    paths = os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))
    env = kept | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    ours = {**env, "GANDIVA_SOCKET": str(tmp_path / "node")}
    process = subprocess.Popen([*argv, str(tmp_path / "parked"), str(STEPS), "0.02"], env=ours)
    try:
        node.serve()
        for _ in range(PARKS):
            node.park()
            view = node.views()[0]
            assert node.gang.phase == "parked", node.gang.last_error
            assert (view[W_TIER_USED], view[W_RELEASED]) == (TIER_HOLD, 0)
            node.resume()
            node.wait(
                lambda seq=view[W_SEQ]: node.views()[0][W_SEQ] > seq + 2, "it to go on", between=node.tick
            )
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        node.close()
    subprocess.run([*argv, str(tmp_path / "alone"), str(STEPS), "0"], env=env, check=True, timeout=120)
    assert (tmp_path / "parked").read_text() == (tmp_path / "alone").read_text()
