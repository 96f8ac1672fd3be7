"""The examples, run as a newcomer runs them: by themselves, and stopped and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience
from tests.slow import soak

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120


@pytest.fixture
def start(tmp_path):
    """Start an example; it is killed in the end if it still runs."""
    started = []

    def _start(name, *options, **more):
        env = {key: value for key, value in os.environ.items() if not key.startswith(("GANDIVA", "SLURM"))}
        env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
        argv = [sys.executable, str(ROOT / "examples" / name), *options]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield _start
    for process in started:
        process.kill()
        process.communicate()


def lines(process):
    """What it has printed when it has ended well, and what it said besides."""
    out, err = process.communicate(timeout=DEADLINE_S * patience.slowness())
    assert process.returncode == 0, err
    return out.splitlines(), err


def test_plain_loop(start, tmp_path):
    out, err = lines(start("plain_loop.py"))
    losses = [float(line.split()[-1]) for line in out]
    assert len(losses) == 5 and losses[-1] < losses[0] / 10
    assert err == "gandiva: no GANDIVA_SOCKET here: this script runs as if gandiva were not imported\n"
    assert list(tmp_path.iterdir()) == []


@soak("15 s; the plain loop stays, and test_requeue stops and goes on")
def test_mnist_like_goes_on_where_it_was_stopped(start, tmp_path):
    alone, err = lines(start("mnist_like.py", "--epochs", "4"))
    assert "nothing is saved" in err and list(tmp_path.iterdir()) == []
    assert int(alone[-1].split()[-1]) > 48, "of 64"

    process = start("mnist_like.py", "--epochs", "4", GANDIVA_CHECKPOINT_DIR="checkpoints")
    first = [process.stdout.readline().rstrip() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    # On a busy machine it was further by then.
    first += process.communicate(timeout=DEADLINE_S * patience.slowness())[0].splitlines()
    rest, err = lines(start("mnist_like.py", "--epochs", "4", GANDIVA_CHECKPOINT_DIR="checkpoints"))
    assert "goes on from" in err
    both = [*(line for line in first if line not in rest), *rest]
    assert both == alone, "stopped before or after the second checkpoint was whole"
