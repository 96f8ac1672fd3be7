"""Small networks with generated data: about 10 ms a step on one CPU thread, `tiny` about 1 ms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

CLASSES = 10
SAMPLES = 2048


class LastOutput(nn.Module):
    """An LSTM that classifies a sequence by its last output."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, batch: Tensor) -> Tensor:
        """Return the class scores of each sequence."""
        outputs, _ = self.lstm(batch)
        scores: Tensor = self.head(outputs[:, -1])
        return scores


def mlp() -> nn.Module:
    """Three layers, dropout between them (its random numbers must survive a park)."""
    return nn.Sequential(
        nn.Linear(512, 768),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(768, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def cnn() -> nn.Module:
    """Two convolutions with batch norm, on 3x16x16 images."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 8 * 8, CLASSES),
    )  # fmt: skip


def lstm() -> nn.Module:
    """One layer of 96 cells over 20 steps."""
    return LastOutput(24, 96)


def tiny() -> nn.Module:
    """Two layers: for a gang with more ranks than there are cores, whose steps are mostly waiting."""
    return nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, CLASSES))


#: name -> (network, shape of one sample)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (512,)),
    "cnn": (cnn, (3, 16, 16)),
    "lstm": (lstm, (20, 24)),
    "tiny": (tiny, (24,)),
}


def make_data(shape: tuple[int, ...], seed: int) -> TensorDataset:
    """Draw samples around one centre a class; every fourth label is random, so that the loss stays busy."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=source)
    centres = torch.randn((CLASSES, *shape), generator=source)
    noise = torch.randn((SAMPLES, *shape), generator=source)
    samples = centres[labels] + 2.0 * noise
    labels[::4] = torch.randint(CLASSES, labels[::4].shape, generator=source)
    return TensorDataset(samples, labels)
