"""Trainings that a framework drives: moved to the last bit, by the framework's own checkpoints."""

import os
import signal

import lightning.pytorch as lightning
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset, IterableDataset

import gandiva_slurm as gandiva
from gandiva_slurm.client import hf, rng
from gandiva_slurm.client.lightning import GandivaCallback

ITEMS, BATCH = 20, 2
#: What a Trainer tells of a training.
LOGGED = ("eval_loss", "loss", "grad_norm", "train_loss")


class Killed(BaseException):
    """The process ends here."""


class Data(Dataset):
    """Its items may have noise, drawn when they are read."""

    def __init__(self, is_noisy):
        self.is_noisy = is_noisy

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        x = torch.full((4,), index / ITEMS)
        return {"x": x + torch.rand(4) if self.is_noisy else x, "labels": x[:1]}


class Net(torch.nn.Module):
    """Takes what the Trainer gives."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def forward(self, x, labels):
        return {"loss": mse_loss(self.body(x), labels)}


class Life:
    """One process of a training: it asks to be saved behind loss number `death`, and dies before the next."""

    def __init__(self, losses, trail, death, callback):
        self.losses, self.trail, self.death, self.callback = losses, trail, death, callback

    def step(self, compute):
        if len(self.losses) == self.death:
            raise Killed
        loss = compute()
        self.losses.append(loss.item())
        if len(self.losses) == self.death:
            self.ask()
        return loss

    def ask(self):
        self.callback._keeper.save_soon()


class Module(lightning.LightningModule):
    """Net, as Lightning wants it; notes what it is called for."""

    def __init__(self, life):
        super().__init__()
        self.net, self.life = Net(), life

    def training_step(self, batch):
        return self.life.step(lambda: self.net(**batch)["loss"])

    def validation_step(self, batch):
        self.log("loss", self.net(**batch)["loss"])

    def on_validation_end(self):
        self.life.trail.append((self.global_step, self.trainer.callback_metrics["loss"].item()))

    def on_train_epoch_end(self):
        self.life.trail.append(self.global_step)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def quiet(**more):
    """A Trainer of Lightning's that prints and writes nothing."""
    talk = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    off = dict.fromkeys(talk, False)
    return lightning.Trainer(accelerator="cpu", max_epochs=3, **off, **more)


class Stream(IterableDataset):
    """The data without a length."""

    def __iter__(self):
        return iter([Data(is_noisy=False)[index] for index in range(ITEMS)])


class Stateful(list):
    """Batches; a pass begins where a state that was loaded says."""

    start = at = 0

    def __iter__(self):
        start, self.start = self.start, 0
        for number in range(start, len(self)):
            self.at = number + 1
            yield self[number]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = state["at"]


def by_lightning(workers=0, make=None, interval=0.5, **options):
    def life(*what):
        callback = GandivaCallback()
        trainer = quiet(callbacks=[callback], num_sanity_val_steps=0, val_check_interval=interval, **options)
        loader = DataLoader(Data(is_noisy=True), BATCH, shuffle=True, num_workers=workers)
        trainer.fit(
            Module(Life(*what, callback)), make() if make else loader, DataLoader(Data(is_noisy=False), BATCH)
        )

    return life


def by_trainer(directory, is_told=True, is_noisy=False, **options):
    class Script(transformers.Trainer):
        def compute_loss(self, *args, **kwargs):
            if not self.model.training:
                return super().compute_loss(*args, **kwargs)
            compute = super().compute_loss
            return self.life.step(lambda: compute(*args, **kwargs))

    def life(losses, trail, death):
        callback = hf.GandivaCallback()
        args = transformers.TrainingArguments(
            str(directory), num_train_epochs=3, per_device_train_batch_size=BATCH, eval_strategy="steps",
            eval_steps=5, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=3,
            **options,
        )  # fmt: skip
        data = Data(is_noisy=False)
        trainer = Script(Net(), args, train_dataset=Data(is_noisy), eval_dataset=data, callbacks=[callback])
        trainer.life = Life(losses, trail, death, callback)
        trainer.train(resume_from_checkpoint=callback.last_checkpoint() if is_told else None)
        told = [(row["step"], row[name]) for row in trainer.state.log_history for name in LOGGED if name in row]
        trail += told
        assert not list(directory.iterdir()), "what the script puts out is its own"

    return life


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


LIGHTNING = {
    "in an epoch": ((3, 17), {}),
    "at a validation and an epoch's end": ((5, 10, 20), {}),
    "a stream": ((3, 10, 16), {"make": lambda: DataLoader(Stream(), BATCH), "interval": 1.0}),
    "a loader with a state": ((3, 17), {"make": lambda: Stateful(DataLoader(Data(is_noisy=False), BATCH))}),
    "loaded by workers": ((4, 13), {"workers": 1}),
    "accumulating gradients": ((4, 18), {"accumulate_grad_batches": 4}),
}


