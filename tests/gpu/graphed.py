"""A training whose step is a captured CUDA graph: `graphed.py OUT STEPS STOP`; losses go to OUT as JSON."""

import json
import os
import sys

import torch

import gandiva_slurm as gandiva


def main(out: str, steps: int, stop: str) -> None:
    torch.manual_seed(9)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    model = torch.cuda.make_graphed_callables(model, (torch.randn(64, 256, device="cuda"),))
    losses = []
    for _ in gandiva.steps(range(steps)):
        optimizer.zero_grad()
        x = torch.randn(64, 256, device="cuda")
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if os.path.exists(stop):
            break
    with open(out, "w") as file:
        json.dump(losses, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
