"""The demo's training scripts: the same bits each time, alone and as a gang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gandiva_slurm.mini.demo_jobs import TRAIN, read_losses, read_steps
from tests import patience

ENV = {key: value for key, value in os.environ.items() if not key.startswith(("GANDIVA", "SLURM"))}


def train(monkeypatch: pytest.MonkeyPatch, prefix: Path, *args: str) -> list[str]:
    """Run the script in this process; torch takes seconds to load."""
    from gandiva_slurm.mini.workloads import train as script

    for name in ("RANK", "WORLD_SIZE", "GANDIVA_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["train", "--out", str(prefix), *args])
    script.main()
    (losses,) = read_losses(prefix, 1)
    return losses


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm", "tiny"])
def test_losses_repeat_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    first = train(monkeypatch, tmp_path / "a", "--model", model, "--steps", "12")
    assert (
        train(monkeypatch, tmp_path / "b", "--model", model, "--steps", "12", "--boundary", "hook") == first
    )
    assert len(first) == 12 and len(set(first)) > 6


def test_longer_run_begins_like_a_shorter_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 40 steps pass the end of an epoch (32 batches of 64).
    whole = train(monkeypatch, tmp_path / "a", "--steps", "40")
    assert train(monkeypatch, tmp_path / "b", "--steps", "33") == whole[:33]
    assert train(monkeypatch, tmp_path / "c", "--steps", "40", "--seed", "2") != whole


def test_steps_are_timed_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, tmp_path / "a", "--steps", "10")
    (steps,) = read_steps(tmp_path / "a", 1)
    times = [moment for span in steps for moment in span]
    assert len(steps) == 10 and times == sorted(times)


def test_gang_stops_at_one_step(tmp_path: Path) -> None:
    # Rank 1 alone is told to stop: rank 0 would go on to step 50.
    (tmp_path / "stop").touch()
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    choose = f"exec {sys.executable} -m {TRAIN} --out {tmp_path}/gang --steps 50 --stop-file "
    choose += f"{tmp_path}/$(test $RANK = 1 && echo stop || echo none)"
    argv = [sys.executable, *launch, "sh", "-c", choose]
    subprocess.run(argv, env=ENV, timeout=120 * patience.slowness(), check=True, capture_output=True)
    first, second = read_losses(tmp_path / "gang", 2)
    assert len(first) == len(second) == 1
    assert first != second, "each rank has batches of its own"
