"""The socket of `gandiva forecast`: whom it lets in, and what its children may cost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.cli import forecast_door
from gandiva_slurm.controller.foretold import MOST_QUESTION, SOCKET_NAME
from gandiva_slurm.controller.what_if import WhatIf
from gandiva_slurm.model.errors import GandivaError
from tests import patience
from tests.skips import NO_ROOT

#: Answers with what it was asked; "slow", "long", "wrong" and "die" by doing that.
SERVES = """
import os, sys, time
from pathlib import Path
from gandiva_slurm.cli import forecast_door
forecast_door.DEADLINE_S = float(sys.argv[2])
def answer(text):
    word = text.strip()
    if word == "slow":
        time.sleep(600)
    if word == "busy":
        while True: pass
    if word == "wrong":
        raise ValueError(word)
    if word == "die":
        os.kill(os.getpid(), 9)
    return {"asked": word, "pid": os.getpid()}
door = forecast_door.Door(Path(sys.argv[1]), answer)
while True:
    door.answer_for(600)
"""

Serve = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """serve(deadline_s): a process that listens in tmp_path."""
    made = []

    def _serve(deadline_s: float = 60.0) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", SERVES, str(tmp_path), str(deadline_s)]
        made.append(subprocess.Popen(words, start_new_session=True))
        end_s = patience.deadline(30)
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                connect(tmp_path).close()
                return made[-1]
            time.sleep(0.02)
        raise AssertionError("it does not listen")

    yield _serve
    for process in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def connect(folder: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(patience.slowness() * 20)
    link.connect(str(folder / SOCKET_NAME))
    return link


def asked(folder: Path, text: bytes) -> bytes:
    with connect(folder) as link, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        link.sendall(text)
        link.shutdown(socket.SHUT_WR)
        with link.makefile("rb") as told:
            return told.read()
    return b""


def test_each_question_has_a_child_of_its_own(serve: Serve, tmp_path: Path) -> None:
    process = serve()
    one, other = (json.loads(asked(tmp_path, b"hello\n")) for _ in range(2))
    assert one["asked"] == "hello" and len({one["pid"], other["pid"], process.pid}) == 3
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no end",
        b"\xff\xfe\n",
        b"x" * (MOST_QUESTION + 1),
        b"x" * (1 << 20) + b"\n",
        b"wrong\n",
        b"die\n",
    ],
)
def test_what_is_no_question_has_no_answer_and_the_next_has(
    serve: Serve, tmp_path: Path, text: bytes
) -> None:
    process = serve()
    for _ in range(forecast_door.MOST + 1):
        assert asked(tmp_path, text) == b""
    assert json.loads(asked(tmp_path, b"hello\n"))["asked"] == "hello" and process.poll() is None


@pytest.mark.parametrize("text", [b"", b"hel", b"slow\n", b"busy\n"])
def test_who_is_slow_is_ended_and_others_wait_no_longer_than_that(
    serve: Serve, tmp_path: Path, text: bytes
) -> None:
    serve(1.0)
    slow = [connect(tmp_path) for _ in range(2 * forecast_door.MOST)]
    for link in slow:
        link.sendall(text)
    end_s = patience.deadline(20)
    while not (told := asked(tmp_path, b"hello\n")):  # its own child has one second, too
        assert time.monotonic() < end_s
    assert json.loads(told)["asked"] == "hello"
    assert [link.recv(1) for link in slow[: forecast_door.MOST]] == [b""] * forecast_door.MOST
    for link in slow:
        link.close()


@pytest.mark.skipif(os.geteuid() != 0, reason=NO_ROOT)
def test_only_its_user_and_root_are_let_in(serve: Serve, tmp_path: Path) -> None:
    """By the kernel's word on who connects: the socket's mode is opened here for all."""
    serve()
    tmp_path.chmod(0o711)
    (tmp_path / SOCKET_NAME).chmod(0o666)
    code = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "link = socket.socket(socket.AF_UNIX)\nlink.connect(sys.argv[1])\n"
        "try:\n    link.sendall(b'hello\\n'); print(link.recv(100))\n"
        "except (BrokenPipeError, ConnectionResetError):\n    print(b'')"
    )
    words = ["/usr/bin/python3", "-c", code, SOCKET_NAME]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "b''\n"
    assert b"hello" in asked(tmp_path, b"hello\n")


def test_a_killed_one_leaves_a_socket_that_the_next_takes(serve: Serve, tmp_path: Path) -> None:
    killed = serve()
    killed.kill()
    killed.wait()  # until then it may still let the next question in, and never answer
    process = serve()
    assert b"hello" in asked(tmp_path, b"hello\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) != 0


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GandivaError, match="cannot listen"):
        forecast_door.Door(tmp_path / "none", lambda text: {})
    with pytest.raises(GandivaError, match="cannot listen"):
        forecast_door.Door(tmp_path / ("x" * 200), lambda text: {})


async def test_gandivactld_asks_there(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = WhatIf(Path("gandiva.yaml"), tmp_path, ("false",))
    with pytest.raises(GandivaError, match="see `gandiva forecast --once`"):  # by a child: nobody listens
        await asking.ask_new("gpus=2", 7, "gpu")
    process = serve()
    told = await asking.ask_new("gpus=2", 7, "gpu")
    assert json.loads(told["asked"]) == {
        "gpus": 2, "nodes": 1, "type": "", "limit": 0, "uid": 7, "partition": "gpu",
    }  # fmt: skip
    monkeypatch.setattr("gandiva_slurm.controller.what_if.NEW_S", 0.3)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(GandivaError, match=r"no answer within 0\.3 s"):
        await asking.ask_new("gpus=2", 7, "gpu")
    process.send_signal(signal.SIGCONT)
