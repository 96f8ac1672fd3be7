"""Tokens of Slurm's at `gandiva web`: which are believed, and which files hold a key."""

from __future__ import annotations

import base64
import hmac
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gandiva_slurm.cli.web.login import SECRET_HEADER, Login, login_of
from gandiva_slurm.cli.web.refusal import Refused
from gandiva_slurm.cli.web.token import NAME_HEADER, TOKEN_HEADER, read_key
from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.sections import WebConfig

#: As `dd if=/dev/random bs=32 count=1` makes it: any bytes.
KEY = bytes(range(200, 232))
#: Times that each run, and each worker, has alike: 2023 and 2096.
EARLY_S, LATE_S = 1_700_000_000, 4_000_000_000
NOT_GIVEN = "not one that this cluster's Slurm has given; next: scontrol token"


def part(data: Any) -> str:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def forged(head: Any, claims: Any, key: bytes = KEY, digest: str = "sha256") -> str:
    """A token of these parts, signed by whatever is asked."""
    told = f"{part(head)}.{part(claims)}"
    return f"{told}.{part(hmac.new(key, told.encode(), digest).digest())}"


def claims(**more: Any) -> dict[str, Any]:
    """As slurmctld makes them."""
    return {"exp": LATE_S, "iat": EARLY_S, "sun": "ann"} | more


HEAD = {"alg": "HS256", "typ": "JWT"}
TOKEN = forged(HEAD, claims())


def asked(login: Login, *heads: tuple[str, str]) -> str:
    return login.user(CIMultiDictProxy(CIMultiDict(heads)))


LOGIN = Login("X-Remote-User", None, KEY, has_proxy=False)


def refused(*heads: tuple[str, str], login: Login = LOGIN) -> str:
    with pytest.raises(Refused) as told:
        asked(login, *heads)
    assert told.value.status == 401 and len(str(told.value)) < 200
    return str(told.value)


@pytest.mark.parametrize(
    "head", [(TOKEN_HEADER, TOKEN), ("x-slurm-user-token", TOKEN), ("Authorization", f"Bearer {TOKEN}"),
             ("Authorization", f"bearer  {TOKEN} ")],
)  # fmt: skip
def test_a_good_token_names_its_user(head: tuple[str, str]) -> None:
    assert asked(LOGIN, head) == "ann"
    assert asked(LOGIN, head, (NAME_HEADER, "ann")) == "ann"
    assert "names another user" in refused(head, (NAME_HEADER, "root"))


def test_a_token_of_the_library_and_other_claims_of_the_name() -> None:
    assert asked(LOGIN, (TOKEN_HEADER, jwt.encode(claims(), KEY, "HS256"))) == "ann"
    by_name = {"exp": time.time() + 60, "username": "bob"}
    assert asked(LOGIN, (TOKEN_HEADER, forged(HEAD, by_name))) == "bob"
    assert asked(LOGIN, (TOKEN_HEADER, forged(HEAD, claims(aud="slurm", username="ann")))) == "ann"


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (forged(HEAD, claims(exp=EARLY_S)), "has expired; next: scontrol token"),
        (forged(HEAD, claims(exp=-1)), "has expired"),
        (forged(HEAD, claims(), b"another key, of as many bytes 32"), NOT_GIVEN),
        (forged(HEAD, claims(), b""), NOT_GIVEN),
        (f"{part({'alg': 'none'})}.{part(claims())}.", NOT_GIVEN),
        (f"{part({'alg': 'None', 'typ': 'JWT'})}.{part(claims())}.", NOT_GIVEN),
        (forged({"alg": "none"}, claims()), NOT_GIVEN),
        (forged({"alg": "HS512"}, claims(), digest="sha512"), NOT_GIVEN),
        (forged({"alg": "HS384"}, claims(), digest="sha384"), NOT_GIVEN),
        (forged({"alg": "RS256"}, claims()), NOT_GIVEN),
        (forged({"typ": "JWT"}, claims()), NOT_GIVEN),
        (forged(HEAD | {"crit": ["b64"], "b64": False}, claims()), NOT_GIVEN),
        (forged(HEAD, {"sun": "ann", "iat": 1}), NOT_GIVEN),
        (forged(HEAD, claims(exp="soon")), NOT_GIVEN),
        (forged(HEAD, claims(exp=None)), NOT_GIVEN),
        (forged(HEAD, b'{"sun": "ann", "exp": 1e999}'), NOT_GIVEN),
        (forged(HEAD, claims(exp=[1])), NOT_GIVEN),
        (forged(HEAD, claims(nbf=LATE_S)), NOT_GIVEN),
        (forged(HEAD, claims(sun=None)), "names no user"),
        (forged(HEAD, claims(sun=["ann"])), "names no user"),
        (forged(HEAD, claims(username="root")), "names no user"),
        (forged(HEAD, claims(sun="")), "names no user"),
        (forged(HEAD, claims(sun="ann\nX-Remote-User: root")), "names no user"),
        (forged(HEAD, claims(sun="ann" * 100)), "names no user"),
        (forged(HEAD, [1]), NOT_GIVEN),
        (forged([1], claims()), NOT_GIVEN),
        (forged(HEAD, b"[" * 2000), NOT_GIVEN),
        (TOKEN[:-2], NOT_GIVEN),
        (TOKEN.partition(".")[0], NOT_GIVEN),
        (f"{TOKEN}.x", NOT_GIVEN),
        ("..", NOT_GIVEN),
        ("", NOT_GIVEN),
        ("\udcff", NOT_GIVEN),
        ("x" * 5000, "longer than 4096 characters"),
    ],
)
def test_what_is_no_token_of_slurms_is_refused(token: str, said: str) -> None:
    assert said in refused((TOKEN_HEADER, token))


