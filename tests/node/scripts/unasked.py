"""A training by Hugging Face's Trainer that knows nothing of Gandiva: `unasked.py OUT [STEPS]`.

Appends a line a mini-batch to OUT, its loss; ends behind STEPS optimizer steps, or once OUT.stop is there.
With SAVE_STEPS=N in its environment it saves itself after N steps each, and goes on from its newest
checkpoint.
"""

import os
import sys
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEP_S = 0.02


class Data(torch.utils.data.Dataset):
    """Its items have noise, drawn when they are read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.full((4,), index / 40) + torch.rand(4)
        return {"x": x, "labels": x[:1]}


class Net(torch.nn.Module):
    """Takes what the Trainer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.body(x), labels)}


class Noting(Trainer):  # type: ignore[misc]
    """Writes every loss down."""

    def compute_loss(self, *args: object, **kwargs: object) -> torch.Tensor:
        loss: torch.Tensor = super().compute_loss(*args, **kwargs)
        with open(sys.argv[1], "a") as out:
            out.write(loss.item().hex() + "\n")
        time.sleep(STEP_S if len(sys.argv) == 2 else 0)
        return loss


class Stopping(TrainerCallback):  # type: ignore[misc]
    """Ends the training where a test says."""

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        if os.path.exists(f"{sys.argv[1]}.stop"):
            control.should_training_stop = True  # type: ignore[attr-defined]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10**6
    every, out = int(os.environ.get("SAVE_STEPS", 0)), f"{sys.argv[1]}.out"
    saves = {"save_strategy": "steps", "save_steps": every} if every else {"save_strategy": "no"}
    args = TrainingArguments(
        out, max_steps=steps, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        lr_scheduler_type="constant", save_total_limit=2, disable_tqdm=True, **saves,
    )  # fmt: skip
    newest = get_last_checkpoint(out) if every and os.path.isdir(out) else None
    trainer = Noting(Net(), args, train_dataset=Data(), callbacks=[Stopping()])
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
