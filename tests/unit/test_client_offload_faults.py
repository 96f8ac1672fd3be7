"""What keeps the tier `torch` from moving memory, and what it leaves behind when something fails: nothing."""

import os
import queue
import signal
import threading
import time

import pytest
import torch

from gandiva_slurm.client import host, notice, offload, tiers
from gandiva_slurm.client.tiers import BestTier
from gandiva_slurm.wire.page import TIER_HOLD, TIER_TORCH
from tests import attach_recipes as recipes

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(notice, "_said", set())
    monkeypatch.setattr(offload, "AGAIN_S", 0.001)
    monkeypatch.setenv("GANDIVA_TIER", "torch-cpu")
    monkeypatch.delenv("RANK", raising=False)


class Training:
    """A model, its optimizer, and the tier that knows of both."""

    def __init__(self):
        self.model = recipes.net()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        seen = {1: lambda: self.model, 2: lambda: self.optimizer}
        self.tier = BestTier(seen)
        self.train()

    def train(self):
        self.model(torch.randn(2, recipes.WIDTH)).sum().backward()
        self.optimizer.step()

    def is_out(self):
        return self.model[0].weight.untyped_storage().nbytes() == 0

    def weights(self):
        return [value.tolist() for value in self.model.parameters()]


def park_and_go_on(training):
    """A park that moves all, and brings it back."""
    before = training.weights()
    done = training.tier.release()
    assert training.tier.number == TIER_TORCH and done.why == "" and training.is_out()
    # What was freed still holds the old bytes: others take it, and write into it.
    taken = [torch.full_like(each, 7.0) for each in [*training.model.parameters()] * 4]
    training.tier.restore()
    del taken
    assert training.weights() == before
    training.train()


def assert_held(training, why):
    """A park that holds, and says why."""
    before = training.weights()
    done = training.tier.release()
    assert training.tier.number == TIER_HOLD and done.released == 0 and done.held > 0
    assert why in done.why and not training.is_out()
    training.tier.restore()
    assert training.weights() == before
    training.train()


def test_process_without_cuda_holds_as_ever(monkeypatch):
    training = Training()
    for wish in ("", "auto", "hold", "nonsense"):
        monkeypatch.setenv("GANDIVA_TIER", wish)
        assert training.tier.release() == tiers.Released(0, 0)
        assert training.tier.number == TIER_HOLD and not training.is_out()


def test_unknown_wish_is_told(monkeypatch, capsys):
    monkeypatch.setenv("GANDIVA_TIER", "nonsense")
    assert not tiers.wants_to_move()
    assert "GANDIVA_TIER is 'nonsense'" in capsys.readouterr().err


def test_shared_parameters_are_refused_by_name(capsys):
    training = Training()
    training.model[0].bias.data = training.model[0].bias.data.clone().share_memory_()
    assert_held(training, "are shared with other processes")
    assert_held(training, "are shared with other processes")
    assert capsys.readouterr().err.count("stays on the GPU while it is parked") == 1, "said once"


def test_memory_of_numpy_is_refused_by_name():
    training = Training()
    bias = training.model[0].bias
    bias.data = torch.from_numpy(bias.detach().numpy().copy())
    assert_held(training, "memory that is not torch's own")
    bias.data = bias.data.clone()
    park_and_go_on(training)


def test_foreign_thread_inside_torch_is_refused_until_it_is_gone():
    training, orders, stands = Training(), queue.Queue(), threading.Event()

    def inside(module, args):
        stands.set()
        orders.get(timeout=30)

    guest = torch.nn.Linear(2, 2)
    guest.register_forward_pre_hook(inside)
    thread = threading.Thread(target=guest, args=(torch.ones(2),), name="evaluation")
    thread.start()
    try:
        assert stands.wait(30)
        assert_held(training, "another thread is inside torch: evaluation in torch.nn.modules.module")
    finally:
        orders.put(None)
        thread.join(30)
    park_and_go_on(training)


def test_too_little_host_memory_is_refused(monkeypatch):
    training = Training()
    park_and_go_on(training)
    monkeypatch.setattr(host, "free_bytes", lambda: 0)
    park_and_go_on(training)  # its pinned memory is kept
    training.model.register_buffer("large", torch.zeros(2 << 20))
    assert_held(training, "MiB of host memory more, and 0 are free")


def test_copy_that_takes_too_long_leaves_all_as_it_was(monkeypatch):
    training = Training()
    park_and_go_on(training)
    monkeypatch.setattr(offload, "COPY_S", -1.0)
    assert_held(training, "copying it to the host took longer")
    monkeypatch.undo()
    monkeypatch.setenv("GANDIVA_TIER", "torch-cpu")
    park_and_go_on(training)


def fail(times, error):
    """A function that fails so often, then does nothing."""
    left = [error] * times

    def function(*args, **kwargs):
        if left:
            raise left.pop()

    return function


def test_failure_when_all_is_gone_is_undone():
    training = Training()
    park_and_go_on(training)
    mover = training.tier._movers["torch"]
    mover.device.empty_cache = fail(1, RuntimeError("driver gone"))
    assert_held(training, "RuntimeError: driver gone")
    park_and_go_on(training)


def test_what_fails_again_and_again_is_given_up():
    training = Training()
    park_and_go_on(training)
    training.tier._movers["torch"]._copy = fail(99, RuntimeError("no copy"))
    for _ in range(tiers.MOST_FAILURES):
        assert_held(training, "no copy")
    del training.tier._movers["torch"]._copy
    assert_held(training, "failed 3 times, and is not tried again")


def test_restore_that_finds_no_memory_stays_parked_and_is_tried_again():
    training = Training()
    before = training.weights()
    park_and_go_on(training)
    before = training.weights()
    training.tier.release()
    mover = training.tier._movers["torch"]
    mover.device.drain = fail(4, torch.OutOfMemoryError("CUDA out of memory"))
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            training.tier.restore()
        assert training.is_out(), "nothing of it lies on the device meanwhile"
    training.tier.restore_at_last()
    assert training.weights() == before


def test_signal_waits_for_the_memory_to_be_back():
    training, served = Training(), []
    before = training.weights()
    old = signal.signal(signal.SIGUSR1, lambda number, frame: served.append(training.weights()))
    try:
        training.tier.release()
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 10
        while not training.tier.is_called():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert served == []
        training.tier.restore_at_last()
        assert served == [before] and not training.tier.is_called()
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(served) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_childs_end_does_not_end_the_park():
    training, served = Training(), []
    old = signal.signal(signal.SIGCHLD, lambda number, frame: served.append(training.is_out()))
    try:
        training.tier.release()
        signal.raise_signal(signal.SIGCHLD)
        assert not training.tier.is_called() and served == []
        training.tier.restore()
        assert served == [False]
    finally:
        signal.signal(signal.SIGCHLD, old)


def test_interrupt_comes_out_when_the_memory_is_back():
    training = Training()
    before = training.weights()
    training.tier.release()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        training.tier.restore_at_last()
    assert training.weights() == before
    park_and_go_on(training)
