"""A rank in this very process, against the real pages and coordinator."""

import os
import re
import threading
import time

import pytest

from gandiva_slurm.client import machine, notice, summary
from gandiva_slurm.client import rank as rank_module
from gandiva_slurm.client import stop as stop_module
from gandiva_slurm.client.errors import NotSaved
from gandiva_slurm.client.rank import Rank
from gandiva_slurm.client.tiers import HoldTier, Released
from gandiva_slurm.node.pages import error_text
from gandiva_slurm.wire import page
from tests.park_harness import Harness


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(notice, "_said", set())


@pytest.fixture
def node(tmp_path):
    harness = Harness(str(tmp_path / "node.sock"), 1)
    yield harness
    harness.close()


class Trainer(threading.Thread):
    """Passes boundaries as fast as it may until told to end; what it raises is kept."""

    def __init__(self, rank):
        super().__init__(daemon=True)
        self.rank = rank
        self.ending = threading.Event()
        self.error = None

    def run(self):
        try:
            while not self.ending.is_set():
                self.rank.boundary()
                time.sleep(0.0005)
        except BaseException as err:
            self.error = err

    def finish(self):
        self.ending.set()
        self.join(10)
        assert not self.is_alive(), f"still at boundary {self.rank.seq}, {self.rank.stop.place}"
        if self.error:
            raise self.error


@pytest.fixture
def training(node, tmp_path):
    trainer = Trainer(Rank(str(tmp_path / "node.sock")))
    trainer.start()
    node.serve()
    yield trainer
    trainer.ending.set()


def words_of(node):
    return node.views()[0]


def test_rank_registers_at_its_first_boundary_only(node, tmp_path, monkeypatch):
    monkeypatch.setattr(rank_module, "shortest_timeout_ms", lambda: 33_000)
    rank = Rank(str(tmp_path / "node.sock"))
    assert not node.accept(), "it has connected before its first boundary"
    trainer = Trainer(rank)
    trainer.start()
    node.serve()
    trainer.finish()
    words = words_of(node)
    assert node.peers[0].pid == os.getpid() == words[page.W_PID]
    assert node.peers[0].hello["start"] == words[page.W_START]
    assert words[page.W_SEQ] == words[page.W_USER_STEPS] == rank.seq
    assert 0 < words[page.W_FIRST_NS] < words[page.W_LAST_NS] <= time.monotonic_ns()
    assert words[page.W_KIND] == page.KIND_HOOK and words[page.W_GROUP_MS] == 33_000


def test_first_rank_shows_when_its_jobs_newest_file_was_written(node, tmp_path, monkeypatch):
    """In a thread of its own; a boundary waits for no file system."""
    monkeypatch.setenv("GANDIVA_CHECKPOINT_FILES", "out-%j")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (tmp_path / "out-7").mkdir()
    (tmp_path / "out-7/last.pt").write_text("weights")
    os.utime(tmp_path / "out-7/last.pt", (1234, 1234))
    trainer = Trainer(Rank(str(tmp_path / "node.sock")))
    trainer.start()
    node.serve()
    node.wait(lambda: words_of(node)[page.W_FILE_S] == 1234, "the file's time on the page")
    trainer.finish()


def test_rank_keeps_its_page_open_for_the_nodes_return(node, training):
    fd = node.peers[0].page_fd
    assert os.fstat(fd).st_ino == os.fstat(node.peers[0].page.fd).st_ino
    assert not os.get_inheritable(fd)


def test_park_and_resume(node, training):
    node.park()
    assert node.gang.phase == "parked"
    words = words_of(node)
    assert words[page.W_STATE] == page.PARKED and words[page.W_STATE_SEQ] == words[page.W_SEQ]
    assert (words[page.W_RELEASED], words[page.W_HELD], words[page.W_TIER_USED]) == (0, 0, page.TIER_HOLD)
    time.sleep(0.05)
    assert words_of(node)[page.W_SEQ] == words[page.W_SEQ], "a parked rank trains"
    node.resume()
    node.wait(lambda: words_of(node)[page.W_SEQ] > words[page.W_SEQ] + 3, "training to go on")
    training.finish()


def test_last_word_of_a_rank_is_done_and_its_user_is_told_what_it_did(node, training, monkeypatch, capsys):
    monkeypatch.setattr(summary, "LEAST_NS", 0)
    node.park()
    node.resume()
    node.wait(lambda: words_of(node)[page.W_STATE] == page.RUN, "it to train")
    training.finish()
    training.rank.finish()
    assert words_of(node)[page.W_STATE] == page.DONE
    told = capsys.readouterr().err
    assert re.search(rf"\b{training.rank.user_steps} mini-batches in 00:0\d:\d\d", told) and "(once)" in told


class BrokenTier(HoldTier):
    """Fails as often as it is told to, then works."""

    number = page.TIER_TORCH

    def __init__(self, releases=0, restores=0):
        self.releases, self.restores = releases, restores

    def release(self, drain_s):
        if self.releases:
            self.releases -= 1
            raise RuntimeError("cannot copy 5 GiB to the host")
        return Released(7, 3)

    def restore(self):
        if self.restores:
            self.restores -= 1
            raise MemoryError("device is full")


