"""Trainings on the simulated card that begin at once: forked off one that has imported what they need.

`python -m tests.device.lives` reads a line of JSON for each, words of its environment, and prints its pid.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

import torch
from torch import nn

import gandiva_slurm as gandiva
from gandiva_slurm.client import behind
from gandiva_slurm.mini.workloads.lean import leave_compiler_out
from tests.device import backend

WIDTH = 192
#: What it writes a second, parked: a writing takes as long as a few mini-batches.
RATE = 48 << 20


def train() -> None:
    """Train for ever, attached; $OUT gets a line a mini-batch, "number loss"."""
    leave_compiler_out()
    cuda = backend.install()
    cuda.set_pace(0.0, int(os.environ["BYTES_PER_S"]))
    torch.set_num_threads(1)
    behind.RATE = RATE
    torch.manual_seed(5)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 4)).to(backend.NAME)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    run = gandiva.attach(model=model, optimizer=optimizer)
    out = os.open(os.environ["OUT"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in run.steps(range(int(os.environ["STEPS"]))):
        x, y = torch.randn(8, WIDTH).to(backend.NAME), torch.randint(4, (8,)).to(backend.NAME)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        os.write(out, f"{number} {loss.item().hex()}\n".encode())


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.environ.update(json.loads(line))
            try:
                train()
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
