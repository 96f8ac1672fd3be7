"""What it takes to find a training's tensors: at the first park, and at each later one, in turn.

Processor time of one thread, the median of 25 parks with new gradients each; small tensors in the shapes of
usual models, on the CPU as the device. With DistributedDataParallel, whose buckets nobody finds, the first
park alone, of a model whose buckets are more than what the heap is walked for.
"""

import gc
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

from gandiva_slurm.client.device import CpuGauge
from gandiva_slurm.client.roots import Roots
from tests.gpu.resnet import resnet50

PARKS = 25


def llama() -> nn.Module:
    """32 layers of nine weights."""
    shapes = [(32, 32)] * 4 + [(64, 32)] * 2 + [(32, 64)] + [(32,)] * 2
    return nn.ModuleList(
        nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes) for _ in range(32)
    )


def bert() -> nn.Module:
    return nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(12))


MODELS = {
    "ResNet-50, SGD with momentum": (resnet50, lambda values: torch.optim.SGD(values, 0.1, momentum=0.9)),
    "12 encoder layers, AdamW": (bert, torch.optim.AdamW),
    "32 decoder layers, AdamW": (llama, torch.optim.AdamW),
}


def test_finding_a_trainings_tensors() -> None:
    for name, (make, optimizer_of) in MODELS.items():
        model = make()
        optimizer = optimizer_of(model.parameters())
        seen = {1: lambda model=model: model, 2: lambda made=optimizer: made}
        finder, found = Roots(torch, CpuGauge(torch), seen), []
        took: dict[str, list[float]] = {"first": [], "later": []}
        for _ in range(PARKS):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            finder._owners = []
            for when in took:
                start = time.process_time()
                found = finder.find(sum(storage.nbytes() for storage in found) if when == "later" else 0)
                took[when].append((time.process_time() - start) * 1e3)
        first, later = (statistics.median(times) for times in took.values())
        told = f"{first:.1f} ms at first, {later:.1f} ms later = 1/{first / later:.1f}"
        print(f"\n{name}, {len(found)} storages: {told}")
        assert later < first


def test_finding_them_beside_buckets_that_nobody_finds(tmp_path) -> None:
    method = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    layers = [nn.Linear(2048, 2048) for _ in range(6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2048)).sum().backward()
    optimizer.step()
    buckets = sum(value.nbytes for value in model.parameters())
    took = []
    for _ in range(PARKS):
        finder = Roots(torch, CpuGauge(torch), {1: lambda: model, 2: lambda: optimizer})
        start = time.process_time()
        found = finder.find(5 * buckets)
        took.append((time.process_time() - start) * 1e3)
    dist.destroy_process_group()
    among = f"among {len(gc.get_objects()):,} objects"
    told = f"{statistics.median(took):.1f} ms, at most {max(took):.1f}, {among}"
    print(f"\nDistributedDataParallel, {len(found)} storages, {buckets >> 20} MiB of buckets: {told}")
    assert len(found) == 5 * 12
