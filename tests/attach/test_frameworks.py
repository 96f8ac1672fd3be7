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
from torch.utils.data import DataLoader, IterableDataset

import gandiva_slurm as gandiva
from gandiva_slurm.client import hf, rng
from gandiva_slurm.client.lightning import GandivaCallback
from tests.attach.trainings import BATCH, ITEMS, LOGGED, Data, Life, Module, Net


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
        history = trainer.state.log_history
        trail += [(row["step"], row[name]) for row in history for name in LOGGED if name in row]
        assert not list(directory.iterdir()), "what the script puts out is its own"

    return life


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
