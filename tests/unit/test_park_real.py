"""Real training processes under the real coordinator: torch on the CPU, DDP over gloo, a thread a rank."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gandiva_slurm.wire.page import (
    KIND_HOOK,
    KIND_STEPS,
    TIER_TORCH,
    W_ERROR,
    W_GROUP_MS,
    W_HELD,
    W_KIND,
    W_LIVE,
    W_PEAK,
    W_RELEASED,
    W_SEQ,
    W_STATE_SEQ,
    W_TIER_USED,
    W_USER_STEPS,
)
from tests import patience
from tests.park_harness import Harness, is_alive, open_page, wait_until
from tests.slow import long_form, slow, soak, soaked

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "gandiva_slurm" / "client" / "hook"
#: Of a hundred parks fewer than so many may be aimed anew (measured: none in 1,100, on two cores under load).
REAIMS_IN_100 = 5
#: A process group's time-out, in seconds: collectives of a busy machine take less.
GROUP_S = "20"
#: Weights and Adam's two moments of the model in tests/park_train.py.
PARAMETER_BYTES = 3 * 4 * (64 * 128 + 128 + 128 * 10 + 10)


class Job:
    """The ranks of one job; ends at a file's appearance, after all ranks have agreed on it."""

    def __init__(self, directory, world, *options, socket=None, tier=""):
        self.directory, self.world = directory, world
        directory.mkdir()
        self.stop_file = directory / "stop"
        command = [sys.executable, str(ROOT / "tests" / "park_train.py"), "--out", str(directory / "out")]
        command += ["--store", str(directory / "store"), "--until", str(self.stop_file), *options]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("GANDIVA", "SLURM"))}
        env.update(OMP_NUM_THREADS="1", PYTHONPATH=f"{HOOK}:{ROOT}")
        if socket is not None:
            env |= {"GANDIVA_SOCKET": str(socket), "GANDIVA_TIER": tier}
        self.ranks = [
            subprocess.Popen(
                command, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
            )
            for rank in range(world)
        ]

    def finish(self):
        """Let it end by itself and return the losses of each rank."""
        self.stop_file.touch()
        return self.wait()

    def wait(self):
        for process in self.ranks:
            assert process.wait(60 * patience.slowness()) == 0
        outs = [json.loads((self.directory / f"out.{rank}").read_text()) for rank in range(self.world)]
        return [out["losses"] for out in outs]

    def kill(self):
        for process in self.ranks:
            process.kill()
            process.wait()


@pytest.fixture
def start(tmp_path):
    jobs = []

    def _start(name, world, *options, socket=None, tier=""):
        jobs.append(Job(tmp_path / name, world, *options, socket=socket, tier=tier))
        return jobs[-1]

    yield _start
    for job in jobs:
        job.kill()


@pytest.fixture
def node(tmp_path):
    harnesses = []

    def _node(world):
        harnesses.append(Harness(str(tmp_path / "node.sock"), world))
        return harnesses[-1], tmp_path / "node.sock"

    yield _node
    for harness in harnesses:
        harness.close()


def train_on(harness, boundaries):
    """Wait until every rank has passed so many more boundaries."""
    want = [view[W_SEQ] + boundaries for view in harness.views()]
    harness.wait(
        lambda: all(view[W_SEQ] >= seq for view, seq in zip(harness.views(), want, strict=True)),
        "training to go on",
        between=harness.tick,
    )


@pytest.mark.parametrize("times", [10, soaked(100, why="25 s; a tenth of it is in make test")])
def test_gang_is_parked_many_times_and_computes_the_same(start, node, times):
    harness, socket = node(2)
    job = start("parked", 2, "--steps", "1000000", "--step-ms", "2", "--pause-every", "40", socket=socket)
    harness.serve()
    unequal = 0
    for number in range(times):
        harness.park()
        assert harness.gang.phase == "parked", harness.gang.last_error
        unequal += any(view[W_SEQ] != harness.gang.park_seq for view in harness.views())
        harness.resume()
        train_on(harness, 1 + number % 7)
    losses = job.finish()
    views = harness.views()
    assert unequal == 0 and harness.gang.failed_parks == 0
    assert harness.gang.reaims < REAIMS_IN_100, harness.gang.last_error
    assert [view[W_KIND] for view in views] == [KIND_HOOK] * 2
    assert [view[W_USER_STEPS] for view in views] == [len(series) for series in losses]
    alone = start("alone", 2, "--steps", str(len(losses[0])), "--mark", "none").wait()
    assert losses == alone


