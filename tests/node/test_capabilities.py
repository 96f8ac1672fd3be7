"""gandivad with the capabilities that its unit leaves it, and what it tells systemd."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests import crowd
from tests.node.harness import HERE, WITHOUT_GROUPS, a_planned_job
from tests.skips import NO_ROOT

ROOT = Path(__file__).parents[2]
NO_WAIT_NS = 300_000_000
LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
UNIT = (ROOT / "slurm_conf/systemd/gandivad.service").read_text()


def as_the_unit_has_it() -> list[str]:
    """Run a program with no other capabilities than gandivad's unit lists."""
    (words,) = re.findall(r"^CapabilityBoundingSet=(.+)$", UNIT, re.M)
    kept = ",".join(f"+{word.removeprefix('CAP_').lower()}" for word in words.split())
    return ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", "--no-new-privs"]


@pytest.mark.parametrize("around", [[], WITHOUT_GROUPS], ids=["groups", "signals"])
def test_the_capabilities_of_the_unit_are_enough(make_node, around):
    """A job is parked by its ranks' pages in turns, one without a client frozen or stopped, and let go."""
    node = make_node(gpus=1, client_wait_ns=NO_WAIT_NS, around=[*around, *as_the_unit_has_it()])
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, [*LOOP, "none"])
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(1).suspends >= 2 and node.resident(2).suspends >= 2)
    node.wait(lambda: node.resident(1).reason == "Frozen" and node.stands_still(1))
    status = Path(f"/proc/{node.daemon.pid}/status").read_text()
    assert re.search(r"^CapEff:\s+0*8000881024$", status, re.M), status
    assert os.getpriority(os.PRIO_PROCESS, node.daemon.pid) == -10
    assert "cannot" not in node.log() and "Traceback" not in node.log()


def test_a_daemon_started_anew_takes_its_ranks_over(make_node):
    node = make_node(gpus=1, around=as_the_unit_has_it())
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.start_job(2, LOOP)
    node.wait(lambda: node.resident(1).suspends >= 1 and node.resident(2).suspends >= 1)
    node.kill9()
    node.start()
    assert {job_id: node.resident(job_id).ranks for job_id in (1, 2)} == {1: 1, 2: 1}, node.log()


def test_what_a_strayed_process_says_of_itself_can_be_read(tmp_path):
    """Of a process outside its job's control groups it is known by its environment whose it is."""
    if os.geteuid() != 0:
        pytest.skip(NO_ROOT)
    away = ["setpriv", "--reuid", "61001", "--clear-groups", "cat"]
    with subprocess.Popen(away, env=os.environ | {"GANDIVA_JOB": "7"}, stdin=subprocess.PIPE) as strayed:
        told = Path(f"/proc/{strayed.pid}/status")
        crowd.until(lambda: "Uid:\t61001" in told.read_text() and "Name:\tcat" in told.read_text())
        reading = [*as_the_unit_has_it(), "cat", f"/proc/{strayed.pid}/environ"]
        words = subprocess.run(reading, capture_output=True, check=True).stdout.split(b"\0")
        strayed.stdin.close()
    assert b"GANDIVA_JOB=7" in words


def test_a_fenced_job_is_ended(make_node):
    node = make_node(gpus=1, quantum_s=3600, around=as_the_unit_has_it())
    node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    step = node.start_job(2, LOOP)
    node.wait(lambda: node.states()[2] == "SUSPENDED")
    node.plan(a_planned_job(1, "user1", (0,)), fence=[(2, 0)], forget=True)
    node.wait(lambda: 2 not in node.states() and step.poll() is not None)


def test_it_tells_systemd_that_it_serves_and_lives(make_node, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        node = make_node(gpus=1)
        assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        node.daemon.send_signal(signal.SIGSTOP)
        systemd.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(100):
                systemd.recv(100)
        node.daemon.send_signal(signal.SIGCONT)
