"""A gang of gloo ranks that knows nothing of Gandiva: it goes on from its own file, which rank 0 saves.

Where each rank is told so by SIGUSR1 it saves itself at once, and ends with exit code 3.

Usage: own_gang.py. Rank 0 appends a line a mini-batch, its number, to $OUT/loss.JOB, and "end" behind the
last, which comes when $OUT/stop.JOB exists.
"""

import itertools
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gandiva_slurm.mini.workloads.lean import leave_compiler_out
from tests.stopping import is_told_to_stop, leave_group

out, job = Path(os.environ["OUT"]), os.environ["SLURM_JOB_ID"]
saved = out / f"saved.{job}"

leave_compiler_out()
told = torch.zeros(1)
signal.signal(signal.SIGUSR1, lambda *_: told.fill_(1))
dist.init_process_group("gloo")
torch.manual_seed(7)
torch.set_num_threads(1)
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer, begin = torch.optim.AdamW(model.parameters()), 0
if saved.exists():
    begin, weights, state = torch.load(saved)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
with open(out / f"loss.{job}", "a", buffering=1) as losses:
    for number in itertools.count(begin):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        time.sleep(0.005)
        optimizer.step()
        if rank == 0:
            print(number, file=losses)
        heard = told.clone()
        dist.all_reduce(heard, dist.ReduceOp.MIN)  # all of them have
        if rank == 0 and (heard or number % 50 == 49):
            torch.save((number + 1, model.state_dict(), optimizer.state_dict()), f"{saved}.new")
            os.replace(f"{saved}.new", saved)
        if heard:
            dist.barrier()
            os._exit(3)
        if is_told_to_stop(str(out / f"stop.{job}")):
            break
    if rank == 0:
        print("end", file=losses)
leave_group()
