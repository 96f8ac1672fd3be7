"""`gandiva try` on scripts of frameworks, as users start them."""

import random
import sys

import pytest
from submitit.core.job_environment import JobPaths
from submitit.core.utils import DelayedSubmission

from gandiva_slurm.cli import trial
from gandiva_slurm.cli.main import main
from gandiva_slurm.cli.runs import Trial, run_alone
from gandiva_slurm.cli.script_ways import Script
from gandiva_slurm.cli.trial import compare, run_moved
from tests.slow import by_need, slow, soak, soaked

IN_PROCESS_TOO = soak("29 s each; test_frameworks has them in one process")
#: A step takes 20 ms, so that a training of 80 has not ended when a busy machine asks it to park.
HEAD = """
import time
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        time.sleep(0.01)
        x = torch.full((4,), index / 40)
        return {"x": x, "labels": x[:1]}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.body(x), labels)}
"""
LIGHTNING = """
import lightning.pytorch as lightning
from gandiva_slurm.client.lightning import GandivaCallback
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def training_step(self, batch): return self.net(**batch)["loss"]
    def configure_optimizers(self): return torch.optim.Adam(self.parameters(), lr=0.01)
trainer = lightning.Trainer(max_epochs=4, accelerator="cpu", logger=False, callbacks=[GandivaCallback()],
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), torch.utils.data.DataLoader(Data(), 2, shuffle=True))
"""
TRAINER = """
from transformers import Trainer, TrainingArguments
from gandiva_slurm.client.hf import GandivaCallback
args = TrainingArguments("out", num_train_epochs=4, per_device_train_batch_size=2, report_to=[], use_cpu=True)
callback = GandivaCallback()
trainer = Trainer(Net(), args, train_dataset=Data(), callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.last_checkpoint())
"""
SUBMITTED = """
import gandiva_slurm as gandiva
def train():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Data(), 2, shuffle=True)
    run = gandiva.attach(model=model, optimizer=optimizer, loader=loader)
    for epoch in run.epochs(4):
        for batch in run.steps(loader):
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
"""


UNASKED = {
    "trainer": """
from transformers import Trainer, TrainingArguments
args = TrainingArguments("out", num_train_epochs=4, per_device_train_batch_size=2, report_to=[], use_cpu=True)
Trainer(Net(), args, train_dataset=Data()).train()
""",
    "lightning": LIGHTNING.replace("from gandiva_slurm.client.lightning import GandivaCallback", "").replace(
        ", callbacks=[GandivaCallback()]", ""
    ),
}


@pytest.fixture
def tried(tmp_path, monkeypatch, capfd):
    """Run `gandiva try` on a command with 30 losses, moved once; return exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "MOVES", 1)

    def _tried(*command):
        with pytest.raises(SystemExit) as end:
            main(["try", "--steps", "30", "--deadline", "120", "--", sys.executable, *command])
        out, err = capfd.readouterr()
        return end.value.code, out + err

    return _tried


@IN_PROCESS_TOO
@pytest.mark.parametrize(
    "body",
    [pytest.param(LIGHTNING, id="lightning"), pytest.param(TRAINER, id="trainer")],
)
def test_script_with_the_callback_is_parked_and_moved(body, tried, tmp_path):
    (tmp_path / "train.py").write_text(HEAD + body)
    code, out = tried("train.py")
    assert code == 0 and "moved:   framework (" in out, out
    assert "1 moves\nthe losses are identical, bit for bit" in out


@pytest.mark.parametrize("name", by_need(UNASKED))
def test_script_without_a_line_is_moved(name, tmp_path, monkeypatch):
    """As `gandiva try` moves it, with its real hook: saved, killed, started again."""
    monkeypatch.setattr(trial, "MOVES", 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(HEAD + UNASKED[name])
    run = Trial(Script([sys.executable, "train.py"]), tmp_path, 30, 120.0, random.Random(0))
    run_alone(run, "alone")
    run_moved(run)
    assert run.moves == 1 and compare(run, "moved") == ""
    assert "goes on from" in (tmp_path / "moved.log").read_text()


#: Mini-batches of the Tuner, more than are compared unless a training is waited for.
TUNED = UNASKED["lightning"].replace(
    "trainer.fit(Module(), ",
    """
