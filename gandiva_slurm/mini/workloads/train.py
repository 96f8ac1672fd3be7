"""Train a small network on the CPU, alone or as a gang (gloo, DDP); the demo's jobs run this.

It writes its losses bit by bit (`float.hex`, one line a step) and when each step ran, and stops after --steps
or once --stop-file exists, at the same step on every rank. Alone, to the same step, it writes the same bits.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from gandiva_slurm.mini.workloads.lean import leave_compiler_out
from gandiva_slurm.mini.workloads.models import MODELS, make_data

#: How many lines may wait in memory, after the first: a reader lags by no more than that.
FLUSH_EVERY = 16
#: After how many steps the stop file is looked for: the ranks of a gang must agree on it, which takes time.
LOOK_EVERY = 8


def main() -> None:
    """Train as the command line says."""
    args = read_arguments()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(1)
    leave_compiler_out()
    torch.manual_seed(args.seed)
    if world > 1:
        dist.init_process_group("gloo")
    build, shape = MODELS[args.model]
    model: nn.Module = DistributedDataParallel(build()) if world > 1 else build()
    shuffle = torch.Generator().manual_seed(1000 * args.seed + rank)
    data = make_data(shape, args.seed)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True, generator=shuffle)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with open(f"{args.out}.{rank}.loss", "w") as losses, open(f"{args.out}.{rank}.steps", "w") as steps:
        print("#", os.environ.get("CUDA_VISIBLE_DEVICES", ""), file=steps)
        log = Log(losses, steps, args.steps, args.stop_file)
        train(model, optimizer, batches(loader, marker(args.boundary)), log, args.wait_ms / 1000)
    if world > 1:
        # torch 2.13: tearing a gloo group down right after a collective can wait for ever (its thread needs
        # the GIL that the destructor holds), so a rank leaves without it. Everything is written by now.
        os._exit(0)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    parser.add_argument(
        "--boundary", choices=["steps", "hook"], default="steps", help="how Gandiva sees a step end"
    )
    parser.add_argument("--steps", type=int, default=0, help="stop after so many (0: never)")
    parser.add_argument("--stop-file", default="", help="stop when this file exists")
    parser.add_argument(
        "--out", required=True, metavar="PREFIX", help="writes PREFIX.RANK.loss and PREFIX.RANK.steps"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--wait-ms", type=float, default=0.0, help="wait in each step, as for a GPU; it changes no bit"
    )
    return parser.parse_args()


def marker(boundary: str) -> Callable[[Any], Any]:
    """Return `gandiva.steps`; with `hook` the script is left as it was before it knew of Gandiva."""
    if boundary == "hook":
        return iter
    import gandiva_slurm as gandiva

    return gandiva.steps


def batches(loader: DataLoader[Any], steps: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield mini-batches, epoch after epoch, for ever."""
    for _ in itertools.count():
        yield from steps(loader)


class Log:
    """Writes a line a step, and knows when to stop."""

    def __init__(self, losses: TextIO, steps: TextIO, limit: int, stop_file: str) -> None:
        self.losses, self.steps = losses, steps
        self.limit, self.stop_file = limit, stop_file
        self.count = 0

    def add(self, loss: float, began_ns: int, ended_ns: int, cpu_ns: int) -> None:
        """Note one step: its loss, when it ran (CLOCK_MONOTONIC), and the processor time it got."""
        self.count += 1
        self.losses.write(loss.hex() + "\n")
        self.steps.write(f"{began_ns} {ended_ns} {cpu_ns}\n")
        if self.count % FLUSH_EVERY == 0 or self.count == 1:
            self.losses.flush()
            self.steps.flush()

    def wants_end(self) -> bool:
        """True after the last step; every rank of a gang gets the same answer."""
        if self.count == self.limit:
            return True
        if not self.stop_file or self.count % LOOK_EVERY != 1:
            return False
        end = os.path.exists(self.stop_file)
        if not dist.is_initialized():
            return end
        flag = torch.tensor([float(end)])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return flag.item() > 0


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Iterator[tuple[Tensor, Tensor]],
    log: Log,
    wait_s: float = 0.0,
) -> None:
    """Train until the log says stop; each step waits `wait_s` beside what it computes."""
    for inputs, labels in source:
        began_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        time.sleep(wait_s)
        # The clock is read before step(): with the hook alone that is where the job is parked.
        ended_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns() - cpu_ns
        optimizer.step()
        log.add(loss.item(), began_ns, ended_ns, cpu_ns)
        if log.wants_end():
            return


if __name__ == "__main__":
    main()
