"""The smallest change: one line, and Gandiva knows where a mini-batch ends. Runs anywhere, in seconds.

    python examples/plain_loop.py

On a cluster with Gandiva: `sbatch --gandiva --gres=gpu:1 --wrap "python examples/plain_loop.py"`. There the
job takes turns with others on its GPU.
"""

import torch

import gandiva_slurm as gandiva

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.rand(4096, 8)
y = (x * torch.arange(8.0)).sum(1, keepdim=True)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True)

model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(5):
    for inputs, targets in gandiva.steps(loader):  # the one line; without Gandiva it is `loader`
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.6f}", flush=True)