def test_failed_release_trains_on_and_says_why(node, training):
    training.rank.stop.tier = BrokenTier(releases=1)
    node.park()
    assert node.gang.phase == "running" and node.gang.failed_parks == 1
    words = words_of(node)
    assert error_text(words) == "RuntimeError: cannot copy 5 GiB to the host" and words[page.W_ERROR] == 1
    node.park()
    assert node.gang.phase == "parked"
    assert (words_of(node)[page.W_RELEASED], words_of(node)[page.W_HELD]) == (7, 3)
    node.resume()
    training.finish()


def test_only_a_park_that_asks_for_it_saves_and_a_failed_save_is_no_park(node, training):
    saved = []

    def save():
        saved.append(training.rank.seq)
        raise NotSaved("no space left")

    training.rank.stop.save = save
    node.park()
    assert node.gang.phase == "parked" and saved == []
    node.resume()
    node.peers[0].page.write([(page.W_TIER, page.TIER_REQUEUE)])
    node.park()
    assert node.gang.phase == "running" and len(saved) == 1
    assert error_text(words_of(node)) == "no space left"
    training.finish()


class CalledTier(HoldTier):
    """Its memory is wanted back as soon as it is away: a signal waits for its handler."""

    number, back = page.TIER_TORCH, 0

    def release(self, drain_s):
        return Released(7, 0)

    def is_called(self):
        return True

    def restore_at_last(self):
        self.back += 1


def test_a_park_that_is_interrupted_takes_the_memory_back_first(node, training):
    """Also where the node happens to look just after it had parked: `watch` then sees it train."""
    training.rank.stop.tier = tier = CalledTier()
    node.begin_park()
    node.wait(lambda: words_of(node)[page.W_STATE] == page.LEFT, "it to leave the park", between=node.tick)
    seq = training.rank.seq
    node.wait(lambda: training.rank.seq > seq + 2, "training to go on", between=node.tick)
    assert tier.back == 1
    training.finish()


def test_failed_restore_stays_parked_and_is_tried_again(node, training):
    training.rank.stop.tier = tier = BrokenTier(restores=3)
    node.park()
    node.resume()
    assert tier.restores == 0 and words_of(node)[page.W_ERROR] == 3
    assert error_text(words_of(node)) == "MemoryError: device is full"
    training.finish()


def test_unfit_boundary_is_not_parked_at(node, training, monkeypatch):
    monkeypatch.setattr(stop_module, "is_fit_to_park", lambda: False)
    node.begin_park()
    seq = training.rank.seq
    node.wait(lambda: training.rank.seq > seq + 5, "some unfit boundaries", between=node.tick)
    assert node.gang.phase == "committing"
    monkeypatch.setattr(stop_module, "is_fit_to_park", lambda: True)
    node.wait(lambda: node.gang.phase == "parked", "the next fit boundary", between=node.tick)
    node.resume()
    training.finish()


def test_our_own_error_never_reaches_the_script(node, training, monkeypatch, capsys):
    monkeypatch.setattr(machine, "advance", lambda *args: 1 / 0)
    node.begin_park()
    seq = training.rank.seq
    node.wait(lambda: training.rank.seq > seq + 5, "training to go on")
    training.finish()
    assert "takes no further part (ZeroDivisionError" in capsys.readouterr().err
    assert error_text(words_of(node)).startswith("ZeroDivisionError")


def test_other_threads_pass_no_boundary(node, training):
    training.finish()
    seq = training.rank.seq
    training.rank.boundary()
    assert training.rank.seq == seq


def test_boundary_of_a_signal_handler_while_stopped_does_not_stop_again(node, training):
    training.rank._is_stopped = True
    node.begin_park()
    seq = training.rank.seq
    node.wait(lambda: training.rank.seq > seq + 5, "training to go on")
    training.rank._is_stopped = False
    node.wait(lambda: node.gang.phase == "parked", "the park", between=node.tick)
    node.resume()
    training.finish()


def test_loader_worker_is_no_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_module, "is_loader_worker", lambda: True)
    rank = Rank(str(tmp_path / "nobody.sock"))
    rank.boundary()
    rank.boundary()
    assert rank.seq == 0


def test_forked_child_of_a_rank_is_no_rank(tmp_path):
    rank = Rank(str(tmp_path / "nobody.sock"))
    rank.boundary()
    words = rank.words
    rank.disarm()
    rank.boundary()
    rank.finish()
    assert rank.seq == 1 and rank.words is not words and words[page.W_STATE] == page.RUN


def test_forked_child_of_another_process_may_become_a_rank(tmp_path):
    rank = Rank(str(tmp_path / "nobody.sock"))
    rank.disarm()
    rank.boundary()
    assert rank.seq == 1


class PatientTier(HoldTier):
    """Notes how long it may wait for the device."""

    def release(self, drain_s=0.0):
        self.drain_s = drain_s
        return Released(0, 0)


def test_the_measured_step_and_the_nodes_deadline_bound_the_wait(node, tmp_path):
    node.answer = {"ok": True, "park_deadline_s": 9}
    trainer = Trainer(Rank(str(tmp_path / "node.sock")))
    trainer.start()
    node.serve()
    trainer.rank.stop.tier = tier = PatientTier()
    for step_s, drain_s in ((0.6, 2.4), (1, 3), (0.1, 2)):
        trainer.rank._step_ns = lambda waited_ns, step_s=step_s: int(step_s * 1e9)
        node.park()
        assert tier.drain_s == drain_s
        node.resume()
    trainer.finish()
