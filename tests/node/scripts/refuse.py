"""A rank of a gang that comes to no common boundary: rank 0 steps on, rank 1 is in one step for ever.

It is the sixth since its node knows it.

Each writes the loss of every few milliseconds of work, one made of the other, to $OUT/loss.JOB.RANK, and when
that was to $OUT/steps.JOB.RANK; until $OUT/stop.JOB exists.
"""

import os
import struct
import time
from pathlib import Path

import gandiva_slurm as gandiva
from gandiva_slurm.client.rank import this_rank

out, job, rank = Path(os.environ["OUT"]), os.environ["GANDIVA_JOB"], os.environ["RANK"]
notes = os.open(out / f"steps.{job}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
losses = os.open(out / f"loss.{job}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
loss, steps = 1, 0
while not (out / f"stop.{job}").exists():
    begin = time.monotonic_ns()
    time.sleep(0.004)
    loss = loss * 48271 % 2147483647
    os.write(losses, f"{loss}\n".encode())
    os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
    if rank == "0" or steps < 5:
        gandiva.step()
        steps += this_rank().stop is not None  # a hello that was lost is said again at a later step
