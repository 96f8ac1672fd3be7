"""A gang of gloo ranks that can be moved, RANK of WORLD_SIZE by the environment; each step all-reduces.

Usage: attached_gang.py STEPS. Rank 0 appends a line a mini-batch, "number loss", to $OUT/loss.JOB, and "end"
behind the last; that is one sooner when $OUT/stop.JOB exists. Where $OUT/fail.JOB exists no save succeeds.
"""

import os
import struct
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import gandiva_slurm as gandiva
from gandiva_slurm.mini.workloads.lean import leave_compiler_out
from tests.stopping import is_told_to_stop, leave_group

leave_compiler_out()
#: What a step waits, as for a GPU: two ranks that never wait leave no processor to others.
WAIT_S = 0.005
out, job = Path(os.environ["OUT"]), os.environ.get("GANDIVA_JOB", "alone")


@gandiva.on_save
def fail() -> None:
    if (out / f"fail.{job}").exists():
        raise OSError("disk full")


def append(name: str) -> int:
    return os.open(out / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


dist.init_process_group("gloo")
torch.manual_seed(7)
torch.set_num_threads(1)
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
losses, notes = append(f"loss.{job}"), append(f"steps.{job}.{rank}")
run = gandiva.attach(model=model, optimizer=optimizer)
for _ in run.epochs(1):
    for number in run.steps(range(int(sys.argv[1]))):
        begin = time.monotonic_ns()
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        time.sleep(WAIT_S if job != "alone" else 0)
        optimizer.step()
        if rank == 0:
            os.write(losses, f"{number} {loss.item().hex()}\n".encode())
        is_over = is_told_to_stop(str(out / f"stop.{job}"))
        os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
        if is_over:
            break
if rank == 0:
    os.write(losses, b"end\n")
leave_group()
