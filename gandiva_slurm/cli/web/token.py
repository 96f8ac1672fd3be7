"""Who asks, by a token of Slurm's (`scontrol token`, auth/jwt): HS256 with Slurm's own key, and nothing else.

Without a proxy a program, or a browser's user, shows what Slurm has given to that user.
"""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

from multidict import CIMultiDictProxy

from gandiva_slurm.cli.web.files import read_private
from gandiva_slurm.cli.web.refusal import Refused
from gandiva_slurm.model.errors import ConfigError

#: Where a token may stand, and the name that clients of slurmrestd send beside it.
TOKEN_HEADER, NAME_HEADER, BEARER = "X-SLURM-USER-TOKEN", "X-SLURM-USER-NAME", "bearer "
#: Slurm's key has the 32 bytes that HS256 asks for; more are another file.
LEAST_KEY, MOST_KEY = 32, 4096
#: A token of Slurm's has some 150 bytes.
MOST_TOKEN = 4096
#: The claims in which Slurm has the user's name.
CLAIMS = ("sun", "username")
NEXT = "next: scontrol token"


def read_key(path: str) -> bytes | None:
    """Return Slurm's key; None without a path. ConfigError: others may read it, or it is none."""
    if not path:
        return None
    where = f"web.jwt_key_file: {path}"
    _library()
    key = read_private(where, path, MOST_KEY)
    if not LEAST_KEY <= len(key) <= MOST_KEY or key.startswith(b"-----BEGIN"):
        allowed = f"Slurm's jwt_hs256.key, {LEAST_KEY} to {MOST_KEY} bytes"
        raise ConfigError(f"{where}: expected {allowed}; next: docs/web.md, Without a proxy")
    return key


def token_of(headers: CIMultiDictProxy[str]) -> str | None:
    """Return the token that a request shows; None: it shows none. Refused (401): it shows several."""
    found = [*headers.getall(TOKEN_HEADER, [])]
    for text in headers.getall("Authorization", []):
        if text[: len(BEARER)].lower() == BEARER:
            found.append(text[len(BEARER) :].strip())
    if len(found) > 1:
        raise Refused(401, f"more than one token: send it as {TOKEN_HEADER} or as Authorization, once")
    return found[0] if found else None


def user_of(token: str, key: bytes, headers: CIMultiDictProxy[str]) -> str:
    """Return the name in a token that is good now; Refused (401): it is not, or another is named besides."""
    jwt = _library()
    if len(token) > MOST_TOKEN:
        raise Refused(401, f"the token is longer than {MOST_TOKEN} characters; {NEXT}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            claims: dict[str, Any] = jwt.decode(
                token, key, algorithms=["HS256"], options={"require": ["exp"], "verify_aud": False}
            )
    except jwt.ExpiredSignatureError as err:
        raise Refused(401, f"the token has expired; {NEXT}") from err
    except Exception as err:  # whatever is in it, it is not a token of this cluster's
        raise Refused(401, f"the token is not one that this cluster's Slurm has given; {NEXT}") from err
    names = {claims[name] for name in CLAIMS if isinstance(claims.get(name), str)}
    if len(names) != 1:
        raise Refused(401, f"the token names no user; {NEXT}")
    user = str(names.pop())
    if any(name != user for name in headers.getall(NAME_HEADER, [])):
        raise Refused(401, f"{NAME_HEADER} names another user than the token; leave it out")
    return user


def _library() -> ModuleType:
    try:
        import jwt
    except ImportError as err:
        text = "web.jwt_key_file: PyJWT is not installed; next: pip install gandiva-slurm[web]"
        raise ConfigError(text) from err
    return jwt
