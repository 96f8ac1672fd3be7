"""A training on the simulated card that takes turns: `python -m tests.device.trainer RECIPE SEED MODE`.

It prints a line of JSON after each step but the last, and goes on when it reads a line. MODE is `alone` (it
asks nobody), `parked` (its memory is moved away between its steps, by the client's own tier) or `resident`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import weakref
from typing import Any

import torch
from torch import nn

from gandiva_slurm.client.tiers import BestTier
from gandiva_slurm.mini.workloads.lean import leave_compiler_out
from tests.device import backend

leave_compiler_out()
STEPS = 6
WIDTH = 1024


def mlp() -> tuple[nn.Module, Any, tuple[int, ...]]:
    """16 MiB of parameters, as much of gradients, and twice as much of AdamW's."""
    layers = []
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10)), torch.optim.AdamW, (WIDTH,)


def small_mlp() -> tuple[nn.Module, Any, tuple[int, ...]]:
    layers = [nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.optim.AdamW, (64,)


def small_conv() -> tuple[nn.Module, Any, tuple[int, ...]]:
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    rest = [nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    sgd = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)
    return nn.Sequential(*first, *rest, nn.Linear(16, 10)), sgd, (3, 16, 16)


class Recurrent(nn.Module):
    """What a recurrent network says last."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.inner, self.last = kind(64, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, inputs: Any) -> Any:
        return self.last(self.inner(inputs)[0][:, -1])


def small_lstm() -> tuple[nn.Module, Any, tuple[int, ...]]:
    return Recurrent(nn.LSTM), functools.partial(torch.optim.SGD, lr=0.05), (12, 64)


def small_gru() -> tuple[nn.Module, Any, tuple[int, ...]]:
    return Recurrent(nn.GRU), functools.partial(torch.optim.SGD, lr=0.05), (12, 64)


def small_transformer() -> tuple[nn.Module, Any, tuple[int, ...]]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(12 * 64, 10)), torch.optim.AdamW, (12, 64)


RECIPES = {
    call.__name__: call for call in (mlp, small_mlp, small_conv, small_lstm, small_gru, small_transformer)
}


class Training:
    """A model on a device, and what trains it."""

    def __init__(self, recipe: str, seed: int, device: str, **options: Any) -> None:
        torch.manual_seed(seed)
        model, optimizer, self.shape = RECIPES[recipe]()
        self.device = device
        self.model = model.to(device)
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.data = torch.Generator().manual_seed(seed)
        self.losses: list[str] = []

    def step(self) -> None:
        """Train once; the loss is kept to the last bit."""
        inputs = torch.randn(16, *self.shape, generator=self.data).to(self.device, non_blocking=True)
        labels = torch.randint(10, (16,), generator=self.data).to(self.device)
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item().hex())

    def weights(self) -> list[str]:
        """Sums of what it has learnt, to the last bit."""
        values = self.model.state_dict().values()
        return [value.detach().cpu().double().sum().item().hex() for value in values]


def tell(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def wait() -> None:
    if not sys.stdin.readline():
        os._exit(1)  # nobody gives turns any more


def restore(tier: Any) -> None:
    """Have the memory back; a restore that fails is told, and tried again at the next turn."""
    while True:
        try:
            return tier.restore()
        except torch.OutOfMemoryError as err:
            tell(what="no room", error=str(err))
            wait()


def train(cuda: Any, recipe: str, seed: int, mode: str) -> dict[str, Any]:
    """Train; return what it came to."""
    if mode != "alone":
        wait()
    training = Training(recipe, seed, backend.NAME)
    seen = (training.model, training.optimizer)
    tier = BestTier({id(thing): weakref.ref(thing) for thing in seen})
    first = next(training.model.parameters())
    addresses = set()
    for number in range(STEPS):
        training.step()
        addresses.add(first.data_ptr())
        if number + 1 == STEPS or mode == "alone":
            continue
        done = tier.release() if mode == "parked" else None
        tell(what=mode, done=done, tier=tier.number)
        wait()
        restore(tier)
    peak = cuda.max_memory_reserved(0)
    return {"what": "done", "losses": training.losses, "peak": peak, "addresses": len(addresses)}


def compare() -> dict[str, Any]:
    """Train the small ones on the CPU and on the card; say whose bits are the same, or how far apart."""
    same, apart = {}, {}
    for recipe in ("small_mlp", "small_conv", "small_transformer"):
        for options in ({}, {"foreach": False}, {"fused": True}):
            on_cpu, on_card = (_trained(recipe, device, options) for device in ("cpu", backend.NAME))
            same[f"{recipe} {options}"] = on_cpu == on_card
    for recipe in ("small_lstm", "small_gru"):
        on_cpu, on_card = (
            map(float.fromhex, _trained(recipe, device, {})) for device in ("cpu", backend.NAME)
        )
        apart[recipe] = max(abs(one - other) for one, other in zip(on_cpu, on_card, strict=True))
    with torch.autocast(backend.NAME, torch.bfloat16):
        low = nn.Linear(8, 8).to(backend.NAME)(torch.ones(2, 8, device=backend.NAME)).dtype
    return {"what": "done", "same": same, "apart": apart, "autocast": str(low)}


def _trained(recipe: str, device: str, options: dict[str, Any]) -> list[str]:
    training = Training(recipe, 1, device, **options)
    for _ in range(STEPS):
        training.step()
    return training.losses + training.weights()


def main() -> None:
    torch.set_num_threads(1)
    cuda = backend.install()
    if sys.argv[1] == "compare":
        return tell(**compare())
    recipe, seeds, mode = sys.argv[1:]
    try:
        for seed in seeds.split(","):
            tell(**train(cuda, recipe, int(seed), mode))
            cuda.empty_cache()
    except torch.OutOfMemoryError as err:
        tell(what="out of memory", error=str(err))


if __name__ == "__main__":
    main()
