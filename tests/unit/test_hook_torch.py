"""What counts as a boundary in real torch, with no change to the script. One process answers all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience

HOOK = Path(__file__).resolve().parents[2] / "gandiva_slurm" / "client" / "hook"
SCRIPT = """
import json, sys, threading
import torch
from gandiva_slurm.client.rank import this_rank

torch.manual_seed(0)
torch.set_num_threads(1)
rank, found = this_rank(), {}
SGD = torch.optim.SGD


def model():
    return torch.nn.Linear(4, 2)


def backward(net):
    net(torch.randn(3, 4)).sum().backward()


def counted(name):
    def run(function):
        seq, user = rank.seq, rank.user_steps
        function()
        found[name] = [rank.seq - seq, rank.user_steps - user]
    return run


@counted("plain")
def _():
    global first_net, first
    first_net = model()
    first = SGD(first_net.parameters(), lr=0.1)
    for _ in range(4):
        backward(first_net)
        first.step()


@counted("accumulate")
def _():
    for n in range(8):
        backward(first_net)
        if n % 4 == 3:
            first.step()


@counted("lbfgs")
def _():
    net = model()
    lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=5)

    def closure():
        lbfgs.zero_grad()
        loss = net(torch.ones(3, 4)).pow(2).sum()
        loss.backward()
        return loss

    for _ in range(3):
        lbfgs.step(closure)


class Sub(SGD):
    def step(self, closure=None):
        return super().step(closure)


class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)

    def step(self, closure=None):
        return self.inner.step(closure)


@counted("subclass")
def _():
    net = model()
    sub = Sub(net.parameters(), lr=0.1)
    for _ in range(3):
        backward(net)
        sub.step()


@counted("wrapper")
def _():
    net = model()
    wrapped = Wrapper(SGD(net.parameters(), lr=0.1))
    for _ in range(3):
        backward(net)
        wrapped.step()


@counted("scheduler")
def _():
    net = model()
    optimizer = SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        backward(net)
        optimizer.step()
        scheduler.step()


@counted("step that raised")
def _():
    net = model()
    optimizer = Sub(net.parameters(), lr=0.1)

    def closure():
        raise RuntimeError("CUDA out of memory")

    for _ in range(3):
        try:
            optimizer.step(closure)
        except RuntimeError:
            pass
    for _ in range(3):
        backward(net)
        optimizer.step()


@counted("inside backward")
def _():
    net = model()
    optimizers = {p: SGD([p], lr=0.1) for p in net.parameters()}
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    for _ in range(3):
        backward(net)


@counted("other thread")
def _():
    def work():
        net = model()
        optimizer = SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            backward(net)
            optimizer.step()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@counted("two optimizers")
def _():
    other = SGD(model().parameters(), lr=0.1)
    for _ in range(2):
        first.step()
        other.step()
        other.step()


@counted("compiled")
def _():
    net = model()
    optimizer = SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def train():
        optimizer.zero_grad()
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    for _ in range(4):
        train()


@counted("steps takes over")
def _():
    import gandiva_slurm as gandiva

    for _ in gandiva.steps(range(5)):
        backward(first_net)
        first.step()


print(json.dumps(found))
"""
#: Boundaries, and those of the first optimizer seen: the user's mini-batches.
WANT = {
    "plain": [4, 4],
    "accumulate": [2, 2],
    "lbfgs": [3, 0],
    "subclass": [3, 0],
    "wrapper": [3, 0],
    "scheduler": [3, 0],
    "step that raised": [3, 0],
    "inside backward": [0, 0],
    "other thread": [0, 0],
    "two optimizers": [6, 2],
    "compiled": [4, 0],
    "steps takes over": [5, 5],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    env = {
        **os.environ,
        "GANDIVA_SOCKET": str(tmp_path_factory.mktemp("hook") / "nobody.sock"),
        "PYTHONPATH": str(HOOK),
        "OMP_NUM_THREADS": "1",
    }
    limit_s = 200 * patience.slowness()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=limit_s
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", WANT)
def test_boundaries(found, case):
    assert found[case] == WANT[case]


def test_every_case_was_asked_for(found):
    assert set(found) == set(WANT)
