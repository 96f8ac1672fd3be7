"""A small training by a framework, on the simulated card where it takes it: `frameworks.py WORDS WHICH`.

WORDS is a file of what names the card, NAME=VALUE: `gandiva try` hands no variable of Gandiva's on. WHICH is
`plain`, `amp`, `attach` or `transformers`. The device that its model is on goes to standard error.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
for word in Path(sys.argv[1]).read_text().split():
    name, _, value = word.partition("=")
    if name != "PYTHONPATH":  # the hook's is there
        os.environ[name] = value

import torch  # noqa: E402
from torch import nn  # noqa: E402

from tests.gpu import device  # noqa: E402

ITEMS, BATCH, EPOCHS = 400, 8, 2


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(kind)


def data() -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.randn(ITEMS, 32), torch.randint(4, (ITEMS,)))


def by_loop(which: str) -> nn.Module:
    """A loop of the script's own: `plain`, with autocast, or attached."""
    kind = device.kind()
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(data(), BATCH)

    def step(batch: Any) -> None:
        x, y = (part.to(kind) for part in batch)
        optimizer.zero_grad()
        with torch.autocast(kind, torch.bfloat16, enabled=which == "amp"):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(0.01)  # there is time to park it

    if which == "attach":
        import gandiva_slurm as gandiva

        run = gandiva.attach(model=model, optimizer=optimizer, loader=loader)
        for _ in run.epochs(EPOCHS):
            for batch in run.steps(loader):
                step(batch)
    else:
        for _ in range(EPOCHS):
            for batch in loader:
                step(batch)
    return model


class WithLoss(nn.Module):
    """As transformers' Trainer has models: the loss comes with the output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model_of("cpu")

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.inner(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def by_transformers() -> nn.Module:
    import transformers

    device.kind()
    model = WithLoss()
    items = [{"x": x, "labels": y} for x, y in data()]
    options = transformers.TrainingArguments(
        output_dir="out", num_train_epochs=1, save_strategy="no", report_to=[]
    )
    transformers.Trainer(model, options, train_dataset=items).train()
    return model


if __name__ == "__main__":
    trained = by_transformers() if sys.argv[2] == "transformers" else by_loop(sys.argv[2])
    print("its model is on", next(trained.parameters()).device, file=sys.stderr)
