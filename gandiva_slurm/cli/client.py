"""Asks the controller: one signed POST, one signed answer, within a deadline.

The same messages as `wire.http`, sent by http.client: loading aiohttp alone takes longer than a command may.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import pwd
from typing import Any

from gandiva_slurm.config_file import Peer, read_peer
from gandiva_slurm.model.errors import (
    AuthError,
    ConfigError,
    GandivaError,
    PeerError,
    SlurmUnreachable,
    UsageError,
)
from gandiva_slurm.wire.auth import MungeSigner, Signer

PATH = "/v1/query"
#: How long a user waits before he is told that the controller does not answer.
TIMEOUT_S = 5.0
#: Version of what --json prints and of the controller's answers.
VERSION = 1

_ERRORS: dict[int, type[GandivaError]] = {1: GandivaError, 2: UsageError, 3: SlurmUnreachable}


def query(config: str | None, ask: str, args: dict[str, Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Ask the controller named in gandiva.yaml; PeerError says what to do when it does not answer.

    A file that is wrong is told as such (ConfigError) when the question fails, not before.
    """
    try:
        peer = read_peer(config) or _checked(config)
        payload = json.dumps({"ask": ask, "args": args}).encode()
        return read_answer(exchange(peer, MungeSigner(peer.munge_socket), payload, timeout_s))
    except (AuthError, PeerError):
        _checked(config)
        raise


def _checked(config: str | None) -> Peer:
    """Read and check all of the file; ConfigError names what is wrong in it."""
    from gandiva_slurm.config import load_config  # takes as long to load as a command may

    told = load_config(config)
    where = told.controller
    return Peer(where.host, where.port, where.slurm_user, told.munge_socket)


def exchange(peer: Peer, signer: Signer, payload: bytes, timeout_s: float = TIMEOUT_S) -> bytes:
    """Send a signed payload, check who signed the answer and that it answers this request."""
    request = signer.sign(PATH.encode() + b"\n" + payload)
    status, body = _post(peer, request, timeout_s)
    where = f"{peer.host}:{peer.port}"
    if status != 200:
        kind = AuthError if status in (401, 403) else PeerError
        raise kind(f"gandivactld at {where} refused: {body[:500].decode(errors='replace')}")
    answer, uid = signer.verify(body)
    if uid not in (0, _uid(peer.slurm_user)):
        raise AuthError(f"{where} answered as uid {uid}, not as {peer.slurm_user}; refused")
    digest, _, answer = answer.partition(b"\n")
    if digest != hashlib.sha256(request).hexdigest().encode():
        raise AuthError(f"{where} answered another request; refused")
    return answer


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as err:
        text = f"controller.slurm_user: no user {user!r} on this host"
        raise ConfigError(f"{text}; name the user slurmctld runs as (SlurmUser in slurm.conf)") from err


def _post(peer: Peer, request: bytes, timeout_s: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(peer.host, peer.port, timeout=timeout_s)
    try:
        connection.request("POST", PATH, body=request, headers={"Content-Type": "application/octet-stream"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as err:
        reason = "timed out" if isinstance(err, TimeoutError) else err
        raise PeerError(
            f"gandivactld does not answer at {peer.host}:{peer.port} ({reason}); jobs go on without it: "
            f"see its log there (`journalctl -u gandivactld`), or name another gandiva.yaml with -f"
        ) from err
    finally:
        connection.close()


def read_answer(body: bytes) -> Any:
    """Return the data of an answer, or raise the error it carries."""
    try:
        answer = json.loads(body)
        if answer["version"] != VERSION:
            raise PeerError(
                f"gandivactld speaks version {answer['version']}, not {VERSION}; update the older"
            )
        if answer["ok"]:
            return answer["data"]
        raise _ERRORS.get(answer.get("exit", 1), GandivaError)(answer["error"])
    except (ValueError, KeyError, TypeError) as err:
        raise PeerError("what listens there does not answer like gandivactld; is the port right?") from err


def to_json(data: dict[str, Any]) -> str:
    """Write what --json prints."""
    return json.dumps({"version": VERSION, **data}, indent=2)
