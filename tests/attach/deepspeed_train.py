"""One rank of a training by DeepSpeed, on the CPU: STAGE OUT STORE STEPS STEP_S; a loss a line."""

import os
import sys
import time

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch

stage, out, store, steps, step_s = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
torch.manual_seed(1)
method = f"file://{store}"
deepspeed.init_distributed("gloo", auto_mpi_discovery=False, init_method=method, rank=rank, world_size=world)
layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 4)]
model = torch.nn.Sequential(*layers)
config = {
    "train_micro_batch_size_per_gpu": 8,
    "zero_optimization": {"stage": int(stage)},
    "bf16": {"enabled": True},
    "steps_per_print": 10**9,
}
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
torch.manual_seed(100 + rank)
with open(f"{out}.{rank}", "a", buffering=1) as losses:
    for _ in range(int(steps)):
        x, y = torch.randn(8, 64).bfloat16(), torch.randint(4, (8,))
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        losses.write(loss.item().hex() + "\n")
        time.sleep(float(step_s))
os._exit(0)  # gloo's threads may outlive the interpreter
