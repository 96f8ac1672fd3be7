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
from tests.gpu.device import IS_SIM, MIB, kind
from tests.gpu.resnet import resnet50

#: On the simulated card all is small.
GROWTH_BYTES = (32 if IS_SIM else 1024) * MIB
WIDE, ROWS, IMAGES = (256, 256, (1, 3, 64, 64)) if IS_SIM else (4096, 8192, (32, 3, 128, 128))


def small():
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(40)]), (64, 64)


def large():
    return nn.Sequential(*[nn.Linear(WIDE, WIDE) for _ in range(6)]), (ROWS, WIDE)


def resnet():
    return resnet50(), IMAGES


def main(what):
    device = kind()
    out, job = Path(os.environ["OUT"]), os.environ["GANDIVA_JOB"]
    torch.manual_seed(2)
    model, shape = {"small": small, "large": large, "resnet": resnet}[what]()
    model = model.to(device)
    x = torch.randn(shape, device=device)
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
            grown.append(torch.empty(GROWTH_BYTES, dtype=torch.uint8, device=device))
        os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
        gandiva.step()


if __name__ == "__main__":
    main(sys.argv[1])
