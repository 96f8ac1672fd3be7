"""Layers that arrive in the order they compute in: bits stay, and what is not there yet is waited for."""

import threading

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from gandiva_slurm.client import layered
from gandiva_slurm.client.device import CpuGauge
from gandiva_slurm.client.offload import Moved, TorchTier

pytestmark = pytest.mark.usefixtures("few_objects")

DEADLINE_S = 30
WIDTH = 8


class Training:
    """A model of some layers, seen as the hook sees it, whose memory arrives when the test says so."""

    def __init__(self, monkeypatch):
        monkeypatch.setenv("GANDIVA_LAYERED", "1")
        monkeypatch.setattr(layered, "GROUP_BYTES", 1)  # each layer is a group
        torch.manual_seed(3)
        layers = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)]
        self.model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.x = torch.randn(16, WIDTH)
        things = [self.model, *self.model, self.optimizer]
        self.tier = TorchTier(
            torch, CpuGauge(torch), {id(thing): lambda thing=thing: thing for thing in things}
        )
        self.log, self.split, self.gate = [], self.tier._split, threading.Event()
        self.gate.set()
        self.tier._split, self.copy = self.poison, self.tier._copy
        for number, layer in enumerate(self.model):
            layer.register_forward_hook(lambda *_, number=number: self.log.append(f"forward {number}"))

    def poison(self, moved):
        """What is to arrive later is no number until then; each group waits for the gate."""
        at_once, later = self.split(moved)
        for one in (one for group in later for one in group.moved):
            flat = torch.empty(0, dtype=torch.uint8).set_(one.storage, 0, (one.size,), (1,))
            flat.fill_(255)
        copy = self.copy

        def slow(moved, is_out, **deadline):
            if threading.current_thread() is not threading.main_thread():
                assert self.gate.wait(DEADLINE_S), "nobody let it go on"
                self.log.append("copy")
            copy(moved, is_out, **deadline)

        self.tier._copy = slow
        return at_once, later

    def step(self):
        self.optimizer.zero_grad()
        loss = (self.model(self.x) - self.x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def park(self):
        assert self.tier.release().released > 0
        self.tier.restore()


@pytest.fixture
def training(monkeypatch):
    made = Training(monkeypatch)
    yield made
    made.gate.set()
    made.tier._arrival.finish()


def test_parks_change_no_bit(training, monkeypatch):
    alone = Training(monkeypatch)
    want = [alone.step() for _ in range(8)]
    found = []
    for _ in range(8):
        found.append(training.step())
        training.park()
    training.tier._arrival.finish()
    assert found == want
    for mine, other in zip(training.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_first_layer_computes_while_the_last_is_on_its_way(training):
    training.step()
    training.tier.release()
    training.log.clear()
    training.gate.clear()
    last = training.model[4]
    last.register_forward_pre_hook(lambda *_: training.log.append("last"), prepend=True)
    copies, begin = [], training.tier.device.begin_copies

    def one_by_one(works):
        """Only the first group may come; the rest when the layer behind it has computed."""
        copies.extend(works)
        return begin([works[0], *[lambda work=work: (gone.wait(DEADLINE_S), work()) for work in works[1:]]])

    gone = threading.Event()
    training.model[0].register_forward_hook(lambda *_: gone.set())
    training.tier.device.begin_copies = one_by_one
    training.tier.restore()
    training.gate.set()
    training.step()
    assert len(copies) >= 4 and gone.is_set()
    assert training.log.index("copy") < training.log.index("forward 0")
    rest = training.log[training.log.index("forward 0") :]
    assert "copy" in rest, "nothing came while it computed"


def test_every_call_of_a_layer_waits_while_it_is_on_its_way(training):
    """On CUDA the second may be on another stream, which has not waited."""
    training.step()
    training.tier.release()
    training.gate.clear()
    training.tier.restore()
    waits = []
    training.tier.device.wait_for = waits.append
    training.model[0](training.x)
    training.model[0](training.x)
    assert len(waits) == 2 and waits[0] is waits[1] and not waits[0].is_set()


def whole(training):
    """True when nothing is on its way, and all numbers are numbers."""
    values = [*training.model.parameters(), *training.model.buffers()]
    state = [value for kept in training.optimizer.state.values() for value in kept.values()]
    return (
        not any(torch.isnan(value).any() for value in [*values, *state]) and not training.tier._arrival._hooks
    )


@pytest.mark.parametrize("how", ["eval", "no_grad", "step", "release", "at last"])
def test_whatever_may_read_elsewhere_waits_for_all(training, how):
    training.step()
    training.tier.release()
    training.gate.clear()
    training.tier.restore()
    assert not whole(training)
    threading.Timer(0.05, training.gate.set).start()
    if how == "eval":
        training.model.eval()(training.x)
    elif how == "no_grad":
        with torch.no_grad():
            training.model[0](training.x)
    elif how == "step":
        training.optimizer.step()
    elif how == "release":
        training.tier.release()
        training.tier.restore_at_last()
    else:
        training.tier.restore_at_last()
    assert whole(training)
    training.step()


def test_what_another_stream_has_is_there_before_the_script_goes_on(training):
    """That stream waits for no layer."""
    training.step()
    weight = training.model[4].weight
    mine, before = weight.untyped_storage()._cdata, weight.detach().clone()
    training.tier.device.stream_of = lambda storage: "side" if storage._cdata == mine else None
    training.tier.release()
    training.gate.clear()
    training.tier.restore()
    assert torch.equal(weight, before)
    assert not torch.equal(training.model[3].weight, training.model[3].weight.nan_to_num()), "on its way"
    training.gate.set()


def test_memory_on_its_way_is_nobody_elses_until_it_is_there(training):
    """As on CUDA: copies are queued, and by themselves keep nothing alive."""
    training.step()
    training.tier.release()
    marks = []

    def queue(works):
        for work in works:
            work()
            marks.append(threading.Event())
        return marks

    training.tier.device.begin_copies = queue
    training.tier.restore()
    weight = training.model[0].weight
    moment = StorageWeakRef(training.optimizer.state[weight]["exp_avg"].untyped_storage())
    training.optimizer.state.clear()
    is_kept = not moment.expired()
    for mark in marks:
        mark.set()
    training.tier._arrival.finish()
    assert is_kept and moment.expired()


def test_signals_wait_until_all_is_there(training):
    training.step()
    training.tier.release()
    training.gate.clear()
    training.tier.restore()
    assert training.tier._signals._kept
    training.gate.set()
    training.tier._arrival.finish()
    assert not training.tier._signals._kept and training.tier.host._slab == 0


def test_off_by_default_and_where_anything_was_compiled(training, monkeypatch):
    import torch._dynamo.utils as dynamo

    training.step()
    monkeypatch.setitem(dynamo.counters, "frames", {"ok": 1})
    training.park()
    assert whole(training)
    monkeypatch.setitem(dynamo.counters, "frames", {})
    assert layered.is_wanted()
    monkeypatch.delenv("GANDIVA_LAYERED")
    training.park()
    assert whole(training)


def test_layers_first_then_the_optimizer_in_groups(training, monkeypatch):
    training.step()
    modules, optimizer = list(training.model), training.optimizer
    weight, last = modules[0].weight.untyped_storage(), modules[4].weight.untyped_storage()
    moment = optimizer.state[modules[0].weight]["exp_avg"].untyped_storage()
    other = torch.zeros(3).untyped_storage()
    moved = [Moved(storage, storage.nbytes(), [], None) for storage in (other, moment, last, weight)]
    at_once, groups = layered.split(moved, [*modules, optimizer, object()], torch)
    assert [one.storage._cdata for one in at_once] == [other._cdata]
    assert [one.storage._cdata for group in groups for one in group.moved] == [
        storage._cdata for storage in (weight, last, moment)
    ]
    assert [group.modules for group in groups] == [{id(modules[0])}, {id(modules[4])}, {0}]
    gang = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(gang)
    gang.module = training.model
    mean = modules[1].running_mean.untyped_storage()
    at_once, _ = layered.split([*moved, Moved(mean, mean.nbytes(), [], None)], [gang, *modules], torch)
    assert mean._cdata in [one.storage._cdata for one in at_once], "they are sent before all layers"
    monkeypatch.setattr(layered, "GROUP_BYTES", 1 << 20)
    _, (group,) = layered.split(moved, [*modules, optimizer], torch)
    assert group.modules == {id(modules[0]), id(modules[4]), 0}