from lightning.pytorch.tuner import Tuner
module, loader = Module(), torch.utils.data.DataLoader(Data(), 2, shuffle=True)
module.lr = 0.01
Tuner(trainer).lr_find(module, loader, num_training=40)
trainer.fit(module, """,
)


@slow("40 s; unit/test_own_trial has the tries that count once, test_attached the Tuner in one process")
def test_training_behind_a_tuners_tries_is_moved(tried, tmp_path):
    """Its tries, more than are compared, are no training: each life does them again."""
    (tmp_path / "train.py").write_text(HEAD + TUNED)
    code, out = tried("train.py")
    assert code == 0 and "moved:   framework (lightning): " in out, out
    assert "1 moves\n" in out and "the losses are identical, bit for bit" in out


#: FSDP2 as Lightning has it.
SHARDED = """
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
def configure_model(self): fully_shard(self.net, mesh=self.device_mesh["data_parallel"])
Module.configure_model = configure_model
trainer = """


@slow("25 s each; test_script_without_a_line_is_moved has a rank")
@pytest.mark.parametrize(
    "name", ["trainer", *(soaked(name, why="by another strategy") for name in ("sharded", "lightning"))]
)
def test_gang_without_a_line_is_parked_and_moved(name, tried, tmp_path, monkeypatch):
    """DistributedDataParallel by torchrun, two ranks."""
    body = UNASKED.get(name, UNASKED["lightning"])
    body = body.replace('accelerator="cpu"', 'accelerator="cpu", devices=2')
    if name == "sharded":
        body = body.replace("trainer = ", SHARDED, 1).replace(
            "devices=2", "devices=2, strategy=ModelParallelStrategy()"
        )
    (tmp_path / "train.py").write_text(HEAD + body)
    code, out = tried("-m", "torch.distributed.run", "--nproc-per-node=2", "train.py")
    assert code == 0 and "on 2 ranks, 1 moves\nthe losses are identical, bit for bit" in out, out


@slow("20 s; test_attached has the reasons, test_hook_install the switch")
@pytest.mark.parametrize("how", ["switched off", soaked("of an unknown version", why="as if switched off")])
def test_script_that_is_left_alone_is_parked_and_says_why(how, tried, tmp_path, monkeypatch):
    body = UNASKED["trainer"]
    if how == "switched off":
        monkeypatch.setenv("GANDIVA_AUTO_ATTACH", "0")
        want = "moved:   no: the script has no gandiva.attach()"
    else:
        named = "import sys\nsys.modules['transformers'].__version__ = '5.99.0'\nargs ="
        body = body.replace("args =", named, 1)
        want = "moved:   no: transformers 5.99.0, known are 5.23, 5.24"
    (tmp_path / "train.py").write_text(HEAD + body)
    code, out = tried("train.py")
    assert code == 0 and want in out and "the losses are identical, bit for bit" in out, out


@slow("15 s; the same path as a script's")
def test_submitted_function_is_parked_and_moved(tried, tmp_path, monkeypatch):
    """What submitit's batch script runs, the first time and whenever Slurm starts the job again."""
    (tmp_path / "submitted.py").write_text(HEAD + SUBMITTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import submitted

    DelayedSubmission(submitted.train).dump(JobPaths(tmp_path, "5").submitted_pickle)
    for name, value in {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "5"}.items():
        monkeypatch.setenv(name, value)
    code, out = tried("-m", "submitit.core._submit", str(tmp_path))
    assert code == 0 and "1 moves\nthe losses are identical, bit for bit" in out, out
