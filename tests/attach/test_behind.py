"""Checkpoints that are written while the training goes on."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import gandiva_slurm as gandiva
from gandiva_slurm.client import checkpoint
from tests import patience
from tests.attach.conftest import finish_writing
from tests.park_harness import wait_until

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60


@pytest.fixture
def slow(monkeypatch):
    """A disk that takes a checkpoint when it is told to; `slow.begun` are those it was given."""

    class Slow:
        begun, at_once, most_at_once, gate = [], 0, 0, threading.Event()

    real, slow = checkpoint.save, Slow()

    def save(store, count, write, facts):
        slow.begun.append(count)
        slow.at_once += 1
        slow.most_at_once = max(slow.at_once, slow.most_at_once)
        assert slow.gate.wait(DEADLINE_S)
        path = real(store, count, write, facts)
        slow.at_once -= 1
        return path

    monkeypatch.setattr(checkpoint, "save", save)
    yield slow
    slow.gate.set()
    finish_writing()


def saved():
    return sorted(path.name for path in Path(gandiva.checkpoint_dir).glob("*-*"))


def test_training_goes_on_and_its_state_of_then_is_written(slow, fresh):
    fresh()
    model = nn.Linear(2, 2)
    run = gandiva.attach(model=model)
    then = []
    for number in run.steps(range(5)):
        with torch.no_grad():
            model.weight += 1
        if number == 1:
            run.save()
            then.append(model.weight.detach().clone())
    wait_until(lambda: slow.begun == [2], "the writing to begin")
    assert saved() == [], "it has come to its end, and nothing is written yet"
    slow.gate.set()
    fresh()
    model = nn.Linear(2, 2)
    gandiva.attach(model=model)
    assert torch.equal(model.weight, then[0])


def test_never_two_at_once_and_none_left_out(slow, fresh):
    fresh()
    run = gandiva.attach(model=nn.Linear(2, 2))
    opener = threading.Timer(0.2, slow.gate.set)
    for number in run.steps(range(4)):
        if number == 1:
            opener.start()
        run.save()
    finish_writing()
    opener.join()
    assert slow.begun == [1, 2, 3, 4] and slow.most_at_once == 1


def test_order_to_leave_waits_for_it_and_writes_no_boundary_twice(slow, fresh, capsys):
    fresh()
    run = gandiva.attach(model=nn.Linear(2, 2))
    slow.gate.set()
    for number in run.steps(range(3)):
        if number == 1:
            run.save()
        if number == 2:
            run._save()  # as the node's order does at that boundary, behind the script's own wish
            assert len(saved()) == 1
    assert slow.begun == [2]
    run._save()
    assert slow.begun == [2, 3], "the next boundary is another"
    assert capsys.readouterr().err.count("saved to") == 2


def test_another_life_of_the_same_start_writes_above_all_there_is(fresh, monkeypatch):
    """As where a launcher starts ranks again in place: nothing gets into what another life left half done."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    for _ in range(2):
        fresh()
        run = gandiva.attach(model=nn.Linear(2, 2))
        for _ in run.steps(range(3)):
            run.save()
            break
        run._boundary()
        finish_writing()
        os.makedirs(os.path.join(gandiva.checkpoint_dir, "train-000000005-0.0"), exist_ok=True)
    assert saved() == ["train-000000001-0.0", "train-000000005-0.0", "train-000000006-0.0"]


LAST = """
import threading
import gandiva_slurm as gandiva
from gandiva_slurm.client import checkpoint

class Weights:
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        pass

def save(*args, save=checkpoint.save):
    threading.main_thread().join()  # the script has come to its end
    return save(*args)

checkpoint.save = save
run = gandiva.attach(model=Weights())
for n in run.steps(range(2)):
    if n == 1 and not gandiva.restarted:
        run.save()
print(gandiva.restarted)
"""


def test_script_that_ends_waits_for_it(tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT), "GANDIVA_CHECKPOINT_DIR": "here"}
    said = []
    for _ in range(2):
        argv = [sys.executable, "-c", LAST]
        limit_s = DEADLINE_S * patience.slowness()
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=limit_s)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said == ["False\n", "True\n"]
