"""Elastic trainings as a script, one after the other: `elastic_train.py KIND[,KIND] OUT [--stop N] ...`.

`replicas` is DistributedDataParallel's, `shards` FSDP2's, where there are several ranks; alone both are plain
modules. `scaled` is `replicas` with a GradScaler, whose scale doubles every other step. Appends to OUT.RANK
one line a piece: "kind epoch world loss is-last indices", its loss in hexadecimal, times its share and the
scale: a scale that is lost shows. With --stop each saves itself and leaves behind N global batches;
when OUT.stop is there all ranks end before their next epoch. RANK and WORLD_SIZE number them, or srun does.
"""

import argparse
import os
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gandiva_slurm as gandiva
from tests.stopping import is_told_to_stop, leave_group

SAMPLES, GLOBAL_BATCH, EPOCHS, WIDTH, CLASSES = 30, 8, 2, 5, 3
KINDS = ("replicas", "shards", "scaled")


class Numbered(torch.utils.data.Dataset):
    """Samples that are functions of their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return index, torch.rand(WIDTH, generator=generator), index % CLASSES


def build(kind: str, world: int):
    """A model and its optimizer; its layers' seven rows do not divide among the ranks."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, CLASSES))
    if world > 1 and kind != "shards":
        model = DistributedDataParallel(model)
    elif world > 1:
        for layer in (model[0], model[2], model):
            fully_shard(layer)
    if kind != "shards":
        return model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(kind: str, note, world: int = 1, most: int = 3, args: argparse.Namespace | None = None) -> None:
    """Train; `note` is called behind each piece."""
    args = args or parse([kind, ""])
    model, optimizer = build(kind, world)
    data = Numbered()
    sampler = gandiva.ElasticSampler(data, GLOBAL_BATCH, max_per_rank=most, seed=3)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    scaler = torch.amp.GradScaler("cpu", growth_interval=2, enabled=kind == "scaled")
    kept = scaler if kind == "scaled" else None
    run = gandiva.attach(model=model, optimizer=optimizer, scaler=kept, loader=loader)
    batches = 0
    for epoch in run.epochs(args.epochs):
        if is_told_to_stop(f"{args.out}.stop"):
            return
        sampler.set_epoch(epoch)
        for index, x, y in run.steps(loader):
            if args.stop and batches == args.stop:
                return
            unsynced = isinstance(model, DistributedDataParallel) and not run.is_last
            if kind == "shards" and world > 1:
                model.set_requires_gradient_sync(run.is_last)
            with model.no_sync() if unsynced else nullcontext():
                loss = cross_entropy(model(x), y) * run.share
                scaler.scale(loss).backward()
            noted = loss.item() * scaler.get_scale()
            seen = ",".join(map(str, index.tolist())) if run.share else "-"
            note(f"{kind} {epoch} {world} {noted.hex()} {run.is_last:d} {seen}")
            if run.is_last:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                batches += 1
            if args.stop and batches == args.stop:
                run.save()


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds")
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--stop", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=0.0, help="sleep behind every piece")
    parser.add_argument("--store", default="", help="rendezvous file of the process group")
    return parser.parse_args(words)


def main() -> int:
    args = parse(sys.argv[1:])
    rank = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID", "0"))
    world = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{args.store}", rank=rank, world_size=world
        )
    with open(f"{args.out}.{rank}", "a", buffering=1) as out:

        def note(line: str) -> None:
            out.write(line + "\n")
            time.sleep(args.step_ms / 1000)

        for kind in args.kinds.split(","):
            train(kind, note, world, args=args)
    if world > 1:
        leave_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
