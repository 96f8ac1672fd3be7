"""A parked job whose memory does not come back: its node gives its turn on and tries again (ADR 0053)."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import patience
from tests.device import card
from tests.device.conftest import CONTEXT, MIB, TOTAL
from tests.node.conftest import make_node  # noqa: F401  (a fixture)
from tests.node.harness import ROOT, a_planned_job

LIVE = 48 * MIB
TRAIN = str(ROOT / "tests/gpu/train.py")
STEPS = 1_000_000


def arguments(out: Path, steps: int, stop: Path) -> list[str]:
    return [TRAIN, *map(str, (out, steps, LIVE, MIB, stop))]


@pytest.fixture
def card_path():
    """A card that the users of jobs may open."""
    with tempfile.TemporaryDirectory(prefix="gandiva-card-") as directory:
        os.chmod(directory, 0o755)
        path = card.make(Path(directory, "card"), TOTAL, CONTEXT)
        path.chmod(0o666)
        yield path


@pytest.fixture
def pair(make_node, card_env):  # noqa: F811
    """A training on the card, parked, and a job without a card that holds the GPU in its turns."""
    node = make_node(gpus=1, quantum_s=0.5)
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, arguments(node.out / "losses", STEPS, node.out / "stop"), env=card_env)
    node.wait(lambda: node.resident(1).steps > 5)
    node.start_job(2, [str(ROOT / "tests/node/scripts/loop.py"), "5"])
    node.wait(lambda: node.resident(1).suspends >= 2)
    return node


def is_free(node):
    """True when another try that failed was neither a turn nor charged."""
    failed = node.events("unrestored", 1)
    said = node.wait(lambda: (one := node.resident(1)).reason == "ResumeFailed" and one)
    assert said.state == "SUSPENDED" and "card out of memory" in said.detail
    node.wait(lambda: len(node.events("unrestored", 1)) > len(failed))
    now = node.wait(lambda: (one := node.resident(1)).state == "SUSPENDED" and one)
    assert now.steps == said.steps
    later = [event for event in node.events("running", 1) if event["mono_ns"] > failed[-1]["mono_ns"]]
    return not later and now.gpu_ns == said.gpu_ns


def test_it_is_not_running_not_charged_and_goes_on_when_there_is_room(pair, card_env, card_path, tmp_path):
    node = pair
    node.wait(lambda: node.resident(1).state == "SUSPENDED")
    with card.occupied(card_path, TOTAL - 2 * CONTEXT):
        node.wait(lambda: len(node.events("unrestored", 1)) >= 3)
        # A try in which gandivad or the rank stands still for a second is told as running, and paid for.
        assert sum(is_free(node) for _ in range(3)) >= 2, "it neither runs nor pays"
        failed_ns, steps = node.events("unrestored", 1)[0]["mono_ns"], node.resident(1).steps
        assert set(card.used(card_path).values()) <= {CONTEXT, TOTAL - 2 * CONTEXT}
        node.kill9()
        node.start()
        failed = len(node.events("unrestored", 1))
        node.wait(lambda: len(node.events("unrestored", 1)) > failed)
        node.wait(lambda: node.resident(1).state == "SUSPENDED")  # for the next gandivad, too
        others = [event for event in node.events("running", 2) if event["mono_ns"] > failed_ns]
        assert others, "the other goes on"
    node.wait(lambda: node.resident(1).steps > steps + 5)
    (node.out / "stop").touch()
    losses = json.loads(node.wait(lambda: (node.out / "losses").read_text()))
    argv = arguments(tmp_path / "alone", len(losses), tmp_path / "none")
    subprocess.run([sys.executable, *argv], env=card_env, check=True, timeout=120 * patience.slowness())
    assert json.loads((tmp_path / "alone").read_text()) == losses
