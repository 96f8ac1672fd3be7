"""What gandivad does for a job of thousands of processes, and on a node that has thousands of others.

Two jobs without a client take turns of a second; the daemon is asked for a report twenty times a second, as
nothing else shows for how long its loop is busy. Needs root.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.node.harness import HERE, NodeHarness, a_planned_job
from tests.skips import NO_ROOT

SECONDS = 20
FAMILY = str(HERE / "scripts/family.py")
#: Perl, for its processes are small.
OTHERS = "for (1 .. {}) { if (fork() == 0) { sleep 600; exit } } $| = 1; print qq(all\\n); sleep 600"


@contextmanager
def others(count: int) -> Iterator[None]:
    """So many processes of no job."""
    argv = ["perl", "-e", OTHERS.replace("{}", str(count), 1)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline()
        yield
        os.killpg(parent.pid, signal.SIGKILL)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("inside", "outside", "by"),
    [(1, 0, "groups"), (1, 5000, "groups"), (5000, 0, "groups"), (5000, 0, "signals")],
)
def test_turns_beside_many_processes(inside: int, outside: int, by: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(NO_ROOT)
    settings = {"client_wait_ns": 300_000_000, "is_without_groups": by == "signals"}
    with others(outside), NodeHarness(quantum_s=1.0, **settings) as node:
        assert node.daemon is not None
        node.plan(a_planned_job(1, "user1", (0,)), a_planned_job(2, "user2", (0,)))
        for job_id, count in ((1, inside), (2, 1)):
            node.start_job(job_id, [FAMILY, str(count)])
        node.wait(lambda: node.resident(1).suspends >= 1 and node.resident(2).suspends >= 1)
        turns, before_s, longest_s = node.resident(1).suspends, cpu_s(node.daemon.pid), 0.0
        end_s = time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            asked_s = time.monotonic()
            node.report()
            longest_s = max(longest_s, time.monotonic() - asked_s)
            time.sleep(0.05)
        busy = (cpu_s(node.daemon.pid) - before_s) / SECONDS
        turns = node.resident(1).suspends - turns
    what = f"job of {inside} processes, {outside} others, frozen by {by}"
    print(f"\n{what}: {1e3 * busy:.0f} ms a second, longest answer {1e3 * longest_s:.0f} ms, {turns} turns")
