"""The tier `torch` on the CPU as if it were a device: bits stay, bytes go, nothing is left."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gandiva_slurm.wire.page import LEFT, TIER_TORCH, W_SEQ, W_STATE, W_TIER_USED
from tests import offload_kit as kit
from tests import patience
from tests.park_harness import Harness
from tests.slow import long_form, soaked

pytestmark = pytest.mark.usefixtures("few_objects")

ROOT = Path(__file__).resolve().parents[2]
STEPS, PARKS = 130, 100
AS_MANY_AS = [12, soaked(PARKS, why="5 s a recipe; twelve parks each in make test")]


@pytest.fixture(autouse=True)
def one_thread():
    threads, is_strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(is_strict)


def train_parked(recipe, count):
    """Train with parks between the steps; return losses, weights, and what each park said."""
    with kit.AllStorages() as storages:
        parks = kit.Parks(kit.ExactGauge(storages), count, STEPS)
        return kit.train(recipe, "cpu", STEPS, parks.between), parks.said


@pytest.mark.parametrize("count", AS_MANY_AS)
@pytest.mark.parametrize("name", kit.SOLO)
def test_parks_change_no_bit_and_leave_no_byte(name, count):
    recipe = kit.SOLO[name]
    alone = kit.train(recipe, "cpu", STEPS, lambda: None)
    # On a stack of its own: the tier looks through the variables of callers, and pytest has very many.
    with ThreadPoolExecutor(1) as thread:
        parked, said = thread.submit(train_parked, recipe, count).result()
    assert parked == alone
    assert len(said) == count
    for live, released, held, _ in said:
        assert (released + held, held) == (live, 0)
        assert live > 300


#: Bytes of the parameters of one rank's model in tests/offload_train.py.
GANG_PARAMETERS = 4 * (64 * 128 + 128 + 128 * 64 + 64)


MORE = "11 to 18 s; DDP is in make test, this kind of memory is here alone"


@pytest.mark.parametrize(
    ("kind", "most_held"),
    [("ddp", 1.1), long_form("bucket_views", 0.05, why=MORE), long_form("sharded", 0.0, why=MORE)],
)
def test_gangs_keep_their_bits_and_hold_their_buckets_only(kind, most_held, tmp_path):
    command = [
        sys.executable,
        "-m",
        "tests.offload_train",
        kind,
        str(tmp_path / "out"),
        str(tmp_path / "store"),
        str(most_held * GANG_PARAMETERS),
    ]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    env |= {"PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen(command, cwd=ROOT, env={**env, "RANK": str(rank)}) for rank in range(2)]
    try:
        assert [rank.wait(120 * patience.slowness()) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    for rank in range(2):
        found = json.loads((tmp_path / f"out.{rank}").read_text())
        assert found["parked"] == found["alone"]
        assert len(found["said"]) == PARKS
        for live, released, held, later in found["said"]:
            assert released + held == live and released >= GANG_PARAMETERS
            assert later <= most_held * GANG_PARAMETERS


SIGNALLED = """
import signal, sys, torch
import gandiva_slurm as gandiva
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def save(number, frame):
    print(sum(value.sum().item() for value in model.parameters()), flush=True)

signal.signal(signal.SIGUSR1, save)
for _ in gandiva.steps(range(1_000_000_000)):
    model(torch.ones(2, 64)).square().sum().backward()
    optimizer.step()
"""


def test_handler_of_a_signal_that_comes_during_the_park_finds_the_weights(tmp_path):
    node = Harness(str(tmp_path / "node.sock"), 1)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    env |= {"PYTHONPATH": str(ROOT), "GANDIVA_TIER": "torch-cpu", "OMP_NUM_THREADS": "1"}
    env |= {"GANDIVA_SOCKET": str(tmp_path / "node.sock")}
    process = subprocess.Popen([sys.executable, "-c", SIGNALLED], env=env, stdout=subprocess.PIPE, text=True)
    try:
        node.serve()
        node.park()
        assert node.views()[0][W_TIER_USED] == TIER_TORCH
        process.send_signal(signal.SIGUSR1)
        node.wait(lambda: node.views()[0][W_STATE] == LEFT, "the rank to leave the park")
        float(process.stdout.readline())
        seq = node.views()[0][W_SEQ]
        node.wait(lambda: node.views()[0][W_SEQ] > seq + 3, "training to go on", between=node.tick)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        node.close()
