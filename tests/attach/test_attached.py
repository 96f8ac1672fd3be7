"""Trainers of frameworks that are attached without a line: within this process, as the hook has them."""

import os
import signal
import sys

import lightning.pytorch as lightning
import pytest
import pytorch_lightning
import torch
import transformers
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, TrainerCallback

from gandiva_slurm.client import frameworks, hf, keeper, rank
from gandiva_slurm.client.lightning import GandivaCallback
from gandiva_slurm.wire.page import KIND_RUN, KIND_STEPS
from tests.attach.trainings import BATCH, Data, Life, Module, Net
from tests.stopping import Killed

MODULES = {
    "transformers.trainer": "train",
    "lightning.pytorch.trainer.trainer": "fit",
    "pytorch_lightning.trainer.trainer": "fit",
}
TALK = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
#: What a package's name is tested by, and the callback that a script may put in itself.
OWN = {"lightning": GandivaCallback, "transformers": hf.GandivaCallback}


@pytest.fixture(autouse=True)
def keepers(monkeypatch):
    """Let the hook have found the frameworks; return what was opened for trainings."""
    for name, method in MODULES.items():
        module = sys.modules[name]
        monkeypatch.setattr(module.Trainer, method, getattr(module.Trainer, method))
        frameworks.install(module)
    opened = []
    begin = keeper.Keeper.__init__
    monkeypatch.setattr(
        keeper.Keeper, "__init__", lambda self, *args: (opened.append(self), begin(self, *args))[1]
    )
    return opened


@pytest.fixture(autouse=True)
def ask(keepers, monkeypatch):
    """Let a life that is to be saved ask whatever was put in."""
    monkeypatch.setattr(Life, "ask", lambda life: keepers[-1].save_soon())


@pytest.fixture
def node(monkeypatch, tmp_path):
    """Return the rank of a job whose node is never reached."""
    monkeypatch.setenv("GANDIVA_SOCKET", str(tmp_path / "nobody.sock"))
    return rank.this_rank()


