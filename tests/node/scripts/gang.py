"""A gang of gloo ranks on CPU with real torch: each step all-reduces, so no rank is a step ahead of another.

Usage: gang.py WORLD STEPS PORT   (starts its ranks itself, where RANK is not set)

All ranks end behind the same step: the last one, or the one in which $OUT/stop.JOB was seen. Then the losses
go to $OUT/loss.JOB, a number a line.
"""

import os
import struct
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

#: What a step waits, as for a GPU: two ranks that never wait leave no processor to others.
WAIT_S = 0.005

world, steps, port = (int(word) for word in sys.argv[1:4])


def launch() -> int:
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **common, "RANK": str(n), "LOCAL_RANK": str(n)}
        )
        for n in range(world)
    ]
    return max(rank.wait() for rank in ranks)


def train() -> None:
    import torch
    import torch.distributed as dist

    import gandiva_slurm as gandiva
    from gandiva_slurm.mini.workloads.lean import leave_compiler_out
    from tests.stopping import is_told_to_stop, leave_group

    leave_compiler_out()
    told = {"timeout": timedelta(seconds=float(os.environ["GROUP_S"]))} if "GROUP_S" in os.environ else {}
    dist.init_process_group("gloo", **told)
    torch.manual_seed(7)
    torch.set_num_threads(1)
    rank, job, out = dist.get_rank(), os.environ.get("GANDIVA_JOB", "alone"), Path(os.environ["OUT"])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    notes = os.open(out / f"steps.{job}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    losses = []
    for _ in gandiva.steps(range(steps)):
        begin = time.monotonic_ns()
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        time.sleep(WAIT_S if job != "alone" else 0)
        optimizer.step()
        losses.append(loss.item())
        is_over = is_told_to_stop(str(out / f"stop.{job}"))
        os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
        if is_over:
            break
    if rank == 0:
        written = out / f"loss.{job}.part"
        written.write_text("\n".join(value.hex() for value in losses))
        written.rename(out / f"loss.{job}")
    leave_group()


sys.exit(launch()) if "RANK" not in os.environ else train()
