"""An elastic training under srun, with DistributedDataParallel on several ranks: OUT EPOCHS S.

Appends to OUT.RANK a line a piece, "epoch world loss samples", the loss times its share; in the end "end".
When OUT.stop is there it ends behind its epoch.
"""

import os
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gandiva_slurm as gandiva

SAMPLES, GLOBAL_BATCH, WIDTH, CLASSES = 30, 8, 5, 3
out, epochs, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rank, world = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))


class Numbered(torch.utils.data.Dataset):
    """Samples that are functions of their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return index, torch.rand(WIDTH, generator=generator), index % CLASSES


torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, CLASSES))
if world > 1:
    store = f"file://{out}.store.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sampler = gandiva.ElasticSampler(Numbered(), GLOBAL_BATCH, max_per_rank=4, seed=3)
loader = torch.utils.data.DataLoader(Numbered(), batch_sampler=sampler)
run = gandiva.attach(model=model, optimizer=optimizer, loader=loader)
with open(f"{out}.{rank}", "a", buffering=1) as lines:
    for epoch in run.epochs(epochs):
        if os.path.exists(f"{out}.stop"):
            break
        sampler.set_epoch(epoch)
        for index, x, y in run.steps(loader):
            time.sleep(pause_s)
            with nullcontext() if run.is_last or world == 1 else model.no_sync():
                loss = cross_entropy(model(x), y) * run.share
                loss.backward()
            seen = ",".join(map(str, index.tolist())) if run.share else "-"
            lines.write(f"{epoch} {world} {loss.item()!r} {seen}\n")
            if run.is_last:
                optimizer.step()
                optimizer.zero_grad()
    lines.write("end\n")
