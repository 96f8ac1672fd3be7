"""A training that can be moved, as a script: `attach_train.py RECIPE OUT [--epochs N] [--workers N] ...`.

Appends one line a mini-batch to OUT.RANK, "epoch number loss", and in the end the digest of its weights. All
ranks end behind the epoch in which OUT.stop is there.
"""

import argparse
import os
import sys
import time

import torch

import gandiva_slurm as gandiva
from gandiva_slurm.mini.workloads.lean import leave_compiler_out
from tests import attach_recipes as recipes
from tests.stopping import is_told_to_stop, leave_group


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=0.0, help="sleep in every step")
    parser.add_argument("--device", default="cpu", help="`card`: a simulated one, each rank's by its number")
    parser.add_argument("--store", default="", help="rendezvous file of the process group")
    return parser.parse_args()


def train(args: argparse.Namespace, note, watch=lambda run, number: None, is_over=lambda: False) -> None:
    """Train; `watch` is called before mini-batch `number` of its epoch, and behind the last one."""
    leave_compiler_out()
    rank = int(os.environ.get("RANK", "0"))
    recipe = {**recipes.SOLO, **recipes.FIXED, **recipes.GANG}[args.recipe](args.device)
    torch.manual_seed(100 + rank)
    loader = recipes.loader(args.workers)
    run = gandiva.attach(recipe.model, recipe.optimizer, recipe.scheduler, recipe.scaler, loader)
    for epoch in run.epochs(args.epochs):
        recipe.begin_epoch(epoch)
        for number, (x, y) in enumerate(run.steps(loader), run.batch):
            watch(run, number)
            loss = recipe.step(number, x.to(args.device), y.to(args.device))
            time.sleep(args.step_ms / 1000)
            note(f"{epoch} {number} {loss.item().hex()}")
        watch(run, recipes.BATCHES)
        recipe.end_epoch()
        if is_over():
            break
    note(recipes.digest(recipe.model))


def begin_on_card(rank: int) -> str:
    """Compute on a simulated card; return by what the ranks of a gang speak with each other."""
    from tests.device import backend, through_host

    cards = backend.install().device_count()
    torch.accelerator.set_device_index(rank % cards)
    return through_host.register()


def main() -> int:
    args = parse()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    speech = "gloo" if args.device == "cpu" else begin_on_card(rank)
    recipes.seed(7 + int(os.environ.get("SLURM_RESTART_COUNT", "0")))
    if world > 1:
        method = f"file://{args.store}"
        torch.distributed.init_process_group(speech, init_method=method, rank=rank, world_size=world)
    with open(f"{args.out}.{rank}", "a", buffering=1) as out:
        train(args, lambda line: out.write(line + "\n"), is_over=lambda: is_told_to_stop(f"{args.out}.stop"))
    if world > 1:
        leave_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
