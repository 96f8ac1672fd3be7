"""Runs a program again and again, as a script with several trainings does. Usage: again.py PROGRAM...

Each is a process of its own. What they import is there already: one that is begun in a frozen job, which
breathes for a hundredth of a second in each five seconds, comes to its hello in one of these.
"""

import os
import runpy
import sys

import gandiva_slurm

assert gandiva_slurm.step
sys.argv = sys.argv[1:]
while True:
    pid = os.fork()
    if not pid:
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)
    os.waitpid(pid, 0)
