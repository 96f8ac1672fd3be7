"""Trainings that are parked between two steps by the tier `torch` itself, and a gauge of what they have live.

Each recipe makes a training on a device and returns its step, which returns a loss; bits must not change.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gandiva_slurm.client.device import CpuGauge
from gandiva_slurm.client.offload import TorchTier

WIDTH, CLASSES, BATCH = 8, 3, 4
#: How long a thread may be late (on a busy machine it took 1 to 4 ms).
SETTLE_S = 5.0
Step = Callable[[int], Any]


class AllStorages(TorchDispatchMode):
    """Sees every storage any operation makes, those that only C++ knows of too, and when it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        torch.utils._pytree.tree_map_only(torch.Tensor, self._note, made)
        return made

    def _note(self, tensor: Any) -> None:
        if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided:
            reference = StorageWeakRef(tensor.untyped_storage())
            self._seen[reference.cdata] = reference

    def live(self) -> int:
        """The bytes that are there now."""
        self._seen = {key: ref for key, ref in self._seen.items() if not ref.expired()}
        return sum(torch.UntypedStorage._new_with_weak_ptr(key).nbytes() for key in self._seen)


class ExactGauge(CpuGauge):
    """The CPU as a device whose bytes are counted by their making, not by what Python can see."""

    def __init__(self, storages: AllStorages) -> None:
        super().__init__(torch)
        self.live = storages.live  # type: ignore[method-assign]


def net(device: str) -> Any:
    layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES))
    return layers.to(device)


def batch(device: str) -> Any:
    return torch.randn(BATCH, WIDTH, device=device), torch.randint(CLASSES, (BATCH,), device=device)


def plain(model: Any, optimizer: Any, device: str) -> Step:
    def step(number: int) -> Any:
        x, y = batch(device)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step.model = model  # type: ignore[attr-defined]
    return step


def sgd(device: str) -> Step:
    model = net(device)
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), device)


def adam(device: str) -> Step:
    model = net(device)
    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True), device)


def schedule(device: str) -> Step:
    """A scheduler steps with every mini-batch."""
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=400)
    inner = plain(model, optimizer, device)

    def step(number: int) -> Any:
        loss = inner(number)
        rates.step()
        return loss

    step.model = model  # type: ignore[attr-defined]
    return step


def scaler(device: str) -> Step:
    """Mixed precision's scaler, which skips a step now and then."""
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scale = torch.amp.GradScaler(device, init_scale=2.0**15, growth_interval=2)

    def step(number: int) -> Any:
        x, y = batch(device)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        scale.scale(loss * (1e36 if number % 7 == 3 else 1.0)).backward()
        scale.step(optimizer)
        scale.update()
        return loss * scale.get_scale()

    step.model = model  # type: ignore[attr-defined]
    return step


def batchnorm(device: str) -> Step:
    model = nn.Sequential(
        nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.Dropout(0.4), nn.Linear(16, CLASSES)
    ).to(device)
    return plain(model, torch.optim.AdamW(model.parameters(), lr=1e-2), device)


def tied(device: str) -> Step:
    """One weight in two layers, one of them transposed."""
    first, last = nn.Linear(WIDTH, CLASSES, bias=False), nn.Linear(CLASSES, WIDTH, bias=False)
    last.weight = nn.Parameter(first.weight.detach().t())
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), first, last, first).to(device)
    return plain(model, torch.optim.Adam(model.parameters(), lr=1e-2), device)


def views(device: str) -> Step:
    """Parameters that are views of one flat storage, as flattening optimizers make them."""
    model = net(device)
    flat = torch.cat([value.detach().flatten() for value in model.parameters()])
    at = 0
    for value in model.parameters():
        value.data = flat[at : at + value.numel()].view_as(value)
        at += value.numel()
    step = plain(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), device)
    step.flat = flat  # type: ignore[attr-defined]
    return step


def frozen(device: str) -> Step:
    model = net(device)
    model[0].weight.requires_grad_(False)
    average = torch.optim.swa_utils.AveragedModel(model)
    inner = plain(model, torch.optim.Adam(filter(lambda v: v.requires_grad, model.parameters())), device)

    def step(number: int) -> Any:
        loss = inner(number)
        average.update_parameters(model)
        return loss + next(average.parameters()).sum().detach()

    step.model = model  # type: ignore[attr-defined]
    return step


