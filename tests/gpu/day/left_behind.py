"""What a park leaves of a training's memory, as seen from outside: bytes, as a line of JSON."""

from __future__ import annotations

import json

import torch

from gandiva_slurm.client.offload import TorchTier
from tests.gpu.device import IS_SIM, gauge, kind, settled, used
from tests.gpu.resnet import resnet50

BATCH, SIDE, STEPS = (1, 64, 1) if IS_SIM else (256, 224, 3)


def main() -> None:
    """Take a context, train, park."""
    device = kind()
    torch.zeros(1, device=device)
    settled()
    told = {"context": used()}
    model = resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(BATCH, 3, SIDE, SIDE, device=device)).square().mean().backward()
        optimizer.step()
    settled()
    told["training"] = used()
    tier = TorchTier(torch, gauge(), {1: lambda: model, 2: lambda: optimizer})
    tier.release()
    told["parked"] = used()
    tier.restore()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
