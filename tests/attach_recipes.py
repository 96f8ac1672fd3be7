"""Small trainings of every kind, deterministic to the last bit, for tests that move them or their memory.

Each draws from Python's, numpy's and torch's generators in its data, and from torch's in its model.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

BATCH, BATCHES, WIDTH, CLASSES = 4, 7, 8, 3


@dataclass
class Recipe:
    """What `attach` gets, and what a step does."""

    model: Any
    optimizer: Any
    step: Callable[[int, Any, Any], Any]
    scheduler: Any = None
    scaler: Any = None
    begin_epoch: Callable[[int], None] = field(default=lambda epoch: None)
    end_epoch: Callable[[], None] = field(default=lambda: None)


class Noisy(torch.utils.data.Dataset):
    """Every item is drawn anew each time it is read, from three generators."""

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(WIDTH) + float(numpy.random.rand()) + random.random()
        return noise * (index % 5), index % CLASSES


def seed(number: int) -> None:
    """Seed everything, as scripts do at their start."""
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def loader(workers: int, **options: Any) -> Any:
    """The training data, shuffled."""
    options = {"shuffle": True, **options}
    return torch.utils.data.DataLoader(Noisy(), batch_size=BATCH, num_workers=workers, **options)


def digest(models: Any) -> str:
    """A digest of all weights and buffers, of a shard what lies here."""
    sha = hashlib.sha256()
    for model in models if isinstance(models, list) else [models]:
        for name, value in sorted([*model.named_parameters(), *model.named_buffers()]):
            here = value.to_local() if hasattr(value, "to_local") else value
            sha.update(name.encode() + here.detach().contiguous().cpu().numpy().tobytes())
    return sha.hexdigest()


def net(device: str = "cpu") -> Any:
    """A small model with dropout."""
    layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES))
    return layers.to(device)


def plain(model: Any, optimizer: Any) -> Callable[[int, Any, Any], Any]:
    """The step that most trainings have."""

    def step(number: int, x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def sgd(device: str = "cpu") -> Recipe:
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    return Recipe(model, optimizer, plain(model, optimizer))


def adam(device: str = "cpu") -> Recipe:
    model = net(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    return Recipe(model, optimizer, plain(model, optimizer))


def schedule(device: str = "cpu") -> Recipe:
    """One scheduler steps with every mini-batch, one with every epoch."""
    recipe = sgd(device)
    fast = torch.optim.lr_scheduler.CosineAnnealingLR(recipe.optimizer, 9)
    slow = torch.optim.lr_scheduler.StepLR(recipe.optimizer, 1, 0.7)
    once = recipe.step

    def step(number: int, x: Any, y: Any) -> Any:
        loss = once(number, x, y)
        fast.step()
        return loss

    return Recipe(
        recipe.model, recipe.optimizer, step, {"fast": fast, "slow": slow}, end_epoch=lambda: slow.step()
    )


def scaler(device: str = "cpu") -> Recipe:
    """Mixed precision's scaler, which skips a step now and then: the data overflows."""
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scale = torch.amp.GradScaler(device, init_scale=2.0**15, growth_interval=2)

    def step(number: int, x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        scale.scale(loss * (1e36 if number == 3 else 1.0)).backward()
        scale.step(optimizer)
        scale.update()
        return loss * scale.get_scale()

    return Recipe(model, optimizer, step, scaler=scale)


def accumulation(device: str = "cpu") -> Recipe:
    """Three mini-batches a step: a checkpoint may fall between them."""
    model = net(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(number: int, x: Any, y: Any) -> Any:
        loss = cross_entropy(model(x), y)
        (loss / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return Recipe(model, optimizer, step)


def gan(device: str = "cpu") -> Recipe:
    """Two models, two optimizers; one trains twice a mini-batch, and keeps the other's gradients around."""
    maker = nn.Linear(4, WIDTH).to(device)
    judge = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    make = torch.optim.Adam(maker.parameters(), lr=1e-3)
    doubt = torch.optim.SGD(judge.parameters(), lr=1e-2, momentum=0.5)

    def step(number: int, x: Any, y: Any) -> Any:
        for _ in range(2):
            doubt.zero_grad()
            (judge(maker(torch.randn(BATCH, 4, device=device)).detach()).mean() - judge(x).mean()).backward()
            doubt.step()
        make.zero_grad()
        loss = -judge(maker(torch.randn(BATCH, 4, device=device))).mean()
        loss.backward()
        make.step()
        return loss

    return Recipe([maker, judge], {"maker": make, "judge": doubt}, step)


def frozen(device: str = "cpu") -> Recipe:
    """Shared weights; a layer is frozen at first, and in a later epoch trains while another evaluates."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
    model = nn.Sequential(first, nn.Dropout(0.2), first, nn.BatchNorm1d(WIDTH), second).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first.bias.requires_grad_(False)

    def begin_epoch(epoch: int) -> None:
        if epoch == 1:
            first.bias.requires_grad_(True)
            model[3].eval()

    return Recipe(model, optimizer, plain(model, optimizer), begin_epoch=begin_epoch)


class _Averaged(nn.Module):
    """Running statistics, a moving average in a buffer, and a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, CLASSES)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        if self.training:
            self.seen += 1
            self.mean.lerp_(hidden.detach().mean(0), 0.1)
        return self.head(hidden - self.mean) * (1 + self.seen / 100)


def buffers(device: str = "cpu") -> Recipe:
    model = _Averaged().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Recipe(model, optimizer, plain(model, optimizer))


def kept_graph(device: str = "cpu") -> Recipe:
    """Each backward goes through the graph of the mini-batch before. No checkpoint has a graph."""
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept: list[Any] = []

    def step(number: int, x: Any, y: Any) -> Any:
        kept.append(cross_entropy(model(x), y))
        if len(kept) == 2:
            optimizer.zero_grad()
            kept.pop(0).backward()
            # A step in place would spoil what the newer graph has saved.
            for value in model.parameters():
                value.data.add_(value.grad, alpha=-0.05)
        return kept[-1]

    return Recipe(model, optimizer, step)


def wrapped(device: str = "cpu") -> Recipe:
    """DistributedDataParallel, with statistics of its own on every rank."""
    model = nn.parallel.DistributedDataParallel(_Averaged().to(device), broadcast_buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Recipe(model, optimizer, plain(model, optimizer))


def wide(device: str = "cpu") -> Recipe:
    """DistributedDataParallel, most of whose parameters are one tensor of 16 MiB: a segment of its own."""
    layers = [nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Recipe(model, optimizer, plain(model, optimizer))


def synced_late(device: str = "cpu") -> Recipe:
    """DistributedDataParallel with no_sync: between two steps every rank has gradients of its own."""
    model = nn.parallel.DistributedDataParallel(net(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(number: int, x: Any, y: Any) -> Any:
        if number % 3 != 2:
            with model.no_sync():
                loss = cross_entropy(model(x), y)
                loss.backward()
            return loss
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Recipe(model, optimizer, step)


def sharded(device: str = "cpu") -> Recipe:
    """FSDP2, every layer on its own; two mini-batches a step, so that gradients are shards in between."""
    model = net(device)
    for layer in (model[0], model[3], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(number: int, x: Any, y: Any) -> Any:
        loss = cross_entropy(model(x), y)
        loss.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return Recipe(model, optimizer, step)


def sharded_wide(device: str = "cpu") -> Recipe:
    """FSDP2, most of whose parameters are one tensor of 16 MiB; its gradients are another stream's."""
    layers = [nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)]
    model = nn.Sequential(*layers).to(device)
    for layer in (model[0], model[2], model[4], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Recipe(model, optimizer, plain(model, optimizer))


SOLO = {
    recipe.__name__: recipe for recipe in (sgd, adam, schedule, scaler, accumulation, gan, frozen, buffers)
}
#: Trainings that can be parked and not moved.
FIXED = {recipe.__name__: recipe for recipe in (kept_graph,)}
GANG = {recipe.__name__: recipe for recipe in (wrapped, wide, synced_late, sharded, sharded_wide)}