@pytest.mark.parametrize(
    "times", [long_form(3, why="20 s; test_client_offload has gangs"), soaked(20, why="29 s")]
)
def test_gang_whose_memory_is_moved_away_computes_the_same(start, node, times):
    """The last park lasts longer than its process group waits for anybody."""
    harness, socket = node(2)
    options = ("--steps", "1000000", "--step-ms", "2", "--group-s", GROUP_S)
    job = start("moved", 2, *options, socket=socket, tier="torch-cpu")
    harness.serve()
    for number in range(times):
        harness.park()
        assert harness.gang.phase == "parked", harness.gang.last_error
        for view in harness.views():
            assert view[W_TIER_USED] == TIER_TORCH and view[W_RELEASED] > PARAMETER_BYTES
            assert view[W_LIVE] == view[W_RELEASED] + view[W_HELD] <= view[W_PEAK]
            assert (view[W_ERROR], view[W_GROUP_MS]) == (0, int(GROUP_S) * 1000)
        over = time.monotonic() + (int(GROUP_S) + 1 if number == times - 1 else 0)
        harness.wait(lambda over=over: time.monotonic() > over, "the time-out to be over")
        harness.resume()
        train_on(harness, 1 + number % 5)
    losses = job.finish()
    assert losses == start("alone", 2, "--steps", str(len(losses[0])), "--mark", "none").wait()


@slow("7 s of a processor; attach/test_trial parks one rank and compares, test_client_loop has the kinds")
def test_single_rank_is_parked_and_computes_the_same(start, node):
    harness, socket = node(1)
    job = start("parked", 1, "--steps", "1000000", "--mark", "steps", "--step-ms", "1", socket=socket)
    harness.serve()
    for _ in range(30):
        harness.park()
        assert harness.gang.phase == "parked"
        view = harness.views()[0]
        assert view[W_STATE_SEQ] == view[W_SEQ] == harness.gang.park_seq
        harness.resume()
        train_on(harness, 3)
    losses = job.finish()
    # The last mini-batch is broken off: it has no boundary of its own.
    assert harness.views()[0][W_SEQ] == len(losses[0]) - 1 and harness.views()[0][W_KIND] == KIND_STEPS
    assert losses == start("alone", 1, "--steps", str(len(losses[0])), "--mark", "none").wait()


def test_gang_that_ends_while_it_is_aimed_at_ends_well(start, node):
    harness, socket = node(2)
    job = start("short", 2, "--steps", "150", "--step-ms", "10", socket=socket)
    harness.serve()
    pids = [peer.pid for peer in harness.peers.values()]
    while any(map(is_alive, pids)):
        if harness.gang.phase == "running":
            harness.begin_park()
        elif harness.gang.phase == "parked":
            harness.resume()
        else:
            harness.tick()
        for process in job.ranks:
            process.poll()
    assert len(job.wait()[0]) == 150


def die_in(phase, socket, known):
    """Run a harness that is killed in `phase`; return the ranks it had."""
    socket.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.park_harness", str(socket), "2", phase, *known]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert died.returncode == -9, died.stderr
    return died.stdout


def train_on_alone(known, phase):
    """Wait until ranks without a node train."""
    pages = [open_page(pid, page_fd) for pid, page_fd in json.loads(known)]
    want = [page.read()[W_SEQ] + 30 for page in pages]
    wait_until(
        lambda: all(page.read()[W_SEQ] >= seq for page, seq in zip(pages, want, strict=True)),
        f"training to go on after a death in phase {phase}",
    )
    for page in pages:
        page.close()


PHASES = ("aiming", "committing", "between", "parked", "resuming")


@soak("22 s; node/test_restart kills gandivad itself, test_park_explore has every phase")
def test_job_outlives_its_node_in_every_phase(start, tmp_path):
    """Killed in each phase, and taken over by the next, as gandivad would be: the gang always trains on.

    Its memory is away while it is parked.
    """
    socket, known = tmp_path / "node.sock", []
    options = ("--steps", "1000000", "--impatient", "--step-ms", "2")
    job = start("orphan", 2, *options, socket=socket, tier="torch-cpu")
    for phase in PHASES:
        known = [die_in(phase, socket, known)]
        train_on_alone(known[0], phase)
    losses = job.finish()
    assert losses == start("alone", 2, "--steps", str(len(losses[0])), "--mark", "none").wait()
