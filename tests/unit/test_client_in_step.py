"""Pauses within a step: real modules of torch on the CPU, a clock of our own, and one real process."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gandiva_slurm.client import in_step, sharing
from gandiva_slurm.client.rank import Rank
from gandiva_slurm.client.sharing import FULL, PART_NS, Share
from gandiva_slurm.wire import page
from tests.park_harness import Harness
from tests.slow import slow

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "gandiva_slurm" / "client" / "hook"
MS = 1_000_000


@pytest.fixture
def words():
    made = memoryview(bytearray(page.PAGE_BYTES)).cast("Q")
    made[page.W_AT] = page.NEVER
    return made


@pytest.fixture
def share(words, monkeypatch):
    """A share whose clock moves by sleeping and by hand alone; `slept` has each pause, ms."""
    made = Share(words)
    made.now_ns, made.slept = 10**9, []
    monkeypatch.setattr(sharing, "monotonic_ns", lambda: made.now_ns)

    def sleep(seconds):
        made.slept.append(round(seconds * 1e3, 2))
        made.now_ns += round(seconds * 1e9)

    monkeypatch.setattr(sharing, "sleep", sleep)
    yield made
    made._layers.leave()
    assert not nn.modules.module._global_forward_hooks


def ask(share, duty):
    share.words[page.W_BEAT] = share.now_ns + 10**12
    share.words[page.W_THROTTLE] = duty
    share.heed()
    share.slept.clear()


class Timed(nn.Module):
    """A layer that moves the share's clock on, forward and backward."""

    def __init__(self, share, ns):
        super().__init__()
        self.share, self.ns = share, ns

    def forward(self, x):
        self.share.now_ns += self.ns
        return x * 1


def test_a_long_step_pauses_after_its_layers(share):
    ask(share, 50)
    model = nn.Sequential(*[Timed(share, 3 * MS) for _ in range(4)])
    model(torch.ones(1, requires_grad=True)).sum().backward()
    assert sum(share.slept) == pytest.approx(12, abs=0.1), "as long as it ran"
    share.slept.clear()
    share.heed()
    assert not share.slept, "all of the step has been paused for"


