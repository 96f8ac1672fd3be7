"""Gangs told by their node to save themselves and leave: killed where they are parked, and started again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gandiva_slurm.node.pages import error_text
from gandiva_slurm.wire.page import (
    FAILED,
    KIND_RUN,
    TIER_HOLD,
    TIER_REQUEUE,
    TIER_TORCH,
    W_KIND,
    W_RELEASED,
    W_STATE,
    W_TIER,
    W_TIER_USED,
)
from tests import patience
from tests.park_harness import Harness
from tests.slow import by_need, long_form, slow, soak, soaked

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60


@pytest.fixture
def room(tmp_path):
    """A place to start lives of one job in; whatever still runs in the end is killed."""
    room = Room(tmp_path)
    yield room
    room.close()


class Room:
    """One job: its node, its files, its processes."""

    def __init__(self, path):
        self.path = path
        self.node = None
        self.processes = []

    #: What is started.
    script = "tests/attach_train.py"

    def start(self, recipe, *options, world=1, restart=0, is_ours=True, **more):
        """Start the ranks of one life of the job; `is_ours=False`: outside Gandiva."""
        name = "moved" if is_ours else "alone"
        life = self.path / f"{name}{restart}"
        life.mkdir()
        argv = [sys.executable, str(ROOT / self.script), recipe, str(self.path / name), *options]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
        env |= {"PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "5", "SLURM_RESTART_COUNT": str(restart)}
        env |= {"SLURM_SUBMIT_DIR": str(self.path), "OMP_NUM_THREADS": "1"}
        if is_ours:
            self.node = Harness(str(life / "node"), world)
            env["GANDIVA_SOCKET"] = str(life / "node")
        for rank in range(world):
            gang = {"RANK": str(rank), "WORLD_SIZE": str(world)} if world > 1 else {}
            with open(life / f"err.{rank}", "w") as err:
                self.processes.append(
                    subprocess.Popen(
                        [*argv, "--store", str(life / "store")],
                        env=env | gang | more,
                        stderr=err,
                        cwd=self.path,
                    )
                )
        if is_ours:
            self.node.serve(DEADLINE_S)

    def leave(self):
        """Ask the gang to save itself and leave; return what its ranks' pages say then."""
        for peer in self.node.peers.values():
            peer.page.write([(W_TIER, TIER_REQUEUE)])
        self.node.park(DEADLINE_S)
        return self.node.views()

    def park_as_ever(self):
        """Park the gang as at a turn's end; nothing is saved."""
        for peer in self.node.peers.values():
            peer.page.write([(W_TIER, TIER_HOLD)])
        self.node.park(DEADLINE_S)
        assert {view[W_TIER_USED] for view in self.node.views()} == {TIER_HOLD}
        assert len(self.checkpoints()) == 1

    def kill(self):
        """Slurm requeues the job."""
        for process in self.processes:
            process.kill()
        self.finish(want=-9)

    def finish(self, want=0):
        """Wait for the end of this life."""
        for process in self.processes:
            assert process.wait(DEADLINE_S * patience.slowness()) == want
        self.processes = []
        if self.node:
            self.node.close()
            self.node = None

    def lines(self, name, rank=0):
        return (self.path / f"{name}.{rank}").read_text().splitlines()

    def said(self, restart=0):
        return (self.path / f"moved{restart}" / "err.0").read_text()

    def checkpoints(self):
        return sorted((self.path / ".gandiva" / "5").glob("attach_train-*"))

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait(DEADLINE_S * patience.slowness())
        if self.node:
            self.node.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a training computes outside Gandiva: the lines of each rank; each is trained once."""
    known = {}

    def _alone(recipe, world, *options):
        if (recipe, world, options) not in known:
            room = Room(tmp_path_factory.mktemp("alone"))
            room.start(recipe, *options, world=world, is_ours=False)
            room.finish()
            known[recipe, world, options] = [room.lines("alone", rank) for rank in range(world)]
        return known[recipe, world, options]

    return _alone


#: A training that is not over before it is told to leave, however slow the machine.
LONG, SLOWLY = ("--epochs", "10"), ("--step-ms", "20")

CASES = {
    "solo": ("adam", 1, ("--workers", "2"), 3),
    "buffers of each rank": ("wrapped", 2, (), 2),
    "gradients of each rank": ("synced_late", 2, ("--workers", "2"), 2),
    "shards of each rank": ("sharded", 2, (), 2),
    "shards, fed by workers": ("sharded", 2, ("--workers", "2"), 2),
}


#: What is of these is of the others, and of test_parked_gang.
MORE = ("buffers of each rank", "gradients of each rank", "shards, fed by workers")


@pytest.mark.parametrize(
    "case",
    [
        *by_need(case for case in CASES if case not in MORE),
        *(soaked(case, why="one more case") for case in MORE),
    ],
)
def test_gang_that_left_goes_on_as_if_nothing_had_been(case, room, alone):
    recipe, world, options, lives = CASES[case]
    options = (*LONG, *options)
    for life in range(lives):
        room.start(recipe, *options, *(SLOWLY if life < lives - 1 else ()), world=world, restart=life)
        if life < lives - 1:
            views = room.leave()
            assert room.node.gang.phase == "parked", room.node.gang.last_error
            assert {(view[W_KIND], view[W_TIER_USED]) for view in views} == {(KIND_RUN, TIER_REQUEUE)}
            room.kill()
    room.finish()
    assert [room.lines("moved", rank) for rank in range(world)] == alone(recipe, world, *options)
    if recipe in ("wrapped", "synced_late"):
        small, large = (room.checkpoints()[-1] / f"rank-{n}-of-2.data" for n in (1, 0))
        assert small.stat().st_size < large.stat().st_size, "rank 0 saves the weights for all"


@soak("40 s; test_park_real parks gangs, test_floor every kind of training")
def test_shards_are_parked_a_hundred_times(room, alone):
    room.start("sharded", "--epochs", "1000000", "--step-ms", "3", world=2)
    for _ in range(100):
        room.node.park(DEADLINE_S)
        assert room.node.gang.phase == "parked", room.node.gang.last_error
        room.node.resume(DEADLINE_S)
    (room.path / "moved.stop").touch()
    room.finish()
    moved = [room.lines("moved", rank) for rank in range(2)]
    epochs = int(moved[0][-2].split()[0]) + 1
    assert moved == alone("sharded", 2, "--epochs", str(epochs))


@pytest.mark.parametrize(
    "case", [soaked("solo", why="18 s; a gang stays"), long_form("shards of each rank", why="20 s")]
)
def test_gang_whose_memory_is_moved_away_saves_itself_all_the_same(case, room, alone):
    """Parked without its memory, then saved and parked without its memory, then started again."""
    recipe, world, options, _ = CASES[case]
    options = (*LONG, *options)
    for life in range(2):
        pace = () if life else SLOWLY
        room.start(recipe, *options, *pace, world=world, restart=life, GANDIVA_TIER="torch-cpu")
        if life == 0:
            room.node.park(DEADLINE_S)
            views = room.node.views()
            assert all(view[W_TIER_USED] == TIER_TORCH and view[W_RELEASED] > 0 for view in views)
            room.node.resume(DEADLINE_S)
            views = room.leave()
            assert room.node.gang.phase == "parked", room.node.gang.last_error
            assert all(view[W_TIER_USED] == TIER_REQUEUE and view[W_RELEASED] > 0 for view in views)
            room.kill()
    room.finish()
    assert [room.lines("moved", rank) for rank in range(world)] == alone(recipe, world, *options)


@slow("18 s; node/test_leaving and test_files have each; a gang that agrees on both is here alone")
def test_leaving_is_taken_back_and_a_damaged_part_of_one_rank_skipped_by_all(room):
    room.start("wrapped", "--epochs", "1000", *SLOWLY, world=2)
    for may_stay in (True, False):
        room.leave()
        assert room.node.gang.phase == "parked", room.node.gang.last_error
        if may_stay:
            room.node.resume()
            room.park_as_ever()
            room.node.resume()
    room.kill()
    first, second = room.checkpoints()
    with open(second / "rank-1-of-2.data", "r+b") as data:
        data.seek(100)
        data.write(b"\0\1\2\3")
    room.start("wrapped", "--epochs", "1000", world=2, restart=1)
    (room.path / "moved.stop").touch()
    room.finish()
    assert f"{second} is damaged and skipped: the data of rank 1 is not what was written" in room.said(1)
    assert f"goes on from {first}:" in room.said(1)


@slow("19 s; a save that fails is in cluster/test_moving and node/test_span_leaving")
def test_gang_that_cannot_save_says_so_and_trains_on(room, alone):
    blocked = room.path / "blocked"
    blocked.write_text("a file, no directory")
    room.start("wrapped", *LONG, *SLOWLY, world=2, GANDIVA_CHECKPOINT_DIR=str(blocked / "here"))
    for view in room.leave():
        assert view[W_STATE] == FAILED
        assert error_text(view) == f"no checkpoint in {blocked}/here: Not a directory"[:128]
    assert room.node.gang.phase == "running" and room.node.gang.failed_parks == 1
    room.finish()
    assert [room.lines("moved", rank) for rank in range(2)] == alone("wrapped", 2, *LONG)
    assert "not saved, training goes on: no checkpoint in" in room.said()