def test_a_changed_name_is_refused() -> None:
    head, _, sign = TOKEN.split(".")
    assert NOT_GIVEN in refused((TOKEN_HEADER, f"{head}.{part(claims(sun='root'))}.{sign}"))


def test_several_tokens_are_refused() -> None:
    assert "more than one token" in refused((TOKEN_HEADER, TOKEN), (TOKEN_HEADER, TOKEN))
    assert "more than one token" in refused((TOKEN_HEADER, TOKEN), ("Authorization", f"Bearer {TOKEN}"))


def test_without_a_key_no_token_counts() -> None:
    proxied = Login("X-Remote-User", None)
    assert "no user is named" in refused((TOKEN_HEADER, TOKEN), login=proxied)
    assert asked(proxied, (TOKEN_HEADER, TOKEN), ("X-Remote-User", "bob")) == "bob"


def test_a_token_decides_beside_a_proxy_and_a_bad_one_is_no_way_round_it() -> None:
    both = Login("X-Remote-User", b"0123456789abcdef", KEY)
    proxied = (SECRET_HEADER, "0123456789abcdef"), ("X-Remote-User", "bob")
    assert asked(both, *proxied) == "bob"
    assert asked(both, ("Authorization", "Basic YTpi"), *proxied) == "bob"
    assert asked(both, (TOKEN_HEADER, TOKEN)) == asked(both, (TOKEN_HEADER, TOKEN), *proxied) == "ann"
    assert NOT_GIVEN in refused((TOKEN_HEADER, "x"), *proxied, login=both)
    assert "not from the proxy" in refused(("X-Remote-User", "bob"), login=both)


def test_on_a_port_without_a_secret_tokens_alone_count(tmp_path: Path) -> None:
    path = tmp_path / "jwt_hs256.key"
    path.write_bytes(KEY)
    path.chmod(0o400)
    port = login_of(WebConfig(listen="127.0.0.1:8321", jwt_key_file=str(path)))
    assert asked(port, (TOKEN_HEADER, TOKEN)) == "ann"
    assert "no token is shown" in refused(("X-Remote-User", "bob"), login=port)
    socket = login_of(WebConfig(listen="/run/web.sock", jwt_key_file=str(path)))
    assert asked(socket, ("X-Remote-User", "bob")) == "bob"


def test_a_key_is_what_the_file_has_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"\n" + KEY + b" \n")
    path.chmod(0o400)
    assert read_key(str(path)) == b"\n" + KEY + b" \n" and read_key("") is None


@pytest.mark.parametrize("data", [b"", b"x" * 31, b"x" * 5000, b"-----BEGIN PUBLIC KEY-----\n" + b"x" * 99])
def test_what_is_no_key_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    path.chmod(0o400)
    with pytest.raises(ConfigError, match=r"web\.jwt_key_file: .*expected Slurm's jwt_hs256.key, 32 to 4096"):
        read_key(str(path))


@pytest.mark.parametrize("mode", [0o404, 0o444, 0o420, 0o402, 0o666])
def test_a_key_that_others_may_read_or_replace_stops_the_start(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="others may read or replace it"):
        login_of(WebConfig(listen="/run/web.sock", jwt_key_file=str(path)))


def test_a_key_that_is_not_there_or_no_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"jwt_key_file: .*No such file"):
        read_key(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match="others may read or replace"):
        read_key(str(tmp_path / "fifo"))
    with pytest.raises(ConfigError, match="jwt_key_file: "):
        read_key(str(tmp_path))


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(ConfigError, match=r"pip install gandiva-slurm\[web\]"):
        read_key(str(tmp_path / "key"))
