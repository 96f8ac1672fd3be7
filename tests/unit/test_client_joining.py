"""A rank and the node's socket: what it does where nobody, or nothing of sense, answers."""

import gc
import itertools
import os
import socket
import threading
import time

import pytest

from gandiva_slurm.client import join, notice
from gandiva_slurm.client import rank as rank_module
from gandiva_slurm.client.rank import JOIN_AGAIN_NS, JOIN_LONGEST_NS, JOIN_TRIES, Rank
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.pages import Page
from gandiva_slurm.wire import page
from tests.park_harness import Harness


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(notice, "_said", set())


def test_dead_socket_is_tried_again_seldom_and_not_for_ever(tmp_path, monkeypatch, capsys):
    now = [0]
    tried = []
    monkeypatch.setattr(rank_module, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(rank_module, "hello", lambda *args: tried.append(now[0]) or {})
    rank = Rank(str(tmp_path / "nobody.sock"))
    for _ in range(60 * JOIN_TRIES):
        for _ in range(5):
            rank.boundary()
        now[0] += JOIN_AGAIN_NS // 2 + 1
    assert len(tried) == JOIN_TRIES
    waits = [later - earlier for earlier, later in itertools.pairwise(tried)]
    least = [min(JOIN_AGAIN_NS << number, JOIN_LONGEST_NS) for number in range(JOIN_TRIES - 1)]
    assert all(wait >= at_least for wait, at_least in zip(waits, least, strict=True))
    assert max(waits) <= 1.1 * JOIN_LONGEST_NS
    assert rank.seq == 300 * JOIN_TRIES and rank.words[page.W_AT] == page.NEVER
    said = capsys.readouterr().err
    assert said.count("gandiva:") == 1 and "nobody.sock" in said and "training goes on" in said


def test_refusal_is_told_once(tmp_path, capsys):
    harness = Harness(str(tmp_path / "node.sock"), 1, {"ok": False, "why": "job 5 is not Gandiva's"})
    server = threading.Thread(target=harness.accept_one, daemon=True)
    server.start()
    rank = Rank(str(tmp_path / "node.sock"))
    for _ in range(3):
        rank.boundary()
    assert rank.seq == 3 and rank.stop is None
    assert capsys.readouterr().err.count("job 5 is not Gandiva's") == 1
    harness.close()


def test_silent_node_costs_one_second(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_module, "monotonic_ns", lambda: 0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "node.sock"))
        listener.listen()
        rank = Rank(str(tmp_path / "node.sock"))
        start = time.monotonic()
        rank.boundary()
        rank.boundary()
        assert 0.9 < time.monotonic() - start < 15
        listener.setblocking(False)
        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("answer", [b"", b"not json\n", b"{}\n", b'{"ok": true}\n', b"x" * 5000])
def test_nonsense_from_the_node_is_no_page(tmp_path, answer, capsys):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "node.sock"))
        listener.listen()

        def serve():
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                link.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        rank = Rank(str(tmp_path / "node.sock"))
        rank.boundary()
        assert rank.stop is None and rank.seq == 1
        assert capsys.readouterr().err.startswith("gandiva: gandivad ")


def test_node_that_hangs_up_costs_no_descriptor(tmp_path, monkeypatch):
    path, made = str(tmp_path / "node.sock"), Page.make(JobKey(5, 0), 0, 1, 0)
    take = join._map
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve():
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                socket.send_fds(link, [b'{"ok": true}\n'], [made.fd])

        server = threading.Thread(target=serve, daemon=True)
        monkeypatch.setattr(join, "_map", lambda answer, fd: server.join(10) or take(answer, fd))
        gc.collect()  # what other tests have left to close
        before = set(os.listdir("/proc/self/fd"))
        server.start()
        with pytest.raises(join.NotJoined, match="Broken pipe"):
            join.join(path, {})
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before) - 1, "the listener's alone is gone"
    made.close()


@pytest.mark.parametrize("is_taken_in", [True, False])
def test_a_rank_that_its_node_has_not_taken_in_says_hello_again(tmp_path, is_taken_in):
    """A gandivad that is killed between the page and its books knows of no rank, and would never park it."""
    path, made = str(tmp_path / "node.sock"), Page.make(JobKey(5, 0), 0, 1, 0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve():
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                socket.send_fds(link, [b'{"ok": true, "confirms": true}\n'], [made.fd])
                link.recv(4096)
                link.sendall(b'{"seated": true}\n' if is_taken_in else b"")

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        rank = Rank(path)
        rank.boundary()
        server.join(10)
    assert (rank.stop is not None) == is_taken_in
    assert (rank._again_ns > time.monotonic_ns()) == (not is_taken_in)
    made.close()
