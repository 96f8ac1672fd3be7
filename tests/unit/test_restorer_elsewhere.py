"""An image that a node cannot restore is given back, and its job waits to be started elsewhere."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gandiva_slurm.model.errors import PeerBusy
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.model.reason import UNBORN
from gandiva_slurm.node import imager, images, imaging, leaving, procs
from gandiva_slurm.node.binding import Peer
from gandiva_slurm.node.elsewhere import STARTED_ANEW, Elsewhere, Restore, in_use
from gandiva_slurm.node.imageable import FIRST
from gandiva_slurm.node.leaving import UNFIT_NS
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.restorer import RESTORED, JobOver, Restorer
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.node.sock import Speech
from tests.unit.test_images import BY, ME, sealed, take
from tests.unit.test_node_leaving import Floor

#: Of another incarnation than the bench's jobs, which are all the first.
OLD = JobKey(1, 5)
WHY = "this processor lacks avx512f"


class Node:
    """A node on whose GPU a job is being restored, for a task that waits; `answer` is what comes of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.floor, self.root = Floor(tmp_path), tmp_path / "images"
        object.__setattr__(self.floor.node.settings, "image_dir", self.root)
        images.prepare(self.root)
        sealed(self.root, OLD)
        self.job = self.floor.add(1, "user1", (0,))
        self.floor.plan(1)
        self.floor.settle()
        assert self.job.state == RUNNING and self.job.holds
        # What a hostile restored process could not outlive.
        self.first = subprocess.Popen(["sleep", "1000"])
        self.task = Peer(ProcId(os.getpid(), procs.read_proc(os.getpid()).start), ME)  # type: ignore[union-attr]
        self.asked = Restorer(self.floor.node, self.floor.slicer, self.floor.watcher, None)  # type: ignore[arg-type]
        self.calls: list[str] = []
        self.begin(self.task.proc)

    def begin(self, task: ProcId) -> None:
        call: Any = SimpleNamespace(kill=lambda: self.calls.append("kill"))
        first = procs.read_proc(self.first.pid)
        assert first is not None
        place = take(self.root, OLD, BY)
        self.asked._running[self.job.key] = Restore(OLD, place, first.id, task, call, 1e18)

    def ask(self) -> dict[str, str]:
        self.asked.heed_unfit(self.job.key)
        return self.asked.ask(self.task, self.job.key)

    async def look(self) -> None:
        """Let it look for restores whose tasks are gone, until there is none."""
        running = asyncio.get_running_loop().create_task(self.asked.run())
        for _ in range(300):
            await asyncio.sleep(0.1)
            self.first.poll()
            if not self.asked._running:
                break
        running.cancel()

    def answer(self) -> dict[str, str]:
        """Ask until what was restored has ended."""
        while True:
            try:
                return self.ask()
            except PeerBusy as err:
                if "is ended" not in str(err):
                    raise
                self.first.wait(timeout=30)

    def fail(self) -> None:
        """Let it be told to the task that it is not restored here."""
        with pytest.raises(PeerBusy, match="elsewhere"):
            self.answer()
        assert self.first.wait(timeout=30) == -signal.SIGKILL

    @property
    def kept(self) -> list[str]:
        return sorted(place.name for place in (self.root / "whole").iterdir())


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Node(tmp_path)
    monkeypatch.setattr(imaging, "answer", lambda call: {"why": WHY})
    yield made
    made.first.kill()
    made.first.wait()


async def test_nothing_of_it_lives_when_its_image_is_given_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(procs, "send", lambda proc, number: True)
        with pytest.raises(PeerBusy, match="is ended"):
            node.ask()
    assert node.kept != [str(OLD)] and node.calls == ["kill"], "its first process has not ended"
    node.fail()
    assert node.kept == [str(OLD)]
    images.verify(images.place_of(node.root, OLD), OLD, images.read(node.root, OLD, ME))


