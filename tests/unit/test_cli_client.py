"""The command's own client against the wire's server: they must speak the same protocol."""

import asyncio
import json
import os
import pwd
from pathlib import Path

import pytest

from gandiva_slurm.cli import client
from gandiva_slurm.config import ControllerConfig
from gandiva_slurm.config_file import Peer, read_peer
from gandiva_slurm.model.errors import (
    AuthError,
    ConfigError,
    GandivaError,
    PeerError,
    SlurmUnreachable,
    UsageError,
)
from gandiva_slurm.wire import http
from gandiva_slurm.wire.door import open_door
from tests.controller.plain_signer import PlainSigner
from tests.ports import free_port

ME = pwd.getpwuid(os.getuid()).pw_name


def peer(port: int) -> Peer:
    return Peer("127.0.0.1", port, ME)


async def ask(port: int, server: PlainSigner, timeout_s: float = 5.0, wait_s: float = 0.0) -> bytes:
    async def handler(payload: bytes, uid: int) -> bytes:
        await asyncio.sleep(wait_s)
        return b"%d " % uid + payload

    route = http.signed_route(server, lambda uid: uid < 5000, handler)
    runner = await open_door({client.PATH: route}, "127.0.0.1", port)
    mine = PlainSigner(1001 if server.uid != 5001 else 5001)
    try:
        return await asyncio.to_thread(client.exchange, peer(port), mine, b"hello", timeout_s)
    finally:
        await runner.cleanup()


async def test_question_is_answered() -> None:
    assert await ask(free_port(), PlainSigner(os.getuid())) == b"1001 hello"


async def test_answer_of_another_user_is_refused() -> None:
    with pytest.raises(AuthError, match=f"not as {ME}"):
        await ask(free_port(), PlainSigner(4242))


async def test_refusal_comes_with_its_sentence() -> None:
    with pytest.raises(AuthError, match="refused: uid 5001 may not call"):
        await ask(free_port(), PlainSigner(5001))


async def test_slow_controller_is_an_error_with_a_next_step() -> None:
    with pytest.raises(PeerError, match=r"timed out.*journalctl"):
        await ask(free_port(), PlainSigner(os.getuid()), timeout_s=0.2, wait_s=1.0)


def test_nobody_there_is_an_error_with_a_next_step() -> None:
    with pytest.raises(PeerError, match=r"does not answer at 127.0.0.1:.*jobs go on without it"):
        client.exchange(peer(free_port()), PlainSigner(0), b"hello")


class Replayer(PlainSigner):
    """Signs an answer to some other request."""

    def sign(self, payload: bytes) -> bytes:
        return super().sign(b"0" * 64 + payload[64:])


async def test_answer_to_another_request_is_refused() -> None:
    with pytest.raises(AuthError, match="another request"):
        await ask(free_port(), Replayer(os.getuid()))


@pytest.mark.parametrize(("exit_code", "kind"), [(1, GandivaError), (2, UsageError), (3, SlurmUnreachable)])
def test_errors_of_the_controller_keep_their_exit_code(exit_code: int, kind: type[GandivaError]) -> None:
    body = json.dumps({"version": 1, "ok": False, "error": "no job 7", "exit": exit_code}).encode()
    with pytest.raises(kind, match="no job 7") as caught:
        client.read_answer(body)
    assert caught.value.exit_code == exit_code


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"version": 1}', b'{"version": 9, "ok": true}'])
def test_an_answer_that_is_not_ours_is_an_error(body: bytes) -> None:
    with pytest.raises(PeerError):
        client.read_answer(body)


def test_json_carries_its_version() -> None:
    assert json.loads(client.to_json({"jobs": []})) == {"version": 1, "jobs": []}


def gandiva_yaml(folder: Path, text: str) -> str:
    path = folder / "gandiva.yaml"
    path.write_text(text)
    return str(path)


def test_a_question_reads_what_it_needs_of_gandiva_yaml(tmp_path: Path) -> None:
    text = "controller: {host: head, port: 7, slurm_user: ann}\nmunge_socket: /run/m"
    assert read_peer(gandiva_yaml(tmp_path, text)) == Peer("head", 7, "ann", "/run/m")
    told = ControllerConfig(host="head")
    assert read_peer(gandiva_yaml(tmp_path, "controller: {host: head}")) == Peer(
        "head", told.port, told.slurm_user
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "controller: x", "controller: {port: 5}", "controller: {host: 5}",
        "controller: {host: [a]}", "controller: {host: a, port: x}", "controller: {host: a, port: 0}",
        "controller: {host: a, port: true}",
        "controller: {host: a, slurm_user: 5}", "controller: {host: a}\nmunge_socket: []", "a: [", "a: *b",
        "a: 2026-13-13", "{[a]: b}",
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_is_named_by_the_check_of_all(tmp_path: Path, text: str) -> None:
    file = gandiva_yaml(tmp_path, text)
    assert read_peer(file) is None
    with pytest.raises(ConfigError, match=str(tmp_path)):
        client.query(file, "ping", {})


def test_a_question_that_fails_names_what_is_wrong_in_gandiva_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it fails: where gandivactld answers all the same, there is an answer."""
    monkeypatch.setattr(client, "MungeSigner", lambda socket: PlainSigner(0))
    whole = f"cluster: mini\npartitions: [gandiva]\ncontroller: {{host: 127.0.0.1, port: {free_port()}}}\n"
    with pytest.raises(PeerError, match="does not answer"):
        client.query(gandiva_yaml(tmp_path, whole), "ping", {})
    wrong = gandiva_yaml(tmp_path, whole + "quantum_s: never\n")
    with pytest.raises(ConfigError, match=r"gandiva.yaml:4: quantum_s"):
        client.query(wrong, "ping", {})
    answer = b'{"version": 1, "ok": true, "data": 7}'
    monkeypatch.setattr(client, "exchange", lambda *args: answer)
    assert client.query(wrong, "ping", {}) == 7
