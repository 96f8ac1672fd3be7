"""On a real Slurm: sbatch --test-only shows a forecast within its second, or goes on without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.controller.foretold import SOCKET_NAME
from gandiva_slurm.mini import probe
from gandiva_slurm.mini.cluster import MiniCluster
from tests import patience
from tests.cluster.fleet import Fleet, own_cluster, said

FORECAST = "gandiva-forecast"
WORDS = ("sbatch", "--gres=gpu:1", "-p", "gandiva", "-t", "10", "--test-only", "--wrap=true")
#: So much slower than a quiet one, a machine may have no forecast within a second.
TOO_SLOW = 2.0
SLURMS, LATE = "to start at", "gandiva: no forecast within a second"
#: Connects as often as it may to whatever of Gandiva's listens, says nothing, garbage, or a little at a time.
FLOODS = """
import os, socket, subprocess, sys, time
end = time.monotonic() + float(sys.argv[2])
kept, asking = [], []
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as err:
    print(type(err).__name__, flush=True)
while time.monotonic() < end:
    for text in (b"", b"x" * 100000, b"POST /v1/query HTTP/1.1\\r\\nContent-Length: 9\\r\\n\\r\\n"):
        link = socket.socket()
        link.settimeout(0.2)
        try:
            link.connect(("127.0.0.1", 7321))
            link.sendall(text)
        except OSError:
            pass
        kept = [*kept[-50:], link]
    asking = [one for one in asking if one.poll() is None]
    if len(asking) < 2:
        words = ["gandiva", "when", "--new", "gpus=1"]
        asking.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    time.sleep(0.02)
for one in asking:
    one.kill()
    one.wait()
"""


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    with own_cluster("before", "v100:1x1", 1.0, spec={"forecast": True}) as made:
        yield made


def submitted(fleet: Fleet, *flags: str, user: str = "user1") -> tuple[str, float]:
    """What sbatch says, and how long it took; Slurm's own answer is always in it."""
    began_s = time.monotonic()
    done = fleet.mini.exec([*WORDS[:1], *flags, *WORDS[1:]], user=user, check=False)
    took_s = time.monotonic() - began_s
    assert SLURMS in done.stderr and done.stdout == "", done
    return done.stderr, took_s


def plain_s(fleet: Fleet) -> float:
    """How long Slurm's own --test-only takes here and now."""
    return submitted(fleet)[1]


def foretold(fleet: Fleet, *flags: str) -> str:
    """What is shown where there is an answer in time, soon if not at once; "" on a machine too slow for that.

    sbatch waits a second, whatever the machine.
    """
    end_s, slowness = patience.deadline(60), 1.0
    while "gandiva: would start " not in (shown := submitted(fleet, "--gandiva", *flags)[0]):
        slowness = max(slowness, patience.slowness())
        if time.monotonic() > end_s:
            # A forecast that does not come far says that it would wait.
            assert (LATE in shown or "gandiva: would wait: " in shown) and slowness > TOO_SLOW, shown
            warnings.warn(f"no forecast in a second: a machine {slowness:.1f} times slower", stacklevel=1)
            return ""
        time.sleep(probe.pause_s(1.0, 1.0))
    return shown


def test_it_is_shown_before_slurms_own_words(fleet: Fleet) -> None:
    fleet.train("user2", "one")
    shown = foretold(fleet)
    if shown:
        assert shown.index("gandiva: would start ") < shown.index(SLURMS)
        assert "gandiva: would end in " in shown
    assert "gandiva:" not in submitted(fleet)[0], "nothing is asked of what is not Gandiva's"
    foretold(fleet, "-N", "1")
    made = json.loads(said(fleet.mini, "when", "--new", "gpus=1", "--json", user="user1"))
    assert made["forecast"]["runs"] >= 1 and (made["new"]["start"] or made["forecast"]["reached_s"]), made
    assert len(fleet.ask("queue")["jobs"]) == 1, "nothing was submitted"
    fleet.stop("user2", "one")


def test_a_hostile_user_changes_nothing_for_others(fleet: Fleet) -> None:
    where = str(Path(fleet.mini.site.at.spool) / "gandivactld" / SOCKET_NAME)
    flood = fleet.mini.popen(["python3", "-c", FLOODS, where, "120"], user="user3", stdout=subprocess.PIPE)
    try:
        assert flood.stdout is not None and b"PermissionError" in flood.stdout.readline()
        shown, took_s = min((submitted(fleet, "--gandiva") for _ in range(3)), key=lambda one: one[1])
        assert took_s < patience.slowness() * 5 + plain_s(fleet)
        assert "gandiva: would start " in shown or "gandiva: would wait: " in shown or LATE in shown, shown
    finally:
        flood.terminate()
        flood.wait()
    foretold(fleet)


@pytest.mark.parametrize("how", ["it hangs", "it is killed", "its socket is gone", "gandivactld is killed"])
def test_without_an_answer_slurms_own_goes_on_within_a_second(fleet: Fleet, how: str) -> None:
    mini, pid = fleet.mini, fleet.mini.daemon_pid(FORECAST)
    assert pid is not None
    if how == "it hangs":
        os.kill(pid, signal.SIGSTOP)
    elif how == "it is killed":
        mini.kill(FORECAST)
    elif how == "its socket is gone":
        mini.path(str(Path(mini.site.at.spool) / "gandivactld" / SOCKET_NAME)).unlink()
    else:
        mini.kill("gandivactld")
    try:
        base_s = plain_s(fleet)
        tries = [submitted(fleet, "--gandiva") for _ in range(3)]
        assert min(tries, key=lambda one: one[1])[1] < base_s + 1.0 + patience.slowness(), (tries, base_s)
        shown = "".join(text for text, _ in tries)
        # While one question of a user waits for its answer, another is refused, and nothing is said of that.
        if how == "it hangs":
            assert LATE in shown and "would" not in shown
        if how == "gandivactld is killed":
            assert "gandiva: would" not in shown
    finally:
        if how == "it hangs":
            os.kill(pid, signal.SIGCONT)
        elif how == "its socket is gone":
            mini.kill(FORECAST)
    if how in ("it is killed", "its socket is gone"):
        mini.start_daemon(FORECAST)
    if how == "gandivactld is killed":
        mini.start_daemon("gandivactld")
    foretold(fleet)
