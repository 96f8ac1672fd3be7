"""Fixtures for trainings that are attached, saved and started again within one process."""

import threading

import pytest
import torch

from gandiva_slurm.client import notice, rank, run, vault
from tests.stopping import Killed


def finish_writing():
    """As at a process's end: wait until what was saved is on disk."""
    for thread in threading.enumerate():
        if thread.name == "gandiva-save":
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture(autouse=True, scope="module")
def few(few_objects):
    """Each module of this floor parks trainings."""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A directory for checkpoints, a process that has attached nothing yet, one thread."""
    for name in ("GANDIVA_SOCKET", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GANDIVA_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setattr(rank, "_rank", None)
    monkeypatch.setattr(run, "_has_loaded", False)
    monkeypatch.setattr(notice, "_said", set())
    threads, is_strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield tmp_path / "checkpoints"
    finish_writing()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(is_strict)


@pytest.fixture
def fresh(monkeypatch):
    """Be as a new process is."""

    def _fresh():
        finish_writing()
        monkeypatch.setattr(vault, "_opened", 0)
        monkeypatch.setattr(run, "_on_save", [])
        monkeypatch.setattr(run, "_on_load", [])
        monkeypatch.setattr(notice, "_said", set())

    return _fresh


@pytest.fixture
def lives(fresh, monkeypatch, tmp_path):
    """Run a training to its end, killed behind each of the given numbers of losses."""

    def _lives(life, *deaths):
        monkeypatch.setenv("GANDIVA_CHECKPOINT_DIR", str(tmp_path / f"killed{deaths}"))
        losses, trail = [], []
        for death in (*deaths, None):
            fresh()
            torch.manual_seed(0)
            try:
                life(losses, trail, death)
            except Killed:
                assert len(losses) == death
                continue
            assert death is None, f"it never came to {death} losses"
        return losses, trail

    return _lives
