"""What users mistype: each is told in one sentence, with the exit code of wrong use, before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.cli import acct, eff, hook, main, nodes, queue, report, share, top

HUGE = "9" * 5000
QUEUED = {"job_id": 12, "user": "nobody-here", "state": "ENDED"}
ANSWERS: dict[str, Any] = {"queue": [QUEUED], "acct": [], "share": {"users": []}, "nodes": []}
ANSWERS["report"] = {"window": [0, 1], "rows": []}
ANSWERS["top"] = {"rows": [], "counts": {}}


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (acct, eff, nodes, queue, report, share, top):
        monkeypatch.setattr(module, "query", lambda config, ask, args, wait_s=0: ANSWERS[ask])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("try --deadline nan -- true", "'--deadline': 'nan' is no number in the range 1<=x<=86400"),
        ("doctor --deadline nan -- true", "'--deadline': 'nan' is no number in the range 1<=x<=86400"),
        ("doctor --steps 0 -- true", "'--steps': 0 is not in the range x>=1"),
        ("acct -S 0001-01-01", "invalid time '0001-01-01'"),
        ("acct -S 1969-12-30", "invalid time '1969-12-30': before 1970 or after 9999"),
        ("acct -E now+999999999999weeks", "before 1970 or after 9999"),
        ("share -S uts999999999999999", "before 1970 or after 9999"),
        (f"share -E now-{HUGE}", "invalid time"),
        ("share -a -S now+1day", "ends before it starts; see -S and -E"),
        ("share -E now-2days", "ends before it starts; see -S and -E"),
        ("acct -o jobid%0", "invalid width 'jobid%0'; allowed: 1 to 4096"),
        ("queue -o jobid%999999999", "allowed: 1 to 4096"),
        (f"acct -o jobid%{HUGE}", "unknown field"),
        (f"queue -j {HUGE}", "invalid job id"),
        ("nodes -n n[1-99999999999]", "invalid node list"),
        ("queue -u no.such.user", "invalid user 'no.such.user'"),
        ("acct -u root,no.such.user", "invalid user 'no.such.user'"),
        ("share -u 4294967294", "invalid user '4294967294'"),
        ("eff", "name a job (gandiva eff 123), or a user and a time"),
        ("eff 12 -u root", "name a job (gandiva eff 123), or a user and a time"),
        ("eff 12 -S now-1day", "name a job (gandiva eff 123), or a user and a time"),
        ("eff ,", "invalid job id ','"),
        (f"eff {HUGE}", "invalid job id"),
        ("eff -u root -S now+1day", "ends before it starts"),
        ("eff -u no.such.user", "invalid user 'no.such.user'"),
        ("top -d 0", "0.0 is not in the range 1<=x<=60"),
        ("top -d nan", "'--delay': 'nan' is no number in the range 1<=x<=60"),
        ("top --once -u no.such.user", "invalid user 'no.such.user'"),
        ("report --last year", "'year' is not one of 'week', 'month'"),
        ("report --last week -S now-1day", "--last names a window, and so do -S and -E"),
        ("report -E now", "-E ends a window that -S must begin"),
        ("report -S now+1day", "ends before it starts"),
        ("report --by job", "'job' is not one of"),
        ("report -u no.such.user", "invalid user 'no.such.user'"),
    ],
)
def test_what_is_mistyped_is_said(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(line.split())
    told = capsys.readouterr()
    assert (end.value.code, told.out) == (2, "")
    assert told.err.startswith("gandiva: error: ") and sentence in told.err


@pytest.mark.parametrize("line", ["queue -u nobody-here", "acct -u root", "share -u 0"])
def test_users_are_known_here_or_have_jobs(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(line.split())
    assert end.value.code == 0


@pytest.mark.parametrize(
    ("path", "sentence"),
    [("none/out.json", "make "), (".", "Is a directory; name a file in it"), ("sealed", "Permission denied")],
)
def test_a_result_that_cannot_be_written_is_said_before_the_run(
    path: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sealed").touch()
    monkeypatch.setattr("os.access", lambda file, mode: Path(file).name != "sealed")  # root may write all
    with pytest.raises(SystemExit) as end:
        main.main(["sim", "paper", "LIST", "--json", str(tmp_path / path)])
    told = capsys.readouterr()
    assert (end.value.code, told.out) == (2, "") and sentence in told.err


def test_a_full_disk_is_no_fault_of_ours() -> None:
    code = "from gandiva_slurm.cli.main import main; main(['acct', '--helpformat'])"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "gandiva: error: cannot write what came out: No space left on device; "
        "next: make room, or write elsewhere\n"
    )


@pytest.mark.parametrize(
    ("program", "sentence"),
    [("exec true", "it answers ''"), ("exec sleep 60", "timed out after 0.3 seconds")],
)
def test_hook_asks_a_python_only(
    program: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(hook, "ANSWER_S", 0.3 if "sleep" in program else 60)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main.main(["hook", "install", str(tmp_path / "python")])
    told = capfd.readouterr().err
    assert end.value.code == 1 and "does not run as Python" in told and sentence in told
    assert not list(tmp_path.glob("*.pth"))
