"""What `gandiva try` by root makes of a script; that images move it is tests/docker/test_images.py's."""

import os
from pathlib import Path

import pytest

from gandiva_slurm.cli import image_told, image_trial, script_ways
from gandiva_slurm.model.errors import ConfigError

LOSSES = [float(n).hex() for n in range(50)]


def test_losses_that_differ_anywhere_are_the_verdict() -> None:
    assert image_trial.compare(LOSSES[:25], LOSSES[:25]) == ""
    for at in (0, 24):
        got = [*LOSSES[:at], LOSSES[49], *LOSSES[at + 1 : 25]]
        assert image_trial.compare(LOSSES[:25], got).endswith(f"something else, from loss {at} on")
    doubled = [*LOSSES[:10], *LOSSES[9:24]]
    assert image_trial.compare(LOSSES[:25], doubled).endswith("from loss 10 on")
    assert image_trial.compare(LOSSES[:20], LOSSES[:25]).endswith("from loss 20 on"), "it did not come as far"


def test_no_process_of_roots_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert image_trial.user() is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if tmp_path.stat().st_uid == 0:
        assert image_trial.user() is None
    monkeypatch.setenv("SUDO_UID", "65534")
    who = image_trial.user()
    assert who is not None and who.pw_name == "nobody"
    monkeypatch.setenv("SUDO_UID", "4000000")
    assert image_trial.user() is None, "a number without a name"


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone becomes another user")
@pytest.mark.parametrize(
    ("line", "code", "is_proven"),
    [
        (f"image:   {image_told.COULD}; criu 4.1 is here", 0, True),
        (f"image:   {image_told.COULD}; {image_told.OF_CARDS}; criu 4.1 is here", 0, False),
        ("image:   no: it has a socket of the network open (tcp)", 0, False),
        (f"image:   {image_told.COULD}; criu 4.1 is here", 1, False),
    ],
)
def test_the_script_is_its_users_and_what_could_be_is_proven(
    line: str, code: int, is_proven: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUDO_UID", "65534")
    who = image_trial.user()
    assert who is not None
    monkeypatch.setattr(image_trial, "COMMAND", ("sh", "-c", f'id -u; echo "{line}"; exit {code}', "sh"))
    monkeypatch.setattr(image_trial, "prove", lambda *_: ("proven", "" if code else "it differs"))
    monkeypatch.chdir("/")
    assert image_trial.by_root(who, [], script_ways.read(["true"]), 60.0) == (1 if is_proven else code)
    told = capfd.readouterr().out.splitlines()
    assert told == ["65534", line, *(["image:   proven", "it differs"] if is_proven else [])]


def test_a_store_that_others_may_write_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_config() -> None:
        raise ConfigError("none here")

    monkeypatch.setattr(image_trial, "load_config", no_config)
    monkeypatch.setattr(image_trial, "DIRECTORY", tmp_path / "store")
    monkeypatch.setattr(image_trial.criu, "unfit", lambda: "")
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    who = image_trial.pwd.getpwnam("nobody")
    told, verdict = image_trial.prove(who, script_ways.read(["true"]), 1.0)
    assert told.startswith("not proven: ") and str(tmp_path) in told and verdict == ""
