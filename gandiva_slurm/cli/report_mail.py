"""`gandiva report --mail ADDRESS`: an account's rows as a mail to those who answer for it.

Nothing leaves without --send, which hands each mail to this machine's sendmail as the user that calls it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from email.message import EmailMessage

from gandiva_slurm.cli.table import Row
from gandiva_slurm.model.errors import UsageError

#: What is replaced by an account's name in the address.
PLACE = "{account}"
#: How long sendmail may take to queue one mail.
SEND_S = 60.0
#: Where sendmail lies, beside PATH: users' often has no sbin.
_SBIN = "/usr/sbin:/usr/lib"
_ADDRESS = re.compile(r"[A-Za-z0-9_+.{}][A-Za-z0-9_+.{}-]*@[A-Za-z0-9{}][A-Za-z0-9{}.-]*")
#: An account whose name is no such word makes no part of an address.
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def require_address(address: str) -> None:
    """UsageError: this is no address, or has something other than {account} in braces."""
    bare = address.replace(PLACE, "account")
    if not _ADDRESS.fullmatch(bare) or "{" in bare or "}" in bare:
        raise UsageError(f"--mail: got {address!r}, takes an address, as in pi-{PLACE}@example.org")


def accounts_of(rows: Iterable[Row]) -> tuple[list[str], list[str]]:
    """Return the accounts whose names can be part of an address, and the others."""
    names = sorted({str(row["account"]) for row in rows})
    good = [name for name in names if _WORD.fullmatch(name)]
    return good, [name for name in names if name not in good]


def message(address: str, account: str, lines: Sequence[str]) -> EmailMessage:
    """Return an account's mail; the first of the lines, a heading, is its subject."""
    made = EmailMessage()
    made["To"] = address.replace(PLACE, account)
    made["Subject"] = f"{lines[0].removeprefix('# ')}: {account}"
    # Answers by machine (away, full) are not to come back.
    made["Auto-Submitted"] = "auto-generated"
    made.set_content("\n".join(lines) + "\n")
    return made


def send(mails: dict[str, EmailMessage]) -> None:
    """Hand each account's mail to sendmail; UsageError names the accounts whose mail it did not take."""
    program = shutil.which("sendmail") or shutil.which("sendmail", path=_SBIN)
    if program is None:
        raise UsageError("--send: there is no sendmail here; next: install one, or run it where mail is sent")
    failed = {}
    for account, mail in mails.items():
        try:
            subprocess.run(
                [program, "-i", "-t"], input=mail.as_bytes(), capture_output=True, timeout=SEND_S, check=True
            )
        except subprocess.CalledProcessError as err:
            failed[account] = err.stderr.decode(errors="replace").strip()[:200] or f"status {err.returncode}"
        except (OSError, subprocess.TimeoutExpired) as err:
            failed[account] = str(err)
    if failed:
        names, why = ",".join(failed), next(iter(failed.values()))
        taken = f"{program} took {len(mails) - len(failed)} mails"
        raise UsageError(f"--send: {taken}, not those of {names} ({why}); next: -A {names}")
