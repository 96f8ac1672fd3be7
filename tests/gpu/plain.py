"""A training that knows nothing of Gandiva: `plain.py OUT LIVE_BYTES STOP STEPS`; losses go to OUT as JSON.

It ends when the file STOP is there, or after STEPS steps.
"""

import json
import os
import sys

import torch


def main(out: str, live_bytes: int, stop: str, steps: int) -> None:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
    ballast = torch.randn(live_bytes // 4, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[str] = []
    while len(losses) < steps and not os.path.exists(stop):
        x = torch.randn(64, 256, device="cuda")
        loss = (model(x) - x.sum(1, keepdim=True) - ballast[len(losses) % len(ballast)]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        print(len(losses), flush=True)
    with open(out, "w") as file:
        json.dump(losses, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
