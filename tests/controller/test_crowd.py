"""gandivactld beside connections that say nothing, say it slowly, or talk nonsense."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path

import pytest

from gandiva_slurm.wire.door import SPARE
from tests import crowd, patience
from tests.crowd import until

#: What a query may take beside a crowd, on a quiet machine.
SOON_S = 2.0


@pytest.fixture
def daemon(conf, start, munged):
    """A running gandivactld and its port."""
    daemon = start(conf(munged))
    daemon.ask()
    return daemon


def port_of(daemon) -> int:
    return int(Path(daemon.conf).read_text().split("  port: ")[1].split()[0])


def took_s(daemon) -> float:
    """How long a query takes now."""
    begin_s = time.monotonic()
    assert daemon.ask("queue") == []
    return time.monotonic() - begin_s


def errors_of(daemon) -> list[str]:
    return [line for line in daemon.text.splitlines() if "Traceback" in line or "error:" in line]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_a_crowd_that_says_nothing_keeps_nobody_out_and_is_shown_out(daemon, address):
    with crowd.silent(port_of(daemon), address=address) as links:
        assert took_s(daemon) < SOON_S * patience.slowness()
        assert crowd.descriptors(daemon.process.pid) < 1024
        until(lambda: crowd.closed(links) == len(links), 20)
    assert not errors_of(daemon)


def test_a_crowd_is_no_trouble_for_a_daemon_of_few_descriptors(conf, start, munged):
    daemon = start(conf(munged), files="200:200")
    daemon.ask()
    with crowd.silent(port_of(daemon), 600) as links:
        assert took_s(daemon) < SOON_S * patience.slowness()
        until(lambda: crowd.closed(links) == len(links), 20)
    assert "may open 200 files" in daemon.text and "LimitNOFILE" in daemon.text
    assert not errors_of(daemon)


def test_it_takes_as_many_descriptors_as_it_may_have(conf, start, munged):
    daemon = start(conf(munged), files="1024:8192")
    daemon.ask()
    soft, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
    assert (soft, hard) == (8192, 8192)
    assert "LimitNOFILE" not in daemon.text


def test_a_head_that_comes_by_the_byte_is_not_waited_for(daemon):
    head = iter(b"POST /v1/query HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10_000)
    with socket.create_connection(("127.0.0.1", port_of(daemon))) as link:
        link.settimeout(0.2)
        end_s = patience.deadline(20)
        while not drips(link, next(head)):
            assert time.monotonic() < end_s, "it still listens"


def drips(link: socket.socket, byte: int) -> bool:
    """Send one byte; True when the other end has enough."""
    try:
        link.sendall(bytes([byte]))
        return link.recv(1000) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


NONSENSE = [
    b"\x16\x03\x01\x00\xff\r\n\r\n",
    b"GET\r\n\r\n",
    b"POST /v1/query HTTP/1.1\r\nContent-Length: nine\r\n\r\n",
    b"POST /v1/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\njunk",
    b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\njunk",
    b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\njunk",
    b"POST /v1/elsewhere HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b"DELETE /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b"POST /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
]


def test_nonsense_is_a_line_a_kind_and_never_a_traceback(daemon):
    for said in NONSENSE * 20:
        with socket.create_connection(("127.0.0.1", port_of(daemon))) as link:
            link.settimeout(crowd.DEADLINE_S)
            link.sendall(said)
            link.shutdown(socket.SHUT_WR)
            try:
                while link.recv(1000):
                    pass
            except ConnectionResetError:
                continue
    assert daemon.ask("queue") == []
    about = [line for line in daemon.text.splitlines() if "127.0.0.1" in line]
    assert 0 < len(about) <= len(NONSENSE)
    assert "Traceback" not in daemon.text


def test_without_descriptors_left_it_waits_for_some(daemon):
    pid = daemon.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = crowd.highest_descriptor(pid)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + SPARE, before[1]))
    with crowd.silent(port_of(daemon), 2 * SPARE):
        until(lambda: "no more connections" in daemon.text)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert daemon.ask("queue") == []
    assert "Traceback" not in daemon.text
