"""Becoming a rank: say hello to the node over its socket, get the control page, keep its descriptor.

Everything has a deadline of one second, and of one more until the node has taken the rank in; the caller goes
on without Gandiva when it passes.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import time
from typing import Any, Dict, NamedTuple, Tuple

from gandiva_slurm.wire.page import MAGIC, PAGE_BYTES, VERSION, W_MAGIC, W_VERSION

#: The whole exchange takes at most this long.
JOIN_S = 1.0
#: Longest answer a node gives.
_ANSWER_BYTES = 4096


class NotJoined(Exception):
    """The node did not give a page; the text says why. Never leaves the client."""


class Page(NamedTuple):
    """A mapped page: its words, the node's answer, and the descriptor by which gandivad can take it back."""

    words: memoryview
    answer: Dict[str, Any]
    fd: int


def join(path: str, message: Dict[str, Any]) -> Page:
    """Exchange hellos on the socket at `path` and map the page; NotJoined says why not."""
    deadline = time.monotonic() + JOIN_S
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
            _connect(link, path, deadline)
            link.sendall(_line(message))
            answer, fd = _receive(link, deadline)
            page = _map(answer, fd)
            try:
                link.sendall(_line({"page_fd": fd}))
                if answer.get("confirms"):
                    _wait_seated(link, time.monotonic() + JOIN_S)
            except BaseException:
                os.close(fd)
                raise
            return page
    except (OSError, ValueError) as err:
        raise NotJoined(f"gandivad does not answer at {path} ({err})") from err


def _line(message: Dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _connect(link: socket.socket, path: str, deadline: float) -> None:
    while True:
        link.settimeout(_left(deadline))
        try:
            return link.connect(path)
        except BlockingIOError:
            # Many ranks start at once and the node's backlog is full.
            time.sleep(0.01)


def _receive(link: socket.socket, deadline: float) -> Tuple[Dict[str, Any], int]:
    data, fd = b"", -1
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    try:
        while not data.endswith(b"\n"):
            link.settimeout(_left(deadline))
            chunk, extras, _, _ = link.recvmsg(_ANSWER_BYTES, room, socket.MSG_CMSG_CLOEXEC)
            for level, kind, payload in extras:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and fd < 0:
                    fd = array.array("i", payload[: array.array("i").itemsize])[0]
            data += chunk
            if not chunk or len(data) > _ANSWER_BYTES:
                raise ValueError("it closed the connection" if not chunk else "its answer has no end")
        return json.loads(data), fd
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise


def _wait_seated(link: socket.socket, deadline: float) -> None:
    """Wait until the node has this rank in its books: one that is killed before that knows of none."""
    link.settimeout(_left(deadline))
    if not link.recv(_ANSWER_BYTES):
        raise ValueError("it gave a page and was gone before it took this rank in")


def _map(answer: Dict[str, Any], fd: int) -> Page:
    if not answer.get("ok"):
        raise NotJoined(f"gandivad does not manage this process: {answer.get('why', 'no reason given')}")
    if fd < 0:
        raise NotJoined("gandivad sent no control page; is it of another version?")
    try:
        words = memoryview(mmap.mmap(fd, PAGE_BYTES)).cast("Q")
        if words[W_MAGIC] != MAGIC or words[W_VERSION] != VERSION:
            raise NotJoined(f"gandivad has page version {words[W_VERSION]}, not {VERSION}: update one of us")
    except BaseException:
        os.close(fd)
        raise
    return Page(words, answer, fd)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ValueError(f"no answer within {JOIN_S:g} s")
    return left
