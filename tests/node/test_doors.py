"""Who may speak on the node's socket, and what becomes of everybody else."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests import patience
from tests.node.harness import DEADLINE_S, HERE, NODES, a_planned_job, is_still, tree, uid_of

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]
#: Opens 300 connections to a socket without waiting, says how many, and keeps them until its input ends.
CROWD = """
use Socket; use Fcntl; $| = 1; my @crowd;
for (1 .. 300) {
    socket(my $link, PF_UNIX, SOCK_STREAM, 0) or die; fcntl($link, F_SETFL, O_NONBLOCK);
    connect($link, pack_sockaddr_un($ARGV[0])) or last; push @crowd, $link;
    select(undef, undef, undef, 0.001);
}
print scalar(@crowd), "\n"; my $end = <STDIN>;
"""
#: A slurmstepd whose one task has not begun: it waits until its input ends.
WAITING = """
use Socket; socket(my $door, PF_UNIX, SOCK_STREAM, 0); bind($door, pack_sockaddr_un($ARGV[1])) or die;
$0 = "slurmstepd: [81.batch]"; $| = 1;
if (!fork) { POSIX::setuid($ARGV[0]); print "waits\n"; my $end = <STDIN>; exit } wait;
"""
#: A planned job's user whom no task runs as.
NOBODYS_UID = 61009
#: What a task needs that nobody has bound.
UNBOUND = {"GANDIVA_JOB": "0", "CUDA_VISIBLE_DEVICES": ""}
HELLO = {"hello": 1, "rank": 0, "world": 1, "master": "", "kind": 3}


def ask(node, line: bytes) -> bytes:
    """What the socket answers to this process, which belongs to no job."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(DEADLINE_S)
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
        link.settimeout(DEADLINE_S)
        link.connect(node.settings["socket"])
        assert link.recv(1) == b""


def test_another_users_task_is_not_bound_to_the_job(node):
    node.plan(replace(a_planned_job(2, "user1", (0,)), uid=NOBODYS_UID))
    node.start_job(2, LOOP, user="user1")
    node.wait(lambda: "uid" in (node.out / "2.0.batch.log").read_text())
    assert node.report().residents == ()


def test_only_root_may_connect_where_tasks_are_told_of(node):
    path = node.settings["socket"] + ".root"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    program = "socket(my $l, PF_UNIX, SOCK_STREAM, 0); exit(!connect($l, pack_sockaddr_un(@ARGV)))"
    words = ["perl", "-MSocket", "-e", program, path]
    assert subprocess.run(words, check=False).returncode == 0
    others = ["setpriv", "--reuid", str(NOBODYS_UID), "--clear-groups", *words]
    assert subprocess.run(others, check=False).returncode == 1


def test_a_task_of_an_older_plugin_is_bound_over_the_socket_of_all(node):
    node.start_job(1, LOOP, env={"GANDIVA_ROOT_SOCKET": ""})
    node.wait(lambda: node.resident(1).ranks == 1)


def test_a_task_that_comes_before_any_plan_is_bound_when_one_has_come(make_node):
    node = make_node(gpus=1)
    node.start_job(1, LOOP, user="user1")
    node.wait(lambda: "no plan has reached this node yet" in node.log())
    assert not (node.out / "bind.1").exists(), "it waits"
    node.plan(a_planned_job(1, "user1", (0,)))
    node.wait(lambda: node.resident(1).ranks == 1)
    assert (node.out / "bind.1").read_text().split()[1] == "OK"


def test_a_rank_of_a_job_that_nobody_planned_runs_on_unmanaged(node):
    node.start_job(3, LOOP, user="user1", bind=False, env=UNBOUND)
    node.wait(lambda: "is not registered" in (node.out / "3.0.batch.log").read_text())
    assert node.report().residents == ()


def test_a_planned_job_that_was_never_bound_is_charged_and_takes_turns(make_node):
    node = make_node(gpus=1, client_wait_ns=300_000_000)
    node.plan(a_planned_job(1, "user1", (0,)))
    step = node.start_job(1, [*LOOP, "none"], bind=False, env=UNBOUND)
    node.wait(lambda: node.resident(1).state == "RUNNING", 30)
    node.plan(a_planned_job(2, "user2", (0,)))
    node.start_job(2, LOOP)
    node.wait(lambda: len(node.events("freeze", 1)) + len(node.events("parked", 1)) >= 3)
    node.wait(lambda: node.states()[1] == "SUSPENDED" and is_still(tree(step.pid)[-1]))
    holds = [hold for hold in node.report().holds if hold.job_id == 1]
    assert sum((hold.t1_ns or node.report().now_ns) - hold.t0_ns for hold in holds) > 500_000_000
    node.kill_job(1)
    node.wait(lambda: set(node.states()) == {2})


def test_a_task_that_waits_is_not_taken_for_one_that_was_not_bound(make_node):
    """A slurmstepd's child is called as it is until it becomes the task."""
    node = make_node(gpus=1)
    words = ["perl", "-MPOSIX", "-e", WAITING, str(uid_of("user1")), f"{node.base}/{node.name}_81.batch"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "waits\n"
        node.plan(a_planned_job(81, "user1", (0,)), a_planned_job(2, "user1", (0,)))
        node.start_job(2, LOOP, bind=False, env=UNBOUND)
        node.wait(lambda: node.resident(2))
        assert set(node.states()) == {2}
    finally:
        process.communicate("")


def test_a_job_of_another_node_on_this_host_is_not_taken_in(make_node):
    node, other = make_node(gpus=1), make_node(gpus=1, name=NODES[1])
    for each in (node, other):
        each.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user1", (0,)))
    other.start_job(1, [*LOOP, "none"], bind=False, env=UNBOUND)
    node.start_job(2, [*LOOP, "none"], bind=False, env=UNBOUND)
    node.wait(lambda: node.resident(2) and other.resident(1))
    assert (set(node.states()), set(other.states())) == ({2}, {1})


def test_a_crowd_of_connections_does_not_keep_others_out(node):
    """One user's idle connections: perl, for it is readable to him wherever the clone lies."""
    words = ["setpriv", "--reuid", str(NOBODYS_UID), "--clear-groups", "perl", "-e", CROWD]
    crowd = subprocess.Popen(
        [*words, node.settings["socket"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert int(crowd.stdout.readline()) > 100
        node.start_job(1, LOOP)
        node.wait(lambda: node.resident(1).ranks == 1)
    finally:
        crowd.communicate("")


def test_an_idle_node_costs_next_to_no_time_of_the_host(node):
    """It wakes about eleven times a second, however fast the machine is, and does not spin."""
    node.start_job(1, LOOP)
    node.wait(lambda: node.resident(1).ranks == 1)
    before, begin = (wakes(node.daemon.pid), cpu_s(node.daemon.pid)), time.monotonic()
    steps = len((node.out / "steps.1.0").read_bytes())
    node.wait(lambda: len((node.out / "steps.1.0").read_bytes()) > steps + 16 * 500)
    took_s = time.monotonic() - begin
    assert (wakes(node.daemon.pid) - before[0]) / took_s < 40
    assert (cpu_s(node.daemon.pid) - before[1]) / took_s < min(0.8, 0.3 * patience.slowness())


def wakes(pid: int) -> int:
    """How often a process has waited for something so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
