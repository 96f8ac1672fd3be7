"""A gang without PyTorch that cannot be parked: rank 0 steps on, rank 1 stays in its sixth step for ever.

Copied into a user's home and run there: python refusing_gang.py PREFIX STOP_FILE, with RANK and WORLD_SIZE
set. Each rank writes PREFIX.RANK.steps, a line for each bit of work: a number made of the one before.
"""

import os
import sys
import time

import gandiva_slurm as gandiva

RANK = int(os.environ["RANK"])


def main() -> None:
    """Work until the file exists."""
    prefix, stop_file = sys.argv[1:]
    value, steps = 1, 0
    with open(f"{prefix}.{RANK}.steps", "w", buffering=1) as out:
        while not os.path.exists(stop_file):
            time.sleep(0.01)
            value = value * 48271 % 2147483647
            out.write(f"{value}\n")
            if RANK == 0 or steps < 5:
                steps += 1
                gandiva.step()


main()
