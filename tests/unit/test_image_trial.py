"""What `gandiva try` makes of a script that images have moved; tests/docker/test_images.py moves one."""

import os
import random
from pathlib import Path

import pytest

from gandiva_slurm.cli import image_trial, script_ways
from gandiva_slurm.cli.runs import Trial
from gandiva_slurm.client.trial import BEGIN

LOSSES = [float(n).hex() for n in range(50)]


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """One that was run alone, as far as it goes."""
    (tmp_path / "alone.0").write_text(BEGIN + "\n".join(LOSSES[:30]) + "\n")

    def run_alone(trial: Trial, name: str, count: int) -> None:
        (tmp_path / f"{name}.0").write_text(BEGIN + "\n".join(LOSSES[:count]) + "\n")

    monkeypatch.setattr(image_trial.runs, "run_alone", run_alone)
    return Trial(script_ways.read(["true"]), tmp_path, 20, 60.0, random.Random(0))


def test_losses_that_differ_anywhere_are_the_verdict(trial: Trial) -> None:
    assert image_trial._compare(trial, LOSSES[:25]) == ""
    assert image_trial._compare(trial, [*LOSSES[:25], "0x1.8p"]) == "", "the last may be half written"
    for at in (0, 24):
        got = [*LOSSES[:at], LOSSES[49], *LOSSES[at + 1 : 26]]
        assert image_trial._compare(trial, got).endswith(f"it computes something else, from loss {at} on")
    doubled = [*LOSSES[:10], *LOSSES[9:26]]
    assert image_trial._compare(trial, doubled).endswith("from loss 10 on")


def test_it_is_run_alone_as_far_as_it_has_come(trial: Trial) -> None:
    assert image_trial._compare(trial, LOSSES[:41]) == "" and trial.alone == "alone-imaged"
    assert image_trial._compare(trial, [*LOSSES[:39], LOSSES[0], LOSSES[40]]) != ""


def test_no_process_of_roots_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(image_trial.criu, "unfit", lambda: "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert image_trial.why_not() == "root alone can prove it"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if tmp_path.stat().st_uid == 0:
        assert "sudo from your own account" in image_trial.why_not()
    monkeypatch.setenv("SUDO_UID", "65534")
    assert image_trial.why_not() == ""
    monkeypatch.setattr(image_trial.criu, "unfit", lambda: "this node has no program criu")
    assert image_trial.why_not() == "this node has no program criu"
