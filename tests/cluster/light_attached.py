"""A training that can be moved, without PyTorch: python light_attached.py NAME STEPS

NAME.loss gets a line a mini-batch, "number loss", each loss made of the one before, and "end" behind the
last. While NAME.slow exists a save does not end; NAME.saving is there once one has begun.
"""

import os
import sys
import time

import gandiva_slurm as gandiva

name, steps = sys.argv[1], int(sys.argv[2])


class Model:
    """One number."""

    loss = 1

    def state_dict(self) -> dict[str, int]:
        return {"loss": self.loss}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loss = state["loss"]


@gandiva.on_save
def slowly() -> None:
    open(f"{name}.saving", "w").close()
    end = time.monotonic() + 60
    while os.path.exists(f"{name}.slow") and time.monotonic() < end:
        time.sleep(0.05)


model = Model()
run = gandiva.attach(model=model)
with open(f"{name}.loss", "a", buffering=1) as losses:
    for _ in run.epochs(1):
        for number in run.steps(range(steps)):
            time.sleep(0.01)
            model.loss = model.loss * 48271 % 2147483647
            losses.write(f"{number} {model.loss}\n")
    losses.write("end\n")
