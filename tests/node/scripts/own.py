"""A training that knows nothing of Gandiva: it goes on from its own file, saves itself now and then, and at
once where its script tells it so by SIGUSR1. Each line it writes: the run, and the mini-batch.

    python own.py NAME
"""

import os
import signal
import sys
import time

import torch

name, told, every = sys.argv[1], [], int(os.environ.get("SAVE_EVERY", 50))
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
weight, begin = torch.zeros(1, requires_grad=True), 0
optimizer = torch.optim.AdamW([weight])
if os.path.exists(name + ".saved"):
    begin, state = torch.load(name + ".saved")
    optimizer.load_state_dict(state)


def save(number):
    torch.save((number, optimizer.state_dict()), name + ".new")
    os.replace(name + ".new", name + ".saved")


with open(name + ".out", "a", buffering=1) as out:
    for number in range(begin, 10**9):
        weight.grad = torch.ones(1)
        optimizer.step()
        print(os.environ.get("SLURM_RESTART_COUNT", 0), number, file=out)
        if told or number % every == every - 1:
            save(number + 1)
        if told or os.path.exists(name + ".stop"):
            break
        time.sleep(0.02)
