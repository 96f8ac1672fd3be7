"""The loops of an attached script: what runs again, what does not, and what the script is told."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import gandiva_slurm as gandiva
from gandiva_slurm.client import notice, run
from tests import patience


class Killed(BaseException):
    """The script ends here."""


class Counter:
    """Something with a state: counts what it was trained on."""

    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


@pytest.fixture
def lives(fresh, monkeypatch, tmp_path):
    """Run a script until it ends and return its counter; it is killed behind each of the words `deaths`.

    It saves at the boundary behind such a word. Each call is a job of its own.
    """

    def _lives(script, *deaths, make=lambda: ()):
        monkeypatch.setenv("GANDIVA_CHECKPOINT_DIR", tempfile.mkdtemp(dir=tmp_path))
        for death in (*deaths, None):
            fresh()
            counter, loaders = Counter(), make()
            training = gandiva.attach(model=counter, loader=loaders)
            trail = []

            def train(word, death=death, training=training, counter=counter, trail=trail):
                if trail and trail[-1] == death:
                    raise Killed
                trail.append(word)
                counter.seen.append(word)
                if word == death:
                    training.save()

            try:
                script(training, train, *loaders)
            except Killed:
                assert death is not None
                continue
            assert death is None, f"it never trained behind {death}"
        return counter.seen

    return _lives


def test_several_loops_in_an_epoch(lives):
    def script(training, train):
        for epoch in training.epochs(2):
            for word in training.steps(["a", "b"]):
                train(f"{word}{epoch}")
            for word in training.steps(["x", "y"]):
                train(f"{word}{epoch}")

    want = ["a0", "b0", "x0", "y0", "a1", "b1", "x1", "y1"]
    assert lives(script) == want
    for death in want[:-1]:
        assert lives(script, death) == want
    assert lives(script, "a0", "x0", "y0", "b1") == want


def test_loops_without_epochs_and_a_second_phase(lives):
    def script(training, train):
        for word in training.steps(["w1", "w2"]):
            train(word)
        for epoch in training.epochs(2):
            for word in training.steps(["a", "b"]):
                train(f"{word}{epoch}")
        for epoch in training.epochs(2):
            for word in training.steps(["fine"]):
                train(f"{word}{epoch}")
        for word in training.steps(["end1", "end2"]):
            train(word)

    want = ["w1", "w2", "a0", "b0", "a1", "b1", "fine0", "fine1", "end1", "end2"]
    for death in want[:-1]:
        assert lives(script, death) == want


def test_what_runs_again_before_the_loop_counts_for_nothing(lives):
    def script(training, train):
        training._parts[0].thing.seen.append("warm-up")
        for epoch in training.epochs(1):
            training._parts[0].thing.seen.append("head")
            for word in training.steps(["a", "b", "c"]):
                train(f"{word}{epoch}")

    assert lives(script, "a0", "b0") == ["warm-up", "head", "a0", "b0", "c0"]


def test_a_loop_that_is_broken_off(lives):
    def script(training, train):
        for epoch in training.epochs(3):
            for word in training.steps("abcdef"):
                train(f"{word}{epoch}")
                if word == "b":
                    break

    assert lives(script, "a0", "a1") == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_batch_counts_on(lives):
    def script(training, train):
        for _ in training.epochs(2):
            for number, word in enumerate(training.steps("abc"), training.batch):
                assert training.batch == number
                train(f"{word}{number}.{training.epoch}")

    want = ["a0.0", "b1.0", "c2.0", "a0.1", "b1.1", "c2.1"]
    assert lives(script, "b1.0", "b1.1") == want


def test_generators_and_sampler_epochs_of_the_loader(lives):
    data = torch.utils.data.TensorDataset(torch.arange(6))

    def make():
        sampler = torch.utils.data.DistributedSampler(data, 1, 0, seed=3)
        own = torch.Generator().manual_seed(5)
        return (
            torch.utils.data.DataLoader(data, 2, sampler=sampler),
            torch.utils.data.DataLoader(data, 2, shuffle=True, generator=own),
        )

    def script(training, train, *loaders):
        for epoch in training.epochs(3):
            loaders[0].sampler.set_epoch(epoch)
            for loader in loaders:
                for (indexes,) in training.steps(loader):
                    train((epoch, *indexes.tolist()))

    want = lives(script, make=make)
    assert sorted(n for epoch, *indexes in want for n in indexes) == sorted(list(range(6)) * 6)
    for death in want[:-1]:
        assert lives(script, death, make=make) == want


def test_what_is_drawn_before_the_loop_comes_out_the_same(lives):
    def script(training, train):
        torch.manual_seed(3)
        for epoch in training.epochs(3):
            for words in training.steps(torch.rand(3, 2)):
                train((epoch, *words.tolist(), torch.rand(1).item()))

    want = lives(script)
    for death in want[:-1]:
        assert lives(script, death) == want


class Stateful:
    """A loader with a state of its own, as StatefulDataLoader; it counts what it reads."""

    reads = 0

    def __init__(self):
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            Stateful.reads += 1
            yield f"s{self.at}"
        self.at = 0


def test_loader_with_a_state_of_its_own_is_not_replayed(lives):
    def script(training, train):
        loader = Stateful()
        for epoch in training.epochs(2):
            for word in training.steps(loader):
                train(f"{word}.{epoch}")

    want = [f"s{n}.{epoch}" for epoch in range(2) for n in range(1, 6)]
    Stateful.reads = 0
    assert lives(script, "s3.0", "s2.1") == want
    assert Stateful.reads <= len(want) + 2, "one is read ahead of each kill"


def test_loader_whose_state_cannot_be_had_is_replayed(lives):
    class Hollow(list):
        def state_dict(self):
            raise AttributeError("dl_state_dict")

        load_state_dict = state_dict

    def script(training, train):
        for word in training.steps(Hollow("abc")):
            train(word)

    assert lives(script, "b") == list("abc")


def test_what_the_script_saves_itself_comes_back_once(lives, capfd):
    back = []

    def script(training, train):
        words = []
        gandiva.on_save(lambda: words)
        gandiva.on_load(words.extend)
        gandiva.on_load(back.append)
        for _ in training.epochs(1):
            for word in training.steps("abcd"):
                words.append(word)
                train(word)
        assert words == list("abcd")

    assert lives(script, "b") == list("abcd")
    assert gandiva.restarted and back == []
    assert "goes on from" in capfd.readouterr().err


def test_inner_loop_is_handed_through(lives, capsys):
    def script(training, train):
        for word in training.steps("ab"):
            assert list(training.steps([1, 2])) == [1, 2]
            train(word)

    assert lives(script, "a") == ["a", "b"]
    assert "a run.steps() inside another is handed through" in capsys.readouterr().err


def test_loop_kept_by_its_iterator_is_over_when_it_is(lives):
    def script(training, train):
        first = iter(training.steps("ab"))
        for word in first:
            train(word)
        for word in training.steps("cd"):
            train(word)

    assert lives(script, "b", "c") == list("abcd")


def test_changed_loops_are_told(lives, fresh):
    def script(training, train):
        for epoch in training.epochs(2):
            for word in training.steps("ab"):
                train(f"{word}{epoch}")

    with pytest.raises(AssertionError, match="never trained behind"):
        lives(script, "b1")
    fresh()
    training = gandiva.attach(model=Counter())
    list(training.epochs(9))
    with pytest.raises(
        gandiva.BadCheckpoint, match="loops have changed since it was saved: it passed by epoch 1"
    ):
        list(training.epochs(9))


def test_changed_data_is_told(lives, fresh):
    def script(training, train):
        for word in training.steps("abcd"):
            train(word)

    with pytest.raises(AssertionError):
        lives(script, "d")
    fresh()
    training = gandiva.attach(model=Counter())
    with pytest.raises(gandiva.BadCheckpoint, match=r"data has changed .* 2 mini-batches, and 4 were done"):
        list(training.steps(iter("ab")))


def test_alone_the_script_runs_as_it_is(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("GANDIVA_CHECKPOINT_DIR")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notice, "_said", set())
    training = gandiva.attach(model=Counter())
    words = []
    for _ in training.epochs(2):
        loader = training.steps("ab")
        assert len(loader) == 2
        for number, word in enumerate(loader, training.batch):
            training.save()
            assert training.batch == number
            words.append(word)
    assert words == list("abab") and list(tmp_path.iterdir()) == []
    assert gandiva.checkpoint_dir is None and not gandiva.restarted
    assert capsys.readouterr().err == f"gandiva: {run._ALONE}\n"


def test_what_cannot_be_saved_is_refused_at_once():
    with pytest.raises(TypeError, match="the scheduler 'fast' is a int, which has no state_dict"):
        gandiva.attach(model=[Counter(), None], scheduler={"slow": None, "fast": 3})


def test_ranks_that_do_not_step_together_are_not_saved(monkeypatch, capsys, fresh):
    fresh()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    gandiva.attach(model=Counter(), lockstep=False).save()
    assert "is not saved and cannot be moved: its ranks do not step together" in capsys.readouterr().err


def test_directory_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setenv("GANDIVA_CHECKPOINT_DIR", "/scratch/%j/here")
    assert gandiva.checkpoint_dir == "/scratch/71/here"
    monkeypatch.delenv("GANDIVA_CHECKPOINT_DIR")
    monkeypatch.setenv("GANDIVA_SOCKET", "/run/nobody")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path))
    assert gandiva.checkpoint_dir == str(tmp_path / ".gandiva" / "71")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert gandiva.restarted


TORCHLESS = """
import sys
import gandiva_slurm as gandiva

class Weights:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

weights = Weights()
run = gandiva.attach(model=weights)
for n in run.steps(range(10)):
    weights.value += n
    if n == 6 and not gandiva.restarted:
        sys.exit(3)
    run.save()
print(weights.value, "torch" in sys.modules)
"""


def test_training_without_torch(tmp_path):
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "GANDIVA_CHECKPOINT_DIR": "here"}
    codes = []
    for _ in range(2):
        argv = [sys.executable, "-c", TORCHLESS]
        limit_s = 60 * patience.slowness()
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=limit_s)
        codes.append(done.returncode)
    assert codes == [3, 0] and done.stdout == "45 False\n", done.stderr