def by_trainer(directory, kind=transformers.Trainer, callbacks=(), data=None, **options):
    class Script(kind):
        def compute_loss(self, *args, **kwargs):
            compute = super().compute_loss
            if not self.model.training:
                return compute(*args, **kwargs)
            return self.life.step(lambda: compute(*args, **kwargs))

    given = {"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "no", **options}
    args = transformers.TrainingArguments(
        str(directory), num_train_epochs=3, per_device_train_batch_size=BATCH, report_to=[], use_cpu=True,
        disable_tqdm=True, **given,
    )  # fmt: skip
    seen, noisy = Data(is_noisy=False), Data(is_noisy=True)
    made = Script(Net(), args, train_dataset=data or noisy, eval_dataset=seen, callbacks=list(callbacks))
    made.life = Life([], [], None, None)
    return made


def trained(directory, callbacks=(), resume=None, **options):
    """The lives of a script with a Trainer and no word of ours."""

    def life(losses, trail, death):
        made = by_trainer(directory, callbacks=[make() for make in callbacks], **options)
        made.life = Life(losses, trail, death, None)
        made.train(resume_from_checkpoint=resume)
        trail += [row["eval_loss"] for row in made.state.log_history if "eval_loss" in row]

    return life


def lit(package=lightning, callbacks=(), ckpt_path=None, **options):
    """The lives of a script with a Trainer of Lightning's and no word of ours."""

    class Its(package.LightningModule):
        training_step, configure_optimizers = Module.training_step, Module.configure_optimizers

        def __init__(self, life):
            super().__init__()
            self.net, self.life = Net(), life

    def life(*what):
        made = package.Trainer(
            accelerator="cpu", max_epochs=3, callbacks=[make() for make in callbacks],
            **{**dict.fromkeys(TALK, False), **options},
        )  # fmt: skip
        loader = DataLoader(Data(is_noisy=True), BATCH, shuffle=True)
        made.fit(Its(Life(*what, None)), loader, ckpt_path=ckpt_path)

    return life


def script(package, path, **options):
    return trained(path / "out", **options) if package == "transformers" else lit(**options)


@pytest.mark.parametrize("package", OWN)
@pytest.mark.parametrize("has_own", [False, True])
def test_it_goes_on_by_itself_to_the_last_bit(package, has_own, lives, tmp_path, keepers):
    life = script(package, tmp_path, callbacks=[OWN[package]] if has_own else [])
    want = lives(life)
    assert len(want[0]) == 30
    del keepers[:]
    assert lives(life, 4, 10, 18, 24) == want
    assert len(keepers) == 5, "a life has one callback, whoever put it in"


def test_the_package_by_its_older_name(lives):
    want = lives(lit(pytorch_lightning))
    assert lives(lit(pytorch_lightning), 4, 13) == want


def test_what_the_script_is_to_begin_from_holds_until_it_is_moved(lives, tmp_path):
    saved = by_trainer(tmp_path / "before", save_strategy="steps", save_steps=5, max_steps=5)
    saved.train()
    path = tmp_path / "before" / "checkpoint-5"
    life = trained(tmp_path / "out", resume=str(path))
    want = lives(life)
    assert len(want[0]) == 25
    assert lives(life, 8, 16) == want


def test_what_lightning_is_to_begin_from_holds_until_it_is_moved(lives, tmp_path):
    path = tmp_path / "before.ckpt"
    made = lightning.Trainer(accelerator="cpu", max_epochs=1, **dict.fromkeys(TALK, False))
    made.fit(Module(Life([], [], None, None)), DataLoader(Data(is_noisy=False), BATCH))
    made.save_checkpoint(path)
    life = lit(ckpt_path=str(path))
    want = lives(life)
    assert len(want[0]) == 20
    assert lives(life, 4, 13) == want


def test_what_the_script_has_saved_later_is_where_it_goes_on(lives, tmp_path, monkeypatch, capfd):
    """Its node died long after it was moved: its own checkpoint, of 12, is newer than ours, of 6."""
    ask, seen = Life.ask, []
    monkeypatch.setattr(Life, "ask", lambda life: ask(life) if len(life.losses) == 6 else None)

    def job(*what):
        seen.append(what)
        trained(tmp_path / "out", save_strategy="steps", save_steps=4, resume=len(seen) == 3 or None)(*what)

    losses, _ = lives(job, 6, 14)
    assert len(losses) == 14 + 30 - 12
    assert "goes on from True after all, which was saved later" in capfd.readouterr().err


def test_what_lightning_has_saved_later_is_where_it_goes_on(lives, tmp_path, monkeypatch, capfd):
    """Lightning's own requeueing saves, and is left to the script that knows nothing of us."""
    ask, seen, path = Life.ask, [], tmp_path / "own.ckpt"
    monkeypatch.setattr(Life, "ask", lambda life: ask(life) if len(life.losses) == 6 else None)

    class Saves(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 12:
                trainer.save_checkpoint(path)

    def job(*what):
        seen.append(what)
        lit(callbacks=[Saves], ckpt_path=str(path) if path.exists() else None)(*what)

    losses, _ = lives(job, 6, 14)
    assert len(losses) == 14 + 30 - 12
    assert f"goes on from {path} after all, which was saved later" in capfd.readouterr().err


@pytest.mark.parametrize("package", OWN)
def test_second_training_is_not_moved_and_says_so(package, lives, tmp_path, node, capfd):
    kinds = []

    class Seen(TrainerCallback):
        def on_step_end(self, *_, **__):
            kinds.append(node.kind)

    class Watched(lightning.Callback):
        def on_train_batch_end(self, *_):
            kinds.append(node.kind)

    life = script(package, tmp_path, callbacks=[Seen if package == "transformers" else Watched])
    lives(lambda *what: (life(*what), life(*what)))
    assert kinds == [KIND_RUN] * 30 + [KIND_STEPS] * 30
    assert node._unmoved == "it is not the script's first training"
    assert "cannot be moved: it is not the script's first training" in capfd.readouterr().err


VERSIONS = {
    "transformers": ("5.99.0", "5.24.0.dev0", "unknown"),
    "lightning": ("3.0.0", "2.60.1", "2.6"),
}


@pytest.mark.parametrize("package", OWN)
def test_unknown_version_is_not_guessed_at(package, lives, tmp_path, node, monkeypatch):
    for version in VERSIONS[package]:
        monkeypatch.setattr(sys.modules[package], "__version__", version)
        kinds = []

        def step(life, compute, kinds=kinds):
            kinds.append(node.kind)
            return compute()

        monkeypatch.setattr(Life, "step", step)
        lives(script(package, tmp_path))
        assert len(kinds) == 30 and KIND_RUN not in kinds
        assert node._unmoved.startswith(f"{package} {version}, known are ")


@pytest.mark.parametrize("package", OWN)
def test_unknown_version_with_the_scripts_own_callback(package, lives, tmp_path, keepers, monkeypatch):
    """Its author has tried it, so its word stands."""
    monkeypatch.setattr(sys.modules[package], "__version__", "99.0.0")
    lives(script(package, tmp_path, callbacks=[OWN[package]]))
    assert len(keepers) == 1


def test_ways_to_train_that_are_not_known_are_not_moved(tmp_path, keepers, node, monkeypatch):
    made = by_trainer(tmp_path / "out", max_steps=2)
    made.is_deepspeed_enabled = True
    assert "DeepSpeed" in hf.why_not(made)
    monkeypatch.setattr(hf, "why_not", lambda trainer: "it trains by magic")
    made.is_deepspeed_enabled = False
    made.train()
    assert keepers == [] and node._unmoved == "it trains by magic"


def test_a_trainer_with_a_loop_of_its_own_is_left_alone(tmp_path, keepers):
    class Own(transformers.Trainer):
        def train(self):
            return "trained"

    assert by_trainer(tmp_path / "out", Own).train() == "trained" and keepers == []


def test_a_trainer_that_overrides_train_and_calls_it_is_attached(tmp_path, keepers):
    class Own(transformers.Trainer):
        def train(self, *args, **kwargs):
            return super().train(*args, **kwargs)

    by_trainer(tmp_path / "out", Own, max_steps=2).train()
    assert len(keepers) == 1


def test_nothing_is_opened_where_nothing_trains(tmp_path, keepers):
    made = by_trainer(tmp_path / "out")
    made.evaluate()
    made.predict(Data(is_noisy=False))
    trainer = lightning.Trainer(accelerator="cpu", **dict.fromkeys(TALK, False))
    trainer.validate(Module(Life([], [], None, None)), DataLoader(Data(is_noisy=False), BATCH), verbose=False)
    assert keepers == []


def test_lightning_requeues_as_the_script_has_it(lives, monkeypatch):
    """It is its own way on at its time limit: it saves and requeues as if we were not there."""
    calls, connector = [], "lightning.pytorch.trainer.connectors.signal_connector"
    monkeypatch.setattr(f"{connector}.call", lambda argv: calls.append(argv) or 0)
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"):
        monkeypatch.setenv(name, str(int(name == "SLURM_NTASKS")))
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setattr(Life, "ask", lambda life: os.kill(os.getpid(), signal.SIGUSR1))
    before = signal.getsignal(signal.SIGUSR1)
    try:
        lives(lit(default_root_dir=os.environ["GANDIVA_CHECKPOINT_DIR"] + ".own"), 7)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [["scontrol", "requeue", "5"]]


def test_a_tuners_tries_are_no_training(lives, tmp_path, node, keepers):
    """They run in the midst of a fit's begin; the fit behind them is the script's first training."""
    kinds = []

    def life(*what):
        model, loader = Module(Life([], [], None, None)), DataLoader(Data(is_noisy=True), BATCH)
        made = lightning.Trainer(
            accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, **dict.fromkeys(TALK, False)
        )
        Tuner(made).lr_find(model, loader, num_training=8, update_attr=False)
        kinds.append(node.kind)
        model.life = Life(*what, None)
        made.fit(model, loader)

    want = lives(life)
    assert len(want[0]) == 10
    assert lives(life, 3, 7) == want
    assert len(keepers) == 4 and KIND_RUN not in kinds


def test_a_training_that_fails_leaves_the_trainer_as_it_was(tmp_path, node):
    made = by_trainer(tmp_path / "out")
    before = dict(vars(made)), [type(one) for one in made.callback_handler.callbacks]
    made.life = Life([], [], 3, None)
    with pytest.raises(Killed):
        made.train()
    assert "get_batch_samples" not in vars(made) and "get_batch_samples" not in before[0]
    assert [type(one) for one in made.callback_handler.callbacks] == before[1]
    assert node.kind != KIND_RUN


class Stream(torch.utils.data.IterableDataset):
    """Ten batches without a length, drawn as they are read."""

    def __iter__(self):
        for number in range(10 * BATCH):
            x = torch.rand(4) + number
            yield {"x": x, "labels": x[:1]}


def test_stream_is_moved_in_its_first_pass(lives, tmp_path, node, capfd):
    """A Trainer counts by the whole training what it is to skip, which is more than a stream has."""
    kinds = []

    class Seen(TrainerCallback):
        def on_step_end(self, *_, **__):
            kinds.append(node.kind)

    life = trained(tmp_path / "out", callbacks=[Seen], data=Stream(), max_steps=15)
    want = lives(life)
    assert kinds == [KIND_RUN] * 10 + [KIND_STEPS] * 5
    assert "this is not its first pass over it" in node._unmoved
    assert lives(life, 1, 4, 8) == want


def test_patience_comes_back(lives, tmp_path):
    """EarlyStopping counts the evaluations without a gain; a Trainer itself forgets it."""
    out = tmp_path / "out"
    life = trained(
        out, callbacks=[lambda: EarlyStoppingCallback(4, early_stopping_threshold=1e9)], eval_steps=2,
        load_best_model_at_end=True, metric_for_best_model="loss", save_strategy="steps", save_steps=2,
    )  # fmt: skip
    want = lives(life)
    assert 8 <= len(want[0]) < 30
    assert lives(life, 5, 7) == want


def test_a_client_that_fails_costs_no_training(tmp_path, keepers, node, monkeypatch):
    def fail(*_):
        raise RuntimeError("half an upgrade")

    monkeypatch.setattr(hf.GandivaCallback, "last_checkpoint", fail)
    made = by_trainer(tmp_path / "out", max_steps=2)
    made.train()
    assert len(made.life.losses) == 2 and node._unmoved == "the client failed (RuntimeError: half an upgrade)"
