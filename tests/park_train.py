"""A small real training job for the park tests: deterministic, one thread a rank, one or more gloo DDP ranks.

Writes what it computed as JSON: {"losses": [hex, ...], "rank": 0}.
"""

import argparse
import datetime
import json
import os
import sys
import time

from tests.stopping import leave_group


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mark", choices=("hook", "steps", "step", "none"), default="hook")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--until", default="", help="also end after the first step that finds this file")
    parser.add_argument("--step-ms", type=float, default=0.0, help="sleep in every step")
    parser.add_argument("--pause-every", type=int, default=0, help="rank 0 pauses 20 ms every so many steps")
    parser.add_argument("--group-s", type=int, default=0, help="time-out of the gradients' own group")
    parser.add_argument("--impatient", action="store_true", help="trust a silent node for a second only")
    parser.add_argument("--out", required=True)
    parser.add_argument("--store", default="", help="rendezvous file of the process group")
    return parser.parse_args()


def build(torch, world: int, group_s: int):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    if world > 1:
        bound = datetime.timedelta(seconds=group_s) if group_s else None
        group = torch.distributed.new_group(timeout=bound)
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def batches(torch, args, rank: int):
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(args.steps):
        yield torch.randn(32, 64, generator=generator), torch.randint(10, (32,), generator=generator)


def be_impatient() -> None:
    from gandiva_slurm.client import machine, rank

    machine.PARKED_BEAT_NS = 1_000_000_000
    rank.WAKE_JITTER_S = 0.5


def train(torch, args, rank: int, world: int) -> list:
    model, optimizer = build(torch, world, args.group_s)
    losses, data = [], batches(torch, args, rank)
    if args.mark in ("steps", "step"):
        import gandiva_slurm as gandiva

        data = gandiva.steps(data) if args.mark == "steps" else data
    for number, (x, y) in enumerate(data, start=1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(args.step_ms / 1000)
        if args.mark == "step":
            gandiva.step()
        if args.pause_every and rank == 0 and number % args.pause_every == 0:
            time.sleep(0.02)
        stop = torch.tensor([float(bool(args.until) and rank == 0 and os.path.exists(args.until))])
        if world > 1:
            torch.distributed.all_reduce(stop)
        losses.append(loss.item().hex())
        if stop.item():
            break
    return losses


def main() -> int:
    args = parse()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    import torch

    from gandiva_slurm.mini.workloads.lean import leave_compiler_out

    leave_compiler_out()
    if args.impatient:
        be_impatient()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{args.store}", rank=rank, world_size=world
        )
    losses = train(torch, args, rank, world)
    with open(f"{args.out}.{rank}.tmp", "w") as out:
        json.dump({"losses": losses, "rank": rank}, out)
    os.replace(f"{args.out}.{rank}.tmp", f"{args.out}.{rank}")
    if world > 1:
        leave_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
