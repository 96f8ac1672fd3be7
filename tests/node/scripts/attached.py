"""A training that can be moved, without torch: each loss is made of the one before, `step_ms` of sleep apart.

Usage: attached.py STEP_MS STEPS. $OUT/loss.JOB gets a line a mini-batch, "number loss", and "end" behind the
last; that is one sooner when $OUT/stop.JOB exists. While $OUT/slow.JOB exists a save does not end;
$OUT/saving.JOB is there once one has begun.
"""

import os
import struct
import sys
import time
from pathlib import Path

import gandiva_slurm as gandiva

out, job = Path(os.environ["OUT"]), os.environ["GANDIVA_JOB"]
step_s, steps = float(sys.argv[1]) / 1000, int(sys.argv[2])
#: A save that nobody lets end ends by itself.
LONGEST_SAVE_S = 60.0


class Model:
    """One number."""

    loss = 1

    def state_dict(self) -> dict[str, int]:
        return {"loss": self.loss}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loss = state["loss"]


@gandiva.on_save
def slowly() -> None:
    (out / f"saving.{job}").touch()
    end = time.monotonic() + LONGEST_SAVE_S
    while (out / f"slow.{job}").exists() and time.monotonic() < end:
        time.sleep(0.02)


def append(name: str, rank: str = "") -> int:
    return os.open(out / f"{name}.{job}{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


model, losses, notes = Model(), append("loss"), append("steps", ".0")
run = gandiva.attach(model=model)
for _ in run.epochs(1):
    for number in run.steps(range(steps)):
        begin = time.monotonic_ns()
        time.sleep(step_s)
        model.loss = model.loss * 48271 % 2147483647
        os.write(losses, f"{number} {model.loss}\n".encode())
        os.write(notes, struct.pack("=QQ", begin, time.monotonic_ns()))
        if (out / f"stop.{job}").exists():
            break
os.write(losses, b"end\n")
