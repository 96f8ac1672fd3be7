"""Trainings that are parked between two steps by the tier `torch` itself, and a gauge of what they have live.

Those of tests/attach_recipes.py and three more, each a function that begins it on a device and returns its
step, which returns a loss; bits must not change.
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
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gandiva_slurm.client.device import CpuGauge
from gandiva_slurm.client.offload import TorchTier
from tests import attach_recipes as recipes
from tests.attach_recipes import BATCH, CLASSES, WIDTH

#: How long a thread may be late (on a busy machine it took 1 to 4 ms).
SETTLE_S = 5.0
#: And looked at at least so often: all of them may stand still meanwhile.
LOOKS = 1000
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


def batch(device: str) -> Any:
    return torch.randn(BATCH, WIDTH, device=device), torch.randint(CLASSES, (BATCH,), device=device)


def _training(make: Callable[[str], recipes.Recipe]) -> Callable[[str], Step]:
    """The steps of a training on a device, with data of the moment."""

    def begin(device: str) -> Step:
        made = make(device)

        def step(number: int) -> Any:
            return made.step(number % recipes.BATCHES, *batch(device))

        whole = made.model if isinstance(made.model, nn.Module) else nn.ModuleList(made.model)
        step.model = whole  # type: ignore[attr-defined]
        return step

    return begin


def tied(device: str) -> recipes.Recipe:
    """One weight in two layers, one of them transposed."""
    first, last = nn.Linear(WIDTH, CLASSES, bias=False), nn.Linear(CLASSES, WIDTH, bias=False)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), first, last, first).to(device)
    last.weight = nn.Parameter(first.weight.detach().t())  # not before: `to` would make two of them
    # One after the other: on a GPU one kernel for both would write the shared memory twice at once.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
    return recipes.Recipe(model, optimizer, recipes.plain(model, optimizer))


def views(device: str) -> recipes.Recipe:
    """Parameters that are views of one flat storage, as flattening optimizers make them."""
    model = recipes.net(device)
    flat = torch.cat([value.detach().flatten() for value in model.parameters()])
    at = 0
    for value in model.parameters():
        value.data = flat[at : at + value.numel()].view_as(value)
        at += value.numel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return recipes.Recipe(model, optimizer, recipes.plain(model, optimizer))


def averaged(device: str) -> recipes.Recipe:
    """A frozen layer, and a second model that is the average of the first one's past."""
    model = recipes.net(device)
    model[0].weight.requires_grad_(False)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.Adam(filter(lambda value: value.requires_grad, model.parameters()))
    once = recipes.plain(model, optimizer)

    def step(number: int, x: Any, y: Any) -> Any:
        loss = once(number, x, y)
        average.update_parameters(model)
        return loss + next(average.parameters()).sum().detach()

    return recipes.Recipe(model, optimizer, step)


_OWN = {recipe.__name__: recipe for recipe in (tied, views, averaged)}
SOLO = {name: _training(make) for name, make in (recipes.SOLO | recipes.FIXED | _OWN).items()}


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
        end, looks = time.monotonic() + SETTLE_S, 0
        while (held := self.tier.device.live()) > self.most_held:
            if time.monotonic() >= end and looks > LOOKS:
                break
            looks += 1
            time.sleep(0.001)
        return held
