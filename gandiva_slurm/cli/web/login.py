"""Who asks: the user a reverse proxy names in a header, believed by a secret, or by the unix socket.

Or the user to whom Slurm has given the token that is shown (`token`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from gandiva_slurm.cli.web.files import read_private
from gandiva_slurm.cli.web.refusal import Refused
from gandiva_slurm.cli.web.token import read_key, token_of, user_of
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.sections import WebConfig

#: The header with the secret that proxy and process share.
SECRET_HEADER = "X-Gandiva-Secret"
#: Fewer bytes can be guessed; more are another file.
LEAST_SECRET, MOST_SECRET = 16, 4096
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}\$?")


@dataclass(frozen=True)
class Login:
    """How a user is known.

    `secret` None: whatever can connect is the proxy, where `has_proxy`. `key`: Slurm's, where tokens count.
    """

    header: str
    secret: bytes | None
    key: bytes | None = None
    has_proxy: bool = True

    def user(self, headers: CIMultiDictProxy[str]) -> str:
        """Return the user's name; Refused (401) where the headers do not prove one.

        A token that is shown decides, whatever the proxy says besides.
        """
        token = token_of(headers) if self.key is not None else None
        if self.key is not None and token is not None:
            return _user(user_of(token, self.key, headers), "the token names no user of a system's")
        if not self.has_proxy:
            raise Refused(401, "no token is shown; next: scontrol token, and send it as X-SLURM-USER-TOKEN")
        if self.secret is not None and not _is_same(self.secret, headers.getall(SECRET_HEADER, [])):
            raise Refused(401, f"not from the proxy: {SECRET_HEADER} is missing or wrong; next: log in there")
        names = headers.getall(self.header, [])
        text = f"no user is named: the proxy has to set {self.header} itself, once, to a user's name"
        return _user(names[0] if len(names) == 1 else "", f"{text}; next: log in there")


def login_of(settings: WebConfig) -> Login:
    """Return how users are known by gandiva.yaml; ConfigError: a file of it is not as it must be."""
    secret, key = read_secret(settings.secret_file), read_key(settings.jwt_key_file)
    has_proxy = secret is not None or settings.listen.startswith("/")
    return Login(settings.user_header, secret, key, has_proxy)


def _user(name: str, otherwise: str) -> str:
    """Return a name that a user may have; Refused (401) says what is wrong instead."""
    if not _USER.fullmatch(name):
        raise Refused(401, otherwise)
    return name


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
    secret = read_private(where, path, MOST_SECRET).strip()
    if not LEAST_SECRET <= len(secret) <= MOST_SECRET or b"\n" in secret:
        allowed = f"one line of {LEAST_SECRET} to {MOST_SECRET} bytes"
        raise ConfigError(f"{where}: expected {allowed}; next: openssl rand -hex 32 > {path}")
    return secret
