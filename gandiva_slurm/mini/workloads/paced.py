"""Train a tiny network at the pace of its node's GPU type, attached; `gandiva mini validate`'s jobs run this.

    python -m gandiva_slurm.mini.workloads.paced --out PREFIX --steps N --ranks K --pace n1=80 --pace n2=160

A mini-batch computes for a moment and sleeps for the rest of its node's time. PyTorch is loaded once: the
ranks of a gang are forks of that. The first rank adds a line a mini-batch to PREFIX.steps, whatever node the
job goes on on: restart count, number, when it began and ended (CLOCK_MONOTONIC), processor time, loss.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
import traceback
from typing import TextIO

import torch
import torch.distributed as dist
from torch import nn

import gandiva_slurm as gandiva
from gandiva_slurm.mini.workloads.models import CLASSES, MODELS

BATCH, RATE = 16, 0.01
#: CLOCK_MONOTONIC is the same for all processes of a machine.
MS = 1_000_000


def main() -> None:
    """Train as the command line says, alone or as a gang."""
    args = read_arguments()
    torch.set_num_threads(1)
    if args.ranks == 1:
        train(args, 0)
    else:
        train_as_gang(args)
    # To take PyTorch down takes as long as a good many mini-batches, and a gloo group that is torn down right
    # after a collective can wait for ever (train.py). Everything is written by now.
    os._exit(0)


def train_as_gang(args: argparse.Namespace) -> None:
    """Fork the ranks, and wait for all of them."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    waited = [fork(args, rank) for rank in range(args.ranks)]
    while waited:
        pid, status = os.wait()
        waited.remove(pid)
        if status:
            for other in waited:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"a rank ended with {os.waitstatus_to_exitcode(status)}")


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, metavar="PREFIX", help="writes PREFIX.steps")
    parser.add_argument("--steps", type=int, required=True, help="mini-batches in all")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--pace", action="append", required=True, metavar="NODE=MS", help="what a mini-batch takes there"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def free_port() -> int:
    """A port at which the ranks of a gang can meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def fork(args: argparse.Namespace, rank: int) -> int:
    """Begin one rank of a gang; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(args.ranks), "LOCAL_RANK": str(rank)}
    try:
        dist.init_process_group("gloo")
        train(args, rank)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def train(args: argparse.Namespace, rank: int) -> None:
    """Train what is left of it; the first rank writes down each mini-batch."""
    torch.manual_seed(args.seed)
    build, shape = MODELS["tiny"]
    model = build()
    run = gandiva.attach(model=model)
    pace_ns = pace_of(args.pace)
    with open(os.devnull if rank else f"{args.out}.steps", "a", buffering=1) as notes:
        for _ in run.epochs(1):
            for number in run.steps(range(args.steps)):
                began = (time.monotonic_ns(), time.process_time_ns())
                inputs, labels = torch.randn(BATCH, *shape), torch.randint(CLASSES, (BATCH,))
                loss = nn.functional.cross_entropy(model(inputs), labels)
                descend(model, loss)
                note(notes, number, began, loss.item(), pace_ns)


def descend(model: nn.Module, loss: torch.Tensor) -> None:
    """Go down the gradient, the mean over all ranks.

    By hand: an optimizer of PyTorch's, or its data parallelism, imports as much again as PyTorch itself.
    """
    weights = [*model.parameters()]
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        flat = torch.cat([each.flatten() for each in gradients])
        if dist.is_initialized():
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
        pieces = torch.split(flat, [each.numel() for each in weights])
        for weight, gradient in zip(weights, pieces, strict=True):
            weight.sub_(gradient.view_as(weight), alpha=RATE)


def note(notes: TextIO, number: int, began: tuple[int, int], loss: float, pace_ns: int) -> None:
    """Sleep until a mini-batch has taken its time, and write it down."""
    cpu_ns = time.process_time_ns() - began[1]
    time.sleep(max(0, began[0] + pace_ns - time.monotonic_ns()) / 1e9)
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    notes.write(f"{restart} {number} {began[0]} {time.monotonic_ns()} {cpu_ns} {loss.hex()}\n")


def pace_of(paces: list[str]) -> int:
    """What a mini-batch takes on this node, nanoseconds."""
    by_node = dict(pace.split("=") for pace in paces)
    return int(float(by_node[os.environ["SLURMD_NODENAME"]]) * MS)


if __name__ == "__main__":
    main()
