"""One rank of a gang without torch: all go in step over a socket, a few milliseconds a mini-batch.

Usage: light_gang.py   (with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set)

Runs until it is killed, or until $OUT/stop.JOB exists; notes each step in $OUT/steps.JOB.RANK.
"""

import os
import struct
import time
from pathlib import Path

import gandiva_slurm as gandiva
from tests.cluster.light_gang import RANK, agree, meet

STEP_S = 0.004

out, job = Path(os.environ["OUT"]), os.environ["GANDIVA_JOB"]
notes = os.open(out / f"steps.{job}.{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
lines = meet()
while True:
    begin = time.monotonic_ns()
    is_over = agree(lines, (out / f"stop.{job}").exists())
    time.sleep(STEP_S)
    os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
    if is_over:
        break
    gandiva.step()
