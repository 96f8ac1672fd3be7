"""A training with long steps of many short layers, for tests of pauses within a step; one thread, the CPU.

Writes the losses of `--steps` mini-batches as JSON into `--out`. Each layer sleeps a little in its forward.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from gandiva_slurm.mini.workloads.lean import leave_compiler_out


class Slow(nn.Module):
    """A layer that takes a millisecond."""

    def forward(self, x):
        time.sleep(0.001)
        return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=150)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    leave_compiler_out()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    layers = []
    for _ in range(args.layers):
        layers += [nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), Slow()]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 16)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    args.out.write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
