"""Known to its node: five quick mini-batches, then one that takes STALL_S seconds, and so on.

Usage: stall.py STALL_S
"""

import os
import sys
import time
from pathlib import Path

import gandiva_slurm as gandiva
from gandiva_slurm.client.rank import this_rank

while this_rank().stop is None:  # a hello that was lost is said again at a later step
    time.sleep(0.002)
    gandiva.step()
while True:
    for _ in range(5):
        time.sleep(0.002)
        gandiva.step()
    (Path(os.environ["OUT"]) / f"stalls.{os.environ['GANDIVA_JOB']}").touch()
    time.sleep(float(sys.argv[1]))
