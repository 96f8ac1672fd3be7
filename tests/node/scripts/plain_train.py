"""A training that knows nothing of Gandiva and never saves: FILE STEPS [SECONDS a step] [WORKERS to load].

Each step's loss goes to FILE as a hexadecimal number, so that runs are compared bit for bit. Where FILE.moved
is there it waits no more.
"""

import os
import sys
import time

import torch

out, steps = sys.argv[1], int(sys.argv[2])
pause_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
workers = int(sys.argv[4]) if len(sys.argv) > 4 else 0
torch.set_num_threads(1)
torch.manual_seed(7)
layers = torch.nn.Linear(32, 64), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(64, 4)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(256, 32), torch.randn(256, 4))


def batches():
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, num_workers=workers)


if __name__ == "__main__":  # workers may be spawned
    with open(out, "a", buffering=1) as losses:
        for step, (x, y) in enumerate(batches()):
            if step == steps:
                break
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.write(f"{step} {loss.item().hex()}\n")
            time.sleep(0 if os.path.exists(f"{out}.moved") else pause_s)
    sys.exit(int(os.environ.get("END", "7")))