def test_layers_are_taken_together_until_they_took_long_enough(share):
    ask(share, 25)
    nn.Sequential(*[Timed(share, PART_NS // 4) for _ in range(8)])(torch.ones(1))
    assert sum(share.slept) == pytest.approx(12, abs=0.1), "three times what it ran"
    assert share.now_ns == 10**9 + 8 * PART_NS // 4 + 6 * PART_NS


def test_a_backward_pauses_between_its_layers(share):
    ask(share, 50)

    class Back(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, grad):
            share.now_ns += 4 * MS
            return grad

    class Layer(nn.Module):
        def forward(self, x):
            return Back.apply(x)

    loss = nn.Sequential(*[Layer() for _ in range(5)])(torch.ones(1, requires_grad=True)).sum()
    assert not share.slept
    loss.backward()
    assert len(share.slept) >= 4 and sum(share.slept) == pytest.approx(16, abs=0.1), "the last ends the step"


@pytest.mark.parametrize("word", ["park", "full", "alone"])
def test_what_the_node_says_next_holds_within_the_step(share, word):
    ask(share, 5)
    model = nn.Sequential(Timed(share, 3 * MS), Timed(share, 3 * MS))
    if word == "park":
        share.words[page.W_AT] = 7
    else:
        share.words[page.W_THROTTLE] = FULL if word == "full" else 0
    model(torch.ones(1))
    assert not share.slept
    share.heed()
    assert bool(nn.modules.module._global_forward_hooks) is (word == "park")


def test_another_thread_is_not_paused(share):
    ask(share, 50)
    model = nn.Sequential(Timed(share, 3 * MS), Timed(share, 3 * MS))
    other = threading.Thread(target=model, args=(torch.ones(1),))
    other.start()
    other.join()
    assert not share.slept


def test_a_forked_child_and_a_rank_that_broke_are_not_paused(share):
    for end in (Rank.disarm, lambda rank: rank._retire(RuntimeError("ours"))):
        rank = Rank("")
        rank.owner, rank.share = 1, share
        ask(share, 50)
        assert nn.modules.module._global_forward_hooks
        end(rank)
        assert not nn.modules.module._global_forward_hooks


def test_what_was_compiled_is_left_alone(share, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters={"frames": {"ok": 1}}))
    ask(share, 50)
    assert not nn.modules.module._global_forward_hooks


def test_a_device_that_cannot_be_waited_for_is_told_of_once(share, monkeypatch, capsys):
    ask(share, 50)
    monkeypatch.setattr(sharing.accelerator, "in_use", lambda: SimpleNamespace(current_stream=None))
    monkeypatch.setattr(in_step, "is_fit_to_park", lambda: True)
    nn.Sequential(*[Timed(share, 3 * MS) for _ in range(3)])(torch.ones(1))
    assert capsys.readouterr().err.count("it pauses between its steps only") == 1


def test_an_error_of_the_scripts_own_signal_handler_gets_out(share, monkeypatch):
    ask(share, 50)
    monkeypatch.setattr(sharing, "is_from_signal_handler", lambda err: True)
    monkeypatch.setattr(sharing, "sleep", lambda seconds: (_ for _ in ()).throw(RuntimeError("the user's")))
    with pytest.raises(RuntimeError, match="the user's"):
        nn.Sequential(Timed(share, 3 * MS))(torch.ones(1))


class Net(nn.Module):
    """In-place layers, one used twice, one that returns a tuple, one computed anew in backward."""

    def __init__(self):
        super().__init__()
        begin = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.first = nn.Sequential(*begin)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.cell = nn.LSTM(4, 8, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        x = checkpoint(self.twice, nn.functional.relu(self.twice(x), inplace=True), use_reentrant=False)
        x, _ = self.cell(x.flatten(2).transpose(1, 2))
        return self.last(x[:, -1].clone())


def losses(share=None):
    torch.manual_seed(5)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(6):
        if share is not None:
            share.now_ns += 1
            share.words[page.W_THROTTLE] = 50
            share.heed()
        optimizer.zero_grad()
        out = model(torch.randn(4, 1, 8, 8))
        loss = nn.functional.cross_entropy(out, torch.randint(3, (4,)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item().hex())
    return found + [value.double().sum().item().hex() for value in model.state_dict().values()]


def test_losses_and_weights_keep_their_bits(share, monkeypatch):
    alone = losses()
    steps = iter(range(10**9))
    monkeypatch.setattr(sharing, "monotonic_ns", lambda: share.now_ns + next(steps) * MS)
    share.words[page.W_BEAT] = 10**18
    assert losses(share) == alone
    assert len(share.slept) > 50, "after each layer, and before its backward"


def run(tmp_path, name, **env):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GANDIVA", "SLURM"))}
    kept |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HOOK}:{ROOT}"}
    argv = [sys.executable, "-m", "tests.throttled_train", "--out", str(tmp_path / name)]
    return subprocess.Popen(argv, env=kept | env, cwd=ROOT)


@slow("two imports of torch, and steps of a second")
def test_a_park_in_the_midst_of_a_throttled_step_is_at_its_boundary_and_in_time(tmp_path):
    """At a duty of 2 % a step takes 50 times what it takes alone; the park takes no longer than alone."""
    alone = run(tmp_path, "alone")
    node = Harness(str(tmp_path / "node"), 1)
    rank = run(tmp_path, "shared", GANDIVA_SOCKET=str(tmp_path / "node"), GANDIVA_TIER="hold")
    try:
        node.serve(boundaries=3)
        (peer,) = node.peers.values()
        stamps = sorted(filter(None, peer.page.stamps()))
        step_s = (stamps[-1] - stamps[-2]) / 1e9
        peer.page.write([(page.W_THROTTLE, 2)])
        seq = node.views()[0][page.W_SEQ]
        node.wait(lambda: node.views()[0][page.W_SEQ] > seq, "a boundary with a duty")
        throttled, began = node.views()[0], time.monotonic()
        node.wait(lambda: time.monotonic() - began > 1.5 * step_s, "a part of the throttled step")
        assert node.views()[0][page.W_SEQ] == throttled[page.W_SEQ], "the step is still under way"
        took_s = node.park()
        view = node.views()[0]
        assert node.gang.phase == "parked" and view[page.W_STATE_SEQ] == view[page.W_SEQ]
        assert took_s < 25 * step_s, "half of what the throttled step would take"
        peer.page.write([(page.W_THROTTLE, 0)])
        node.resume()
        assert rank.wait(60) == alone.wait(60) == 0
        assert json.loads((tmp_path / "shared").read_text()) == json.loads((tmp_path / "alone").read_text())
    finally:
        for one in (rank, alone):
            one.kill()
            one.wait()
        node.close()
