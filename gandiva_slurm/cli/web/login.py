"""Who asks: the user a reverse proxy names in a header, believed by a secret, or by the unix socket."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from gandiva_slurm.cli.web.refusal import Refused
from gandiva_slurm.model.errors import ConfigError

#: The header with the secret that proxy and process share.
SECRET_HEADER = "X-Gandiva-Secret"
#: Fewer bytes can be guessed; more are another file.
LEAST_SECRET, MOST_SECRET = 16, 4096
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}\$?")


@dataclass(frozen=True)
class Login:
    """How a user is known. `secret` None: whatever can connect is the proxy."""

    header: str
    secret: bytes | None

    def user(self, headers: CIMultiDictProxy[str]) -> str:
        """Return the user's name; Refused (401) where the headers do not prove one."""
        if self.secret is not None and not _is_same(self.secret, headers.getall(SECRET_HEADER, [])):
            raise Refused(401, f"not from the proxy: {SECRET_HEADER} is missing or wrong; next: log in there")
        names = headers.getall(self.header, [])
        if len(names) != 1 or not _USER.fullmatch(names[0]):
            text = f"no user is named: the proxy has to set {self.header} itself, once, to a user's name"
            raise Refused(401, f"{text}; next: log in there")
        return names[0]


def _is_same(secret: bytes, given: list[str]) -> bool:
    """Compare in a time that does not depend on what is given."""
    text = given[0].encode(errors="surrogateescape") if len(given) == 1 else b""
    is_same = hmac.compare_digest(hashlib.sha256(secret).digest(), hashlib.sha256(text).digest())
    return is_same and len(given) == 1


def read_secret(path: str) -> bytes | None:
    """Return the secret of a file; None without a path. ConfigError: others may read it, or it is none."""
    if not path:
        return None
    where = f"web.secret_file: {path}"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            _require_private(where, os.fstat(file.fileno()))
            secret = file.read(MOST_SECRET + 1).strip()
    except OSError as err:
        raise ConfigError(f"{where}: {err.strerror}; next: docs/web.md, Set up") from err
    if not LEAST_SECRET <= len(secret) <= MOST_SECRET or b"\n" in secret:
        allowed = f"one line of {LEAST_SECRET} to {MOST_SECRET} bytes"
        raise ConfigError(f"{where}: expected {allowed}; next: openssl rand -hex 32 > {path}")
    return secret


def _require_private(where: str, status: os.stat_result) -> None:
    """ConfigError for a file that another user may read or write.

    A file of root's may be of root's group: systemd's LoadCredential= shows its list of who may read so.
    """
    others = 0o027 if (status.st_uid, status.st_gid) == (0, 0) else 0o077
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & others:
        raise ConfigError(f"{where}: others may read or replace it; next: chown it to this user, chmod 400")
