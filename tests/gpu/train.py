"""A training that fills a GPU: `train.py OUT STEPS LIVE_BYTES WORK_BYTES STOP`; losses go to OUT as JSON.

LIVE_BYTES stay from step to step; WORK_BYTES more are used within each but the first.
"""

import json
import os
import sys

import torch

import gandiva_slurm as gandiva
from gandiva_slurm.mini.workloads.lean import leave_compiler_out
from tests.gpu import device


def main(out: str, steps: int, live_bytes: int, work_bytes: int, stop: str) -> None:
    leave_compiler_out()
    kind = device.kind()
    torch.manual_seed(3)
    weights = torch.nn.Parameter(torch.randn(live_bytes // 12, device=kind))
    optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
    losses = []
    for number in gandiva.steps(range(steps)):
        optimizer.zero_grad()
        # Not in the first step: what the optimizer makes then, for good, would be cut from this block.
        work = torch.full((work_bytes // 4 if number else 1,), 1.0 + number, device=kind)
        loss = (weights * weights).mean() * work[-1]
        del work
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if stop and os.path.exists(stop):
            break
    with open(out + ".tmp", "w") as file:
        json.dump(losses, file)
    os.replace(out + ".tmp", out)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
