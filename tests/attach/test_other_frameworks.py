"""Trainings of frameworks other than PyTorch, as far as they are parked; make setup installs none of them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gandiva_slurm.wire.page import TIER_HOLD, TIER_TORCH, W_HELD, W_RELEASED, W_SEQ, W_TIER_USED
from tests.park_harness import Harness
from tests.skips import NO_DEEPSPEED, NO_JAX

ROOT = Path(__file__).parents[2]
PARKS, DEADLINE_S = 3, 120
HAS_JAX = all(importlib.util.find_spec(name) for name in ("jax", "optax"))
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None


def start(script, words, world=1, **more):
    """Start the ranks of a training, with the hook."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    paths = (str(ROOT / "gandiva_slurm/client/hook"), str(ROOT), kept.get("PYTHONPATH"))
    env = kept | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"} | more
    argv = [sys.executable, str(ROOT / "tests/attach" / script), *map(str, words)]
    gang = [{"RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": str(world)} for n in range(world)]
    return [subprocess.Popen(argv, env=env | (told if world > 1 else {})) for told in gang]


def finish(ranks):
    assert [rank.wait(DEADLINE_S) for rank in ranks] == [0] * len(ranks)


@pytest.fixture
def parked(tmp_path):
    """Run a training to its end with some parks in it; return what its ranks' pages said at each."""
    nodes, everyone = [], []

    def run(script, words, world=1, **more):
        nodes.append(node := Harness(str(tmp_path / "node"), world))
        everyone.extend(ranks := start(script, words, world, GANDIVA_SOCKET=str(tmp_path / "node"), **more))
        node.serve(DEADLINE_S)
        said = []
        for _ in range(PARKS):
            node.park()
            assert node.gang.phase == "parked", node.gang.last_error
            said.extend(views := node.views())
            node.resume()
            node.wait(
                lambda seq=views[0][W_SEQ]: node.views()[0][W_SEQ] > seq + 2, "it to go on", between=node.tick
            )
        finish(ranks)
        return said

    yield run
    for rank in everyone:
        rank.kill()
        rank.wait()
    for node in nodes:
        node.close()


@pytest.mark.skipif(not HAS_JAX, reason=NO_JAX)
def test_jax_is_parked_to_the_bit_and_keeps_its_memory(tmp_path, parked):
    """By gandiva.steps, for the hook knows PyTorch's optimizers alone; memory that is not torch's stays."""
    said = parked("jax_train.py", (tmp_path / "parked", 1000, 0.02), JAX_PLATFORMS="cpu")
    assert {(view[W_TIER_USED], view[W_RELEASED]) for view in said} == {(TIER_HOLD, 0)}
    finish(start("jax_train.py", (tmp_path / "alone", 1000, 0), JAX_PLATFORMS="cpu"))
    assert (tmp_path / "parked").read_text() == (tmp_path / "alone").read_text()


@pytest.mark.skipif(not HAS_DEEPSPEED, reason=NO_DEEPSPEED)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_is_parked_to_the_bit_and_gives_its_memory_back(stage, tmp_path, parked):
    """Two ranks, on the CPU as if it were a device; the script knows nothing of Gandiva."""
    out = tmp_path / "parked", tmp_path / "alone"
    words = (stage, out[0], tmp_path / "store0", 300, 0.03)
    said = parked("deepspeed_train.py", words, world=2, GANDIVA_TIER="torch-cpu")
    assert all(view[W_TIER_USED] == TIER_TORCH and view[W_RELEASED] and not view[W_HELD] for view in said)
    finish(start("deepspeed_train.py", (stage, out[1], tmp_path / "store1", 300, 0), world=2))
    for rank in range(2):
        assert Path(f"{out[0]}.{rank}").read_text() == Path(f"{out[1]}.{rank}").read_text()
