"""Who may speak on the node's socket, and what becomes of everybody else."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.node.harness import HERE, a_planned_job

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
#: A planned job's user whom no task runs as.
NOBODYS_UID = 61009
HELLO = {"hello": 1, "rank": 0, "world": 1, "master": "", "kind": 3}


def ask(node, line: bytes) -> bytes:
    """What the socket answers to this process, which belongs to no job."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(5)
        link.connect(node.settings["socket"])
        link.sendall(line)
        return link.recv(4096)


@pytest.fixture
def node(make_node):
    node = make_node(gpus=1)
    node.plan(a_planned_job(1, "user1", (0,)))
    return node


def test_strangers_and_nonsense_get_a_sentence_or_nothing(node):
    assert b"belongs to no Slurm job" in ask(node, json.dumps(HELLO).encode() + b"\n")
    assert ask(node, b"BIND 1 1 0 batch 0 - -\n").startswith(b"NO process")
    assert ask(node, b"BIND 9 1 0 batch 0 - -\n").startswith(b"NO not a BIND line")
    assert b"not JSON" in ask(node, b"GET / HTTP/1.0\r\n\r\n")
    assert b"is impossible" in ask(node, json.dumps(HELLO | {"rank": 3}).encode() + b"\n")
    assert ask(node, b"x" * 5000) == b""
    assert node.report().residents == ()


def test_a_silent_connection_is_closed(node):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(5)
        link.connect(node.settings["socket"])
        begin = time.monotonic()
        assert link.recv(1) == b""
        assert time.monotonic() - begin < 4


def test_another_users_task_is_not_bound_to_the_job(node):
    node.plan(replace(a_planned_job(2, "user1", (0,)), uid=NOBODYS_UID))
    node.start_job(2, LOOP, user="user1")
    node.wait(lambda: "uid" in (node.out / "2.0.batch.log").read_text())
    assert node.report().residents == ()


def test_a_rank_of_a_job_whose_task_was_not_bound_runs_on_unmanaged(node):
    node.start_job(1, LOOP, bind=False, env={"GANDIVA_JOB": "1", "CUDA_VISIBLE_DEVICES": ""})
    node.wait(lambda: "is not registered" in (node.out / "1.0.batch.log").read_text())
    assert node.report().residents == ()


def test_a_crowd_of_connections_does_not_keep_others_out(node):
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(300)]
    try:
        for link in crowd:
            link.setblocking(False)
            try:
                link.connect(node.settings["socket"])
            except BlockingIOError:
                break
        node.start_job(1, LOOP)
        node.wait(lambda: node.resident(1).ranks == 1)
    finally:
        for link in crowd:
            link.close()


def test_an_idle_node_costs_next_to_no_time_of_the_host(node):
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    before, begin = cpu_s(node.daemon.pid), time.monotonic()
    steps = len((node.out / "steps.1.0").read_bytes())
    node.wait(lambda: len((node.out / "steps.1.0").read_bytes()) > steps + 16 * 500)
    assert (cpu_s(node.daemon.pid) - before) / (time.monotonic() - begin) < 0.02


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
