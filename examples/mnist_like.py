"""A training that can be moved: small pictures of ten kinds, a convolutional net, two loader workers.

    python examples/mnist_like.py

Under Gandiva it saves itself when it is to be moved, and goes on elsewhere to the last bit. To see that
without a cluster, give it a place for checkpoints, stop it (Ctrl-C) after an epoch or two, start it again:

    GANDIVA_CHECKPOINT_DIR=checkpoints python examples/mnist_like.py
"""

import argparse

import torch
from torch import nn

import gandiva_slurm as gandiva

PICTURES, SIDE, KINDS = 2048, 16, 10


class Pictures(torch.utils.data.Dataset):
    """Ten patterns, each picture with noise of its own, drawn anew whenever it is read."""

    def __init__(self):
        self.patterns = torch.rand(KINDS, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return PICTURES

    def __getitem__(self, index):
        kind = index % KINDS
        return self.patterns[kind] + 0.3 * torch.randn(1, SIDE, SIDE), kind


def net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * (SIDE // 4) ** 2, KINDS),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    loader = torch.utils.data.DataLoader(Pictures(), batch_size=64, shuffle=True, num_workers=args.workers)

    run = gandiva.attach(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for epoch in run.epochs(args.epochs):
        right = 0
        for pictures, kinds in run.steps(loader):
            pictures, kinds = pictures.to(device), kinds.to(device)
            scores = model(pictures)
            loss = nn.functional.cross_entropy(scores, kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = (scores.argmax(1) == kinds).sum().item()
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.6f}, right in the last mini-batch: {right}", flush=True)
        run.save()  # a checkpoint each epoch besides, where there is a place for it; moving needs none


if __name__ == "__main__":
    main()