@pytest.mark.parametrize("case", LIGHTNING)
def test_lightning_goes_on_to_the_last_bit(case, lives):
    deaths, options = LIGHTNING[case]
    want = lives(by_lightning(**options))
    assert len(want[0]) == 30 and len(want[1]) == 6 + 3 * (case != "a stream")
    assert lives(by_lightning(**options), *deaths) == want


TRAINER = {
    "as it is": {},
    "accumulating gradients": {"gradient_accumulation_steps": 2},
    "drawing as it reads": {"is_noisy": True},
    "drawing, accumulating": {"is_noisy": True, "gradient_accumulation_steps": 4},
    "drawing in workers": {"is_noisy": True, "dataloader_num_workers": 2},
}


@pytest.mark.parametrize("case", TRAINER)
def test_trainer_goes_on_to_the_last_bit(case, lives, tmp_path):
    life = by_trainer(tmp_path / "out", **TRAINER[case])
    want = lives(life)
    assert len(want[0]) == 30 and len(want[1]) > 6
    assert lives(life, 4, 10, 18) == want


@pytest.mark.parametrize("life", [by_lightning, by_trainer])
def test_what_cannot_be_saved_trains_on(life, fresh, monkeypatch, tmp_path, capfd):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GANDIVA_CHECKPOINT_DIR", str(tmp_path / "file" / "checkpoints"))
    monkeypatch.setattr(Life, "step", lambda life, compute: (life.ask(), life.losses.append(0), compute())[2])
    fresh()
    losses = []
    (life() if life is by_lightning else life(tmp_path / "out"))(losses, [], None)
    assert len(losses) == 30
    assert "not saved, training goes on: no checkpoint in" in capfd.readouterr().err


def test_trainer_that_is_not_told_begins_anew(lives, tmp_path, capfd):
    losses, _ = lives(by_trainer(tmp_path / "out", is_told=False), 4)
    assert len(losses) == 4 + 30
    assert "next: trainer.train(resume_from_checkpoint=callback.last_checkpoint())" in capfd.readouterr().err


@pytest.mark.parametrize("life", [by_lightning, by_trainer])
def test_callback_does_nothing_elsewhere(life, monkeypatch, fresh, tmp_path, capfd):
    monkeypatch.delenv("GANDIVA_CHECKPOINT_DIR")
    monkeypatch.chdir(tmp_path)
    fresh()
    losses = []
    (life() if life is by_lightning else life(tmp_path / "out"))(losses, [], None)
    assert len(losses) == 30 and not list(tmp_path.rglob("*.*"))
    assert "gandiva: neither GANDIVA_SOCKET nor GANDIVA_CHECKPOINT_DIR here" in capfd.readouterr().err


def test_lightning_saves_on_its_signal_and_does_not_requeue(lives, monkeypatch):
    requeues = []
    monkeypatch.setattr("lightning.pytorch.trainer.connectors.signal_connector.call", requeues.append)
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"):
        monkeypatch.setenv(name, str(int(name == "SLURM_NTASKS")))
    before = signal.getsignal(signal.SIGUSR1)
    want = lives(by_lightning())
    monkeypatch.setattr(Life, "ask", lambda life: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        assert lives(by_lightning(), 7) == want
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert requeues == []


def by_accelerate(losses, trail, death):
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Data(is_noisy=False), BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    gandiva.on_save(lambda: accelerator.step)
    gandiva.on_load(lambda step: setattr(accelerator, "step", step))
    life = Life(losses, trail, death, None)
    run = gandiva.attach(model=model, optimizer=optimizer, loader=loader)
    life.ask = run.save
    for _ in run.epochs(3):
        for batch in run.steps(loader):
            with accelerator.accumulate(model):
                accelerator.backward(life.step(lambda batch=batch: model(**batch)["loss"]))
                optimizer.step()
                optimizer.zero_grad()


def test_accelerate_goes_on_to_the_last_bit(lives):
    want = lives(by_accelerate)
    assert len(want[0]) == 30 and lives(by_accelerate, 3, 14) == want


def test_order_of_a_gang_of_accelerate_comes_back():
    """Its loaders deal the batches of one shuffling sampler, whose generator lies below them."""
    shuffled = DataLoader(range(40), BATCH, shuffle=True, generator=torch.Generator())
    loader = prepare_data_loader(shuffled, num_processes=2, process_index=1, put_on_device=False)
    state = rng.capture([loader])
    first, second = (torch.cat(list(loader)).tolist() for _ in range(2))
    rng.put(state, [loader])
    assert first != second and torch.cat(list(loader)).tolist() == first
