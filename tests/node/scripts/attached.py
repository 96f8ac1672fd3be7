"""A training that can be moved, without torch: each loss is made of the one before, `step_ms` of sleep apart.

Usage: attached.py STEP_MS STEPS   ($OUT/loss.JOB has a line a mini-batch, and "end" when all are done)
"""

import os
import struct
import sys
import time
from pathlib import Path

import gandiva_slurm as gandiva

out, job = Path(os.environ["OUT"]), os.environ["GANDIVA_JOB"]
step_s, steps = float(sys.argv[1]) / 1000, int(sys.argv[2])
notes = os.open(out / f"steps.{job}.0", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
losses = os.open(out / f"loss.{job}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


class Model:
    """One number."""

    loss = 1

    def state_dict(self) -> dict[str, int]:
        return {"loss": self.loss}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loss = state["loss"]


model = Model()
run = gandiva.attach(model=model)
for _ in run.epochs(1):
    for step in run.steps(range(steps)):
        begin = time.monotonic_ns()
        time.sleep(step_s)
        model.loss = model.loss * 48271 % 2147483647
        os.write(losses, f"{step} {model.loss}\n".encode())
        os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
os.write(losses, b"end\n")
