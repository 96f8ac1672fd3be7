"""Layers that arrive in the order they compute in, on a GPU: bits, and what that gains."""

import statistics
import time

import pytest
import torch

from gandiva_slurm.client.device import Cuda
from gandiva_slurm.client.offload import TorchTier
from tests.gpu import device
from tests.gpu.device import IS_SIM
from tests.gpu.figures import figure
from tests.gpu.resnet import resnet50

pytestmark = pytest.mark.gpu

STEPS, WARM, BATCH = (4, 1, (1, 3, 64, 64)) if IS_SIM else (20, 5, (16, 3, 128, 128))


def train(parks):
    """Train a ResNet-50; return its losses, and how long each resume took until its next step was over."""
    kind = device.kind()
    torch.manual_seed(1)
    model = resnet50().to(kind)
    optimizer = torch.optim.Adam(model.parameters())
    things = [*model.modules(), optimizer]
    tier = TorchTier(torch, Cuda(torch), {id(thing): lambda thing=thing: thing for thing in things})
    losses, times = [], []
    for _ in range(STEPS):
        if parks and losses:
            tier.release()
            device.settled()
        start = time.perf_counter()
        if parks and losses:
            tier.restore()
        optimizer.zero_grad()
        loss = model(torch.randn(*BATCH, device=kind)).square().mean()
        loss.backward()
        optimizer.step()
        device.settled()
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    return losses, statistics.median(times[WARM:]) * 1e3


def test_layers_in_order_change_no_bit_and_what_they_gain(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    is_strict, cudnn = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn
    torch.use_deterministic_algorithms(True, warn_only=True)
    monkeypatch.setattr(cudnn, "deterministic", True)
    try:
        want, alone = train(parks=False)
        whole, at_once = train(parks=True)
        monkeypatch.setenv("GANDIVA_LAYERED", "1")
        found, layered = train(parks=True)
    finally:
        torch.use_deterministic_algorithms(is_strict)
    assert whole == want and found == want
    told = f"{at_once:.1f} ms at once, {layered:.1f} ms by layers; a step alone {alone:.1f} ms"
    figure("resume and first step, p50", told, "same bits")