async def test_it_gives_its_gpus_up_and_leaves_when_it_is_told_to(node: Node) -> None:
    node.fail()
    assert not node.job.must_stay(10**18)
    node.floor.next_quantum()
    assert node.job.state == SUSPENDED
    told = node.floor.told(1)
    assert (told.unrestored, told.framework, told.has_left) == (WHY, leaving.ANEW, False)
    assert told.reason in UNBORN, "Slurm signals none that has not begun: gandivactld has it stopped"
    assert leaving.told(node.job) == f"its image cannot be restored here: {WHY}"
    node.floor.plan(1, is_leaving=True)
    assert node.floor.told(1).has_left and node.job.state == SUSPENDED


async def test_a_task_that_asks_once_more_has_not_begun(node: Node) -> None:
    """It does so before it is stopped: what it would begin is not begun here."""
    node.fail()
    with pytest.raises(PeerBusy, match="elsewhere"):
        node.ask()
    assert not node.job.has_begun and node.kept == [str(OLD)]


async def test_where_no_other_node_takes_it_within_a_minute_it_begins_anew(node: Node) -> None:
    node.fail()
    node.floor.next_quantum()
    assert node.job.state == SUSPENDED
    node.floor.clock.now_ns += UNFIT_NS
    node.floor.next_quantum()
    assert node.job.holds, "it has its turns again"
    assert node.ask() == {} and node.job.image.unfit == ""
    await gone(node)
    assert node.floor.told(1).unrestored == ""


async def test_what_a_former_gandivad_knew_of_it_is_known(node: Node) -> None:
    node.fail()
    rows = [row for row in state_of(node.floor.node)["jobs"] if row["key"] == str(node.job.key)]
    again, _ = read_job(rows[0], "n1")
    assert (again.image.unfit, again.image.unfit_ns) == (WHY, node.job.image.unfit_ns) and not again.has_begun


