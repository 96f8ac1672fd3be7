"""One rank of a gang whose memory is moved away and back between its steps; takes KIND OUT STORE MOST_HELD.

Trains undisturbed, then parked a hundred times, and writes both, and what every park said, as JSON. MOST_HELD
is how many bytes may stay.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests import offload_kit as kit
from tests.stopping import leave_group

STEPS, PARKS = 130, 100


def ddp(device: str, has_views: bool = False) -> kit.Step:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64)).to(device)
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=has_views)
    return _plain(wrapped, torch.optim.Adam(wrapped.parameters(), lr=1e-3), device)


def bucket_views(device: str) -> kit.Step:
    return ddp(device, has_views=True)


def sharded(device: str) -> kit.Step:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return _plain(model, torch.optim.AdamW(model.parameters(), lr=1e-3), device)


def _plain(model: Any, optimizer: Any, device: str) -> kit.Step:
    def step(number: int) -> Any:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.model = model  # type: ignore[attr-defined]
    return step


KINDS = {"ddp": ddp, "bucket_views": bucket_views, "sharded": sharded}


def main(kind: str, out: str, store: str, most_held: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    alone = kit.train(KINDS[kind], "cpu", STEPS, lambda: None)
    with kit.AllStorages() as storages:
        parks = kit.Parks(kit.ExactGauge(storages), PARKS, STEPS, float(most_held))
        parked = kit.train(KINDS[kind], "cpu", STEPS, parks.between)
    found = {"alone": alone, "parked": parked, "said": parks.said}
    with open(f"{out}.{rank}", "w") as file:
        json.dump(found, file)
    leave_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
