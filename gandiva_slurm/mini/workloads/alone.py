"""Run training scripts alone, without Slurm: PyTorch is loaded once, and every rank is a fork of that.

    python -m gandiva_slurm.mini.workloads.alone AT_ONCE '[{"name": ..., "ranks": ..., "arguments": [...]}]'

A rank does what `python -m gandiva_slurm.mini.workloads.train ARGUMENTS` does, in a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import torch

from gandiva_slurm.mini.workloads import train
from gandiva_slurm.mini.workloads.lean import leave_compiler_out

Run = Mapping[str, Any]
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run all that the command line says, the biggest first; exit with 1 when one fails."""
    at_once, runs = int(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    leave_compiler_out()
    waiting = sorted(runs, key=lambda run: -run["ranks"])
    running: dict[int, str] = {}
    while waiting or running:
        while waiting and (not running or len(running) + waiting[0]["ranks"] <= at_once):
            run = waiting.pop(0)
            running |= dict.fromkeys(start(run), run["name"])
        pid, status = os.wait()
        name = running.pop(pid)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"{name} ended with {os.waitstatus_to_exitcode(status)}")


def start(run: Run) -> list[int]:
    """Fork every rank of a run; returns their pids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [_fork(run, rank, port) for rank in range(run["ranks"])]


def _fork(run: Run, rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(run["ranks"]), "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        sys.argv[1:] = run["arguments"]
        train.main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