@pytest.mark.parametrize("case", ["damaged", "cannot be requeued", "a start that was forgotten"])
async def test_what_no_other_node_could_take_begins_anew_at_once_or_ends(
    node: Node, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    said = {"why": WHY, "is_damaged": True} if case == "damaged" else {"why": WHY}
    monkeypatch.setattr(imaging, "answer", lambda call: said)
    node.job.is_requeueable = case != "cannot be requeued"
    if case == "a start that was forgotten":
        node.asked._running[node.job.key].old = node.job.key
    if node.job.is_requeueable:
        assert node.answer() == {}
    else:
        with pytest.raises(JobOver, match="--no-requeue"):
            node.answer()
    if case != "a start that was forgotten":
        await gone(node)


async def test_a_task_that_ends_while_it_is_restored_leaves_the_image_to_the_next(node: Node) -> None:
    """slurmd ends it, as slurmctld wants it that has forgotten its start (ADR 0070)."""
    over = subprocess.Popen(["true"])
    over.wait()
    node.asked._running[node.job.key].task = ProcId(over.pid, 1)
    with pytest.raises(PeerBusy, match="former task"):
        node.ask()
    await node.look()
    assert node.first.poll() == -signal.SIGKILL and node.kept == [str(OLD)]
    assert node.job.image.unfit == "", "this node may restore it"


async def test_a_gandivad_that_is_killed_in_the_midst_leaves_the_image_to_another_node(node: Node) -> None:
    """The next one ends what it had begun, whose end nobody could be told of any more."""
    running = node.asked._running[node.job.key]
    node.job.image.restoring = json.loads(json.dumps(running.to_json()))
    node.asked = Restorer(node.floor.node, node.floor.slicer, node.floor.watcher, None)  # type: ignore[arg-type]
    node.asked.take_over()
    assert imager._clear(node.root, "n1@another", in_use(node.floor.node)) == set()
    assert running.place.exists()
    for _ in range(2):
        with pytest.raises(PeerBusy, match="elsewhere"):
            node.ask()
    await node.look()
    assert node.first.poll() == -signal.SIGKILL and node.kept == [str(OLD)] and node.job.image.restoring == []
    assert node.floor.told(1).unrestored == STARTED_ANEW


@pytest.mark.parametrize("is_same_boot", [True, False])
async def test_a_job_that_ends_while_its_gandivad_is_away_leaves_the_image_to_its_next_start(
    node: Node, is_same_boot: bool
) -> None:
    """gandivad and the task are killed in the midst of a restore; the next gandivad finds the job ended."""
    running, floor = node.asked._running[node.job.key], node.floor
    node.job.image.restoring = running.to_json()
    floor.node.saved = json.loads(json.dumps(state_of(floor.node)))
    floor.node.is_same_boot = is_same_boot
    del floor.node.residents[node.job.key]
    node.asked = Restorer(floor.node, floor.slicer, floor.watcher, None)  # type: ignore[arg-type]
    node.asked.take_over()
    lost = imager._clear(node.root, "n1@another", in_use(floor.node))
    assert (lost, running.place.exists()) == ((set(), True) if is_same_boot else ({OLD}, False))
    await node.look()
    assert (str(OLD) in node.kept) == is_same_boot
    assert node.first.poll() == (-signal.SIGKILL if is_same_boot else None)


def asking(node: Node, patch: pytest.MonkeyPatch) -> None:
    """Nothing was begun yet: its task has started process 1 of its namespace, and asks."""
    images.give_back(node.root, node.asked._running.pop(node.job.key).place, OLD)
    first = procs.read_proc(node.first.pid)
    patch.setattr(procs, "children", lambda pid: [])
    patch.setattr(procs, "each", lambda pids: [first])
    patch.setattr(procs, "uids", lambda pid: (0, 0))
    patch.setattr(procs, "read_text", lambda pid, name: f"{FIRST}\n")
    manifest = images.read(node.root, OLD, ME)
    patch.setattr(Restorer, "_find", lambda self, key, uid: (OLD, manifest))


async def test_a_larger_image_has_longer_until_it_is_taken_for_hanging(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking(node, monkeypatch)
    manifest = images.read(node.root, OLD, ME)
    manifest["files"]["pages"][0] = 64 << 30
    monkeypatch.setattr(Restorer, "_find", lambda self, key, uid: (OLD, manifest))
    monkeypatch.setattr(imaging, "start", lambda name, task: SimpleNamespace(kill=lambda: None))
    monkeypatch.setattr(imaging, "answer", lambda call: None)
    with pytest.raises(PeerBusy, match="being restored"):
        node.ask()
    running = node.asked._running[node.job.key]
    # It is read twice, at half of what a link of one gigabit has.
    assert running.until_s - time.monotonic() > 2 * (64 << 30) / (62 << 20)
    running.until_s = 0.0
    with pytest.raises(PeerBusy):
        node.ask()
    assert running.why == "it was not restored in time"


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_a_gandivad_that_is_killed_beside_its_claim_has_written_down_where_the_image_is(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_claimed: bool
) -> None:
    asking(node, monkeypatch)
    saved: list[Any] = []
    monkeypatch.setattr(node.floor.node, "save", lambda: saved.append(list(node.job.image.restoring)))

    def killed(root: Path, key: JobKey, used: Path) -> None:
        if is_claimed:
            images.place_of(root, key).rename(used)
        raise KeyboardInterrupt

    monkeypatch.setattr(images, "claim", killed)
    with pytest.raises(KeyboardInterrupt):
        node.ask()
    node.job.image.restoring = json.loads(json.dumps(saved[-1]))
    node.asked = Restorer(node.floor.node, node.floor.slicer, node.floor.watcher, None)  # type: ignore[arg-type]
    node.asked.take_over()
    await node.look()
    assert node.kept == [str(OLD)] and node.floor.told(1).unrestored == STARTED_ANEW
    assert node.first.poll() == -signal.SIGKILL, "it has begun in vain"


async def test_a_task_whose_gandivad_was_killed_before_its_restore_waits_too(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back by the other socket, where no image is offered, and would begin anew."""
    node.asked._running.clear()
    monkeypatch.setattr(Restorer, "_find", lambda self, key, uid: (OLD, {}))
    with pytest.raises(Elsewhere):
        node.asked.keep_image(node.task, node.job.key)
    assert node.job.image.unfit == STARTED_ANEW


async def test_one_that_was_restored_is_told_so_again_and_not_ended(node: Node) -> None:
    """Its gandivad was killed between what it wrote down and what it told the task."""
    said = {"root": node.task.proc, "procs": {}, "verify_s": 0.1, "restore_s": 0.1}
    running = node.asked._running[node.job.key]
    running.manifest = {"ranks": [], "inner": 2}
    node.job.image.restoring = running.to_json()
    node.asked._take_over(node.job, node.task, running, said)
    (row,) = [row for row in state_of(node.floor.node)["jobs"] if row["key"] == str(node.job.key)]
    node.job.image = read_job(row, "n1")[0].image
    again = Restorer(node.floor.node, node.floor.slicer, node.floor.watcher, None)  # type: ignore[arg-type]
    again.take_over()
    assert not again._running and not node.job.image.unfit and node.first.poll() is None
    assert again.keep_image(node.task, node.job.key) == {RESTORED: f"{os.getpid()}:2"}


async def test_before_it_runs_it_is_written_down_that_it_was_restored(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a gandivad that is killed meanwhile would have it restored once more, from before those steps."""
    done: list[str] = []
    image = node.job.image

    def save() -> None:
        done.append("known" if image.is_restored and not image.restoring else "unknown")

    monkeypatch.setattr(node.floor.node, "save", save)
    monkeypatch.setattr(node.floor.slicer.switcher, "go", lambda resident: done.append("runs"))
    running = node.asked._running[node.job.key]
    running.manifest = {"ranks": [], "inner": 2}
    node.job.image.restoring = running.to_json()
    node.asked._take_over(node.job, node.task, running, {"root": node.task.proc, "procs": {}})
    assert done == ["known", "runs"]


async def test_a_program_that_cannot_be_started_is_no_end_of_the_image(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, task: dict[str, Any]) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    asking(node, monkeypatch)
    monkeypatch.setattr(imaging, "start", full)
    with pytest.raises(Elsewhere):
        node.ask()
    assert node.kept == [str(OLD)] and "cannot be started: Resource" in node.job.image.unfit
    assert node.job.image.restoring == []


async def test_an_image_that_is_lost_is_no_other_nodes_and_that_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, bool]] = []
    node.asked._running.clear()
    monkeypatch.setattr(Restorer, "_find", lambda self, key, uid: (OLD, {}))
    monkeypatch.setattr(Restorer, "_begin", lambda self, *words: "there is no image of job 1.5 any more")
    note = lambda event, one, **facts: told.append((event, facts["anew"]))  # noqa: E731
    monkeypatch.setattr(node.floor.node, "note", note)
    assert node.ask() == {} and told == [("unrestored", True)] and not node.job.image.unfit


async def test_no_other_step_and_no_hurry_ends_its_wait(node: Node) -> None:
    """A minute is over, and it has not its turn yet: it may be being requeued."""
    node.fail()
    node.floor.next_quantum()
    node.floor.clock.now_ns += UNFIT_NS
    with pytest.raises(Elsewhere):
        node.asked.heed_unfit(node.job.key)
    assert node.kept == [str(OLD)]


async def test_on_the_socket_of_all_it_gets_no_answer_while_it_waits(node: Node) -> None:
    """The plugin takes any answer to BIND 1 for its leave to begin."""
    admission: Any = SimpleNamespace(bind=lambda peer, bind: {})
    speech = Speech(admission, node.asked)
    node.fail()
    by_all, by_root = (b"BIND %d 1 0 batch 0 none none\n" % version for version in (1, 2))
    assert speech._answer(node.task, by_all, is_roots=False) == ""
    assert speech._answer(node.task, by_root).startswith("LATER")
    step = by_all.replace(b"batch", b"0")
    assert speech._answer(node.task, step, is_roots=False).startswith("OK"), "that of another step is its own"


async def gone(node: Node) -> None:
    for _ in range(300):
        if not node.kept:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(node.kept)


def test_an_image_is_given_back_once(tmp_path: Path) -> None:
    images.prepare(tmp_path)
    sealed(tmp_path, OLD)
    used = take(tmp_path, OLD, BY)
    sealed(tmp_path, OLD)
    with pytest.raises(OSError):
        images.give_back(tmp_path, used, OLD)
    assert used.exists(), "the other one is the job's"
