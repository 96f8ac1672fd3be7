"""Open each GPU's file in every way a job has, and note what the kernel says; then wait.

Usage: openings.py NAME PREFIX COUNT   (notes in openings.NAME: a JSON line a way, with an errno by GPU)
"""

import json
import os
import signal
import sys
import time

NAME, PREFIX, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])


def answers() -> list[int]:
    found = []
    for gpu in range(COUNT):
        try:
            os.close(os.open(f"{PREFIX}{gpu}", os.O_RDWR))
            found.append(0)
        except OSError as err:
            found.append(err.errno)
    return found


def note(way: str) -> None:
    line = json.dumps({"way": way, "visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "errors": answers()})
    with open(f"openings.{NAME}", "a") as out:
        out.write(line + "\n")


note("itself")
if os.fork() == 0:
    note("child")
    os.setsid()
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.01)
        note("double fork")
        os.environ.clear()
        note("clean environment")
    os._exit(0)
os.wait()
signal.pause()
