"""`gandiva report --mail`: a mail for each account, shown; sent by this machine's sendmail when told to."""

from __future__ import annotations

import email
import email.policy
import os
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.cli import main, report, report_mail
from tests.unit.test_report import BOB, ROW

OTHER = ROW | {"account": "bio", "user": "cat"}


@pytest.fixture
def gandiva(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """gandiva(*words, rows=...): exit code, what it printed, what it complained of; PATH is tmp_path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(report_mail, "_SBIN", str(tmp_path))

    def run(*words: str, rows: Any = (ROW, BOB, OTHER)) -> tuple[int, str, str]:
        told = {"window": [0, 604_800], "rows": list(rows)}
        monkeypatch.setattr(report, "query", lambda *_: told)
        with pytest.raises(SystemExit) as end:
            main.main(["report", "-S", "2026-11-16", "-E", "2026-11-23", *words])
        said = capsys.readouterr()
        return int(str(end.value.code)), said.out, said.err

    return run


def sendmail(directory: Path, script: str = "") -> Path:
    """Put a sendmail there that keeps what it is given, a file each."""
    box = directory / "box"
    box.mkdir()
    program = directory / "sendmail"
    lines = f'#!/bin/sh\nn=$$\n/bin/cat > {box}/$n.mail\necho "$@" > {box}/$n.words\n{script}\n'
    program.write_text(lines)
    program.chmod(0o755)
    return box


def mails(box: Path) -> dict[str, EmailMessage]:
    """What sendmail was given, by whom it is to."""
    found = {}
    for path in box.glob("*.mail"):
        made = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
        assert isinstance(made, EmailMessage)
        found[str(made["To"])] = made
    return found


def test_shown_and_not_sent(gandiva: Any, tmp_path: Path) -> None:
    box = sendmail(tmp_path)
    code, out, err = gandiva("--mail", "pi-{account}@example.org")
    assert code == 0 and [*box.iterdir()] == []
    assert out.count("To: pi-bio@example.org") == out.count("To: pi-lab@example.org") == 1
    assert "| lab | ann |" in out
    assert "2 mails, none sent; --send sends them" in err


def test_each_account_has_its_own_rows_alone(gandiva: Any, tmp_path: Path) -> None:
    box = sendmail(tmp_path)
    code, out, _ = gandiva("--mail", "pi-{account}@example.org", "--send")
    assert code == 0 and "sent to pi-bio@example.org" in out
    found = mails(box)
    assert {*found} == {"pi-bio@example.org", "pi-lab@example.org"}
    bio, lab = (found[f"pi-{name}@example.org"] for name in ("bio", "lab"))
    assert bio["Subject"] == "GPU time from 2026-11-16T00:00:00 to 2026-11-23T00:00:00: bio"
    assert bio["Auto-Submitted"] == "auto-generated"
    assert "| bio | cat |" in bio.get_content() and "lab" not in bio.get_content()
    assert "| lab | ann |" in lab.get_content() and "| lab | bob |" in lab.get_content()
    assert {path.read_text() for path in box.glob("*.words")} == {"-i -t\n"}


def test_a_name_with_a_line_in_it_makes_no_header(gandiva: Any, tmp_path: Path) -> None:
    box = sendmail(tmp_path)
    hostile = ["lab\nBcc: all@example.org", "-oQ/tmp", "a b", "x@example.com,y", ""]
    rows = [ROW | {"account": name} for name in hostile] + [OTHER]
    code, _, err = gandiva("--mail", "pi-{account}@example.org", "--send", rows=rows)
    assert code == 0 and [*mails(box)] == ["pi-bio@example.org"]
    assert err.count("can be no part of an address") == len(hostile)
    user = ROW | {"user": "ann\nBcc: all@example.org\n\n."}
    gandiva("--mail", "pi-{account}@example.org", "--send", rows=[user])
    assert mails(box)["pi-lab@example.org"]["Bcc"] is None


@pytest.mark.parametrize(
    "address", ["", "pi", "pi@", "-oQ@b.org", "pi@b.org,x@b.org", "{user}@b.org", "a@b.org\nBcc: c@b.org"]
)
def test_what_is_no_address_is_refused(gandiva: Any, address: str) -> None:
    code, out, err = gandiva("--mail", address)
    assert code == 2 and out == "" and "takes an address, as in pi-{account}@example.org" in err


@pytest.mark.parametrize(("words", "what"), [
    (["--send"], "name the address"), (["--mail", "a@b.org", "--csv"], "leave --csv and --json out"),
])
def test_what_does_not_go_together_is_refused(gandiva: Any, words: list[str], what: str) -> None:
    code, out, err = gandiva(*words)
    assert code == 2 and out == "" and what in err


def test_without_a_sendmail_nothing_is_said_to_be_sent(gandiva: Any) -> None:
    code, out, err = gandiva("--mail", "a@example.org", "--send")
    assert code != 0 and out == "" and "there is no sendmail here" in err


def test_what_sendmail_refuses_is_named_and_the_others_are_sent(gandiva: Any, tmp_path: Path) -> None:
    refuses = f"/bin/grep -q pi-bio {tmp_path}/box/$n.mail && {{ echo queue full >&2; exit 75; }}\nexit 0"
    box = sendmail(tmp_path, refuses)
    code, _, err = gandiva("--mail", "pi-{account}@example.org", "--send")
    assert code != 0 and "took 1 mails, not those of bio (queue full); next: -A bio" in err
    assert "pi-lab@example.org" in mails(box)


def test_a_sendmail_that_hangs_is_given_up(
    gandiva: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "never")
    sendmail(tmp_path, f"read line < {tmp_path}/never")
    monkeypatch.setattr(report_mail, "SEND_S", 0.5)
    code, _, err = gandiva("--mail", "a@example.org", "--send", rows=[OTHER])
    assert code != 0 and "timed out" in err
