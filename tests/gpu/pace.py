"""A training as fast as it can, until $OUT/stop.JOB is there; each step is noted in $OUT/steps.JOB.0.

Once $OUT/grow.JOB is there, every step takes some memory more and keeps it.
Usage: pace.py KIND   (`small`: many kernels, each a little; `large`: few that fill it; `resnet`: a usual one)
"""

import os
import struct
import sys
import time
from pathlib import Path

import torch
from torch import nn

import gandiva_slurm as gandiva
from tests.gpu.resnet import resnet50

GROWTH_BYTES = 1 << 30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def small():
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(40)]), (64, 64)


def large():
    return nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(6)]), (8192, 4096)


def resnet():
    return resnet50(), (32, 3, 128, 128)


def main(kind):
    out, job = Path(os.environ["OUT"]), os.environ["GANDIVA_JOB"]
    torch.manual_seed(2)
    model, shape = {"small": small, "large": large, "resnet": resnet}[kind]()
    model = model.to(DEVICE)
    x = torch.randn(shape, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    notes = os.open(out / f"steps.{job}.0", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    grown = []
    while not (out / f"stop.{job}").exists():
        begin = time.monotonic_ns()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        if (out / f"grow.{job}").exists():
            grown.append(torch.empty(GROWTH_BYTES, dtype=torch.uint8, device=DEVICE))
        os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
        gandiva.step()


if __name__ == "__main__":
    main(sys.argv[1])
