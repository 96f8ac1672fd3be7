"""A training loop without torch: `step_ms` of sleep a mini-batch, each noted in $OUT/steps.JOB.RANK.

Usage: loop.py STEP_MS [none]   ("none": no client; runs until it is killed, or until $OUT/stop.JOB exists)
"""

import os
import struct
import sys
import time
from pathlib import Path

import gandiva_slurm as gandiva

out, job = Path(os.environ["OUT"]), os.environ["GANDIVA_JOB"]
step_ms = float(sys.argv[1])
has_client = "none" not in sys.argv
rank = os.environ.get("RANK", os.environ.get("SLURM_LOCALID", "0"))
notes = os.open(out / f"steps.{job}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
(out / f"env.{job}.{rank}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])

while not (out / f"stop.{job}").exists():
    begin = time.monotonic_ns()
    time.sleep(step_ms / 1000)
    os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
    if has_client:
        gandiva.step()
