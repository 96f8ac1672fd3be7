"""The demonstration on a real cluster: ended at any moment it leaves nothing; the next one clears the rest.

Two moments of three, drawn with a seed from all of its phases; `make test-all` has the third.
`make soak` takes twenty.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import demo_guard, demo_left, local, probe
from gandiva_slurm.mini.demo_guard import ENDS, MARK, cluster_names
from gandiva_slurm.mini.demo_left import Marks
from gandiva_slurm.mini.layout import Layout
from tests.slow import long_form

MOMENTS = int(os.environ.get("GANDIVA_MOMENTS", "3"))
SEED = 13
NAME = f"test-demo-{os.getpid()}"
#: A demonstration is in its contended phase by then, on a quiet machine; the twenty reach to its end.
PHASES_S = 30.0 if MOMENTS == 3 else 45.0
DOWN_S = 120.0

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("slurm_here")]


def moments() -> list[Any]:
    """(seconds after its start, what ends it), spread over the phases."""
    choose = random.Random(SEED)
    signals = sorted(ENDS)
    drawn = [
        (choose.uniform(at, at + 1) * PHASES_S / MOMENTS, signals[at % len(signals)]) for at in range(MOMENTS)
    ]
    return [*drawn[:2], *(long_form(*moment, why="30 s; one more moment") for moment in drawn[2:])]


def start(out: Path) -> "subprocess.Popen[bytes]":
    """A demonstration as its user starts it, in a session of its own."""
    words = [str(Path(sys.executable).with_name("gandiva")), "mini", "demo"]
    with out.open("wb") as log:
        return subprocess.Popen(
            words, env=os.environ | {"GANDIVA_MINI": NAME}, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


@pytest.fixture
def demonstrations(tmp_path: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(DOWN_S)
    for name in cluster_names(NAME):
        clusters.down(name)


def namespaces() -> dict[str, int]:
    """Those of the cluster that is being brought up or runs, held open; none while there is none."""
    return demo_left.held(clusters_holders())


def clusters_holders() -> list[int]:
    """The processes that bring the demonstration's clusters up or hold them."""
    return [pid for name in cluster_names(NAME) for pid in local._holders(Layout.of(name))]


def processes_of(guard: int) -> set[int]:
    """The guard, its worker, and all that they started in their sessions."""
    leaders = {guard, *probe.children(guard)}
    return {pid for pid in demo_guard._processes() if demo_guard._session(pid) in leaders}


def what_is_left(seen: dict[str, int], session: set[int]) -> list[str]:
    """Sentences about what is there of the demonstration's clusters and processes."""
    alive = [pid for pid in session if probe.start_ticks(pid) is not None]
    found = [f"process {pid}" for pid in [*alive, *clusters_holders()]]
    for name in cluster_names(NAME):
        found += demo_left.left_behind(Marks(Layout.of(name), seen if name == NAME else {}, is_docker=False))
    return found


@pytest.mark.parametrize(("after_s", "sig"), moments())
def test_ended_at_any_moment_it_leaves_nothing(
    tmp_path: Path, demonstrations: list["subprocess.Popen[bytes]"], after_s: float, sig: signal.Signals
) -> None:
    process = start(tmp_path / "log")
    demonstrations.append(process)
    # The moment is the point of this test: nothing is waited for.
    time.sleep(after_s)
    seen, session = namespaces(), processes_of(process.pid)
    assert process.poll() is None, (tmp_path / "log").read_text()
    process.send_signal(sig)
    # Python takes its time to start: until then the signal does what it does to every program.
    assert process.wait(DOWN_S) in (128 + sig, -sig), (tmp_path / "log").read_text()
    assert what_is_left(seen, session) == []


def wait_for_mark() -> None:
    at = Layout.of(NAME)
    probe.wait_until((at.root / MARK).exists, "the demonstration's cluster", 300)


def test_the_next_clears_away_what_a_killed_one_left_and_a_second_is_refused(
    tmp_path: Path, demonstrations: list["subprocess.Popen[bytes]"]
) -> None:
    first = start(tmp_path / "first")
    demonstrations.append(first)
    wait_for_mark()
    second = start(tmp_path / "second")
    assert second.wait(60) == 1 and "runs already" in (tmp_path / "second").read_text()
    seen, session = namespaces(), processes_of(first.pid)
    assert seen, "a cluster runs"
    first.kill()
    first.wait(60)
    assert Layout.of(NAME).root.exists(), "nobody is there to clear away"
    third = start(tmp_path / "third")
    demonstrations.append(third)
    told = tmp_path / "third"
    probe.wait_until(lambda: "starting munge" in told.read_text(), "the next to have cleared away", 300)
    assert "clearing away" in told.read_text()
    third.terminate()
    assert third.wait(DOWN_S) == 128 + signal.SIGTERM
    assert what_is_left(seen, session) == []