class _Counting(nn.Module):
    """A buffer that no state dict has, and a moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        self.seen += 1
        self.mean.lerp_(hidden.detach().mean(0), 0.1)
        return self.head(hidden - self.mean) * (1 + self.seen / 100)


def buffers(device: str) -> Step:
    model = _Counting().to(device)
    return plain(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), device)


def gan(device: str) -> Step:
    maker, judge = nn.Linear(4, WIDTH).to(device), nn.Linear(WIDTH, 1).to(device)
    make = torch.optim.Adam(maker.parameters(), lr=1e-3)
    doubt = torch.optim.SGD(judge.parameters(), lr=1e-2, momentum=0.5)

    def step(number: int) -> Any:
        x, _ = batch(device)
        for _ in range(2):
            doubt.zero_grad()
            made = maker(torch.randn(BATCH, 4, device=device)).detach()
            (judge(made).mean() - judge(x).tanh().mean()).backward()
            doubt.step()
        make.zero_grad()
        loss = -judge(maker(torch.randn(BATCH, 4, device=device))).tanh().mean()
        loss.backward()
        make.step()
        return loss

    step.model = nn.ModuleList([maker, judge])  # type: ignore[attr-defined]
    return step


def accumulation(device: str) -> Step:
    """A park may fall between two mini-batches of one step."""
    model = net(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(number: int) -> Any:
        x, y = batch(device)
        loss = cross_entropy(model(x), y)
        (loss / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    step.model = model  # type: ignore[attr-defined]
    return step


def kept_graph(device: str) -> Step:
    """Each backward goes through the graph of the mini-batch before, which was kept over the park."""
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept: list[Any] = []

    def step(number: int) -> Any:
        x, y = batch(device)
        kept.append(cross_entropy(model(x), y))
        if len(kept) == 2:
            optimizer.zero_grad()
            kept.pop(0).backward()
            # The next one's graph has saved weights that a step in place would spoil.
            for value in model.parameters():
                value.data.add_(value.grad, alpha=-0.05)
        return kept[-1]

    step.model = model  # type: ignore[attr-defined]
    return step


_PLAIN = (sgd, adam, schedule, scaler, batchnorm, buffers)
_ODD = (tied, views, frozen, gan, accumulation, kept_graph)
SOLO = {recipe.__name__: recipe for recipe in (*_PLAIN, *_ODD)}


def train(recipe: Callable[[str], Step], device: str, steps: int, between: Callable[[], None]) -> list[str]:
    """Train anew from the seed, with something done between the steps; return losses and weights as bits."""
    torch.manual_seed(11)
    step = recipe(device)
    lines = []
    for number in range(steps):
        lines.append(step(number).item().hex())
        between()
    for value in [*step.model.parameters(), *step.model.buffers()]:  # type: ignore[attr-defined]
        here = value.to_local() if hasattr(value, "to_local") else value
        lines.append(here.detach().double().cpu().flatten().tolist())
    return lines


class Parks:
    """Parks between steps at random, so many times, and keeps what the tier said."""

    def __init__(self, device: Any, count: int, steps: int, most_held: float = math.inf) -> None:
        """What is held beyond `most_held` bytes has a moment to go by itself."""
        with _disable_current_modes():  # the tier's own memory is none of the device's
            self.tier = TorchTier(torch, device, {})
        self.most_held = most_held
        self.at = set(random.Random(5).sample(range(steps), count))
        self.number = -1
        #: Of each park, bytes: live before, released, held, and held a moment later.
        self.said: list[tuple[int, int, int, int]] = []

    def between(self) -> None:
        self.number += 1
        if self.number in self.at:
            with _disable_current_modes():
                live = self.tier.device.live()
                done = self.tier.release()
                self.said.append((live, done.released, done.held, self._held_later()))
                self.tier.restore()

    def _held_later(self) -> int:
        """What is held once gloo's threads, too, have let go of what they are done with."""
        end = time.monotonic() + SETTLE_S
        while (held := self.tier.device.live()) > self.most_held and time.monotonic() < end:
            time.sleep(0.001)
        return held
