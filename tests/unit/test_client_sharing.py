"""A rank that shares its GPU: what it tells, how it is bounded, how it is slowed down; CUDA is played."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from gandiva_slurm.client import sharing
from gandiva_slurm.client.rank import Rank
from gandiva_slurm.client.sharing import FULL, Share, tell_memory
from gandiva_slurm.wire import page

MIB = 1 << 20
TOTAL = 1000 * MIB


class Cuda:
    """One device in use of two; a fraction is what it was told last."""

    def __init__(self):
        self.allocated, self.peak, self.reserved, self.ooms = 100 * MIB, 300 * MIB, 800 * MIB, 0
        self.fractions, self.emptied, self.waited = {1: 1.0}, 0, 0

    def is_initialized(self):
        return True

    def device_count(self):
        return 2

    def memory_reserved(self, device):
        return (0, self.reserved)[device]

    def memory_allocated(self, device):
        return (0, self.allocated)[device]

    def max_memory_allocated(self, device):
        return (0, self.peak)[device]

    def memory_stats(self, device):
        return {"num_ooms": self.ooms}

    def get_device_properties(self, device):
        return SimpleNamespace(total_memory=TOTAL)

    def get_per_process_memory_fraction(self, device):
        return self.fractions[device]

    def set_per_process_memory_fraction(self, fraction, device):
        self.fractions[device] = fraction

    def empty_cache(self):
        self.emptied += 1
        self.reserved = self.allocated

    def synchronize(self, device):
        self.waited += 1


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))
    return made


@pytest.fixture(autouse=True)
def no_layers(monkeypatch):
    """Pauses within a step are test_client_in_step.py's."""
    monkeypatch.setattr(sharing.Layers, "watch", lambda self: None)


@pytest.fixture
def words():
    made = memoryview(bytearray(page.PAGE_BYTES)).cast("Q")
    made[page.W_AT] = page.NEVER
    made[page.W_BEAT] = time.monotonic_ns()
    return made


def ask(words, duty, cap=0):
    words[page.W_MEM_CAP], words[page.W_THROTTLE] = cap, duty


def test_memory_is_told(cuda, words):
    cuda.ooms = 2
    tell_memory(words)
    assert (words[page.W_LIVE], words[page.W_PEAK], words[page.W_OOMS]) == (100 * MIB, 300 * MIB, 2)


def test_a_rank_without_cuda_tells_that_it_takes_nothing(monkeypatch, words):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    tell_memory(words)
    assert (words[page.W_LIVE], words[page.W_PEAK]) == (0, 1)


def test_a_cap_holds_while_the_gpu_is_shared_and_no_longer(cuda, words):
    share = Share(words)
    ask(words, FULL, 500 * MIB)
    assert share.heed() == page.NEVER, "it must be called again, to see the end of it"
    assert cuda.fractions == {1: 0.5}
    assert cuda.emptied == 1, "what it had cached beyond is given back at once"
    share.heed()
    assert cuda.emptied == 1
    ask(words, FULL, 600 * MIB)
    share.heed()
    assert cuda.fractions == {1: 0.6}
    ask(words, 0, 600 * MIB)
    assert share.heed() == 0
    assert cuda.fractions == {1: 1.0}


def test_a_cap_waits_for_the_device_to_be_used(cuda, words):
    cuda.reserved = 0
    share = Share(words)
    ask(words, FULL, 500 * MIB)
    share.heed()
    assert cuda.fractions == {1: 1.0}
    cuda.reserved = 400 * MIB
    share.heed()
    assert cuda.fractions == {1: 0.5}


def test_a_cap_is_never_below_what_was_needed_so_far(cuda, words):
    ask(words, FULL, 200 * MIB)
    Share(words).heed()
    assert cuda.fractions == {1: 0.3}


def test_a_bound_of_the_scripts_own_stays_the_tighter_and_comes_back(cuda, words):
    cuda.fractions[1] = 0.4
    share = Share(words)
    ask(words, FULL, 500 * MIB)
    share.heed()
    assert cuda.fractions == {1: 0.4}
    ask(words, FULL, 350 * MIB)
    share.heed()
    assert cuda.fractions == {1: 0.35}
    ask(words, 0)
    share.heed()
    assert cuda.fractions == {1: 0.4}


def test_a_device_that_cannot_be_bounded_is_told_of_once_and_trains_on(cuda, words, monkeypatch, capsys):
    monkeypatch.setattr(cuda, "set_per_process_memory_fraction", None)
    share = Share(words)
    ask(words, FULL, 500 * MIB)
    for _ in range(3):
        assert share.heed() == page.NEVER
    assert capsys.readouterr().err.count("cannot be bounded") == 1


class Hand:
    """A clock that sleeping moves on, a little further than it was asked to."""

    def __init__(self, monkeypatch):
        self.now_ns = 10**9
        monkeypatch.setattr(sharing, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(sharing, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now_ns += round(seconds * 1e9) + 50_000

    def duty(self, share, steps, step_ns):
        """Pass boundaries after steps of a length; return the part of the time that the steps took."""
        share.heed()
        began_ns = self.now_ns
        for _ in range(steps):
            self.now_ns += step_ns
            share.words[page.W_BEAT] = self.now_ns
            share.heed()
        return steps * step_ns / (self.now_ns - began_ns)


@pytest.mark.parametrize("step_ns", [400_000, 30_000_000])
@pytest.mark.parametrize("duty", [5, 25, 50, 90])
def test_a_throttled_rank_takes_its_part_of_the_time(cuda, words, monkeypatch, duty, step_ns):
    ask(words, duty)
    assert Hand(monkeypatch).duty(Share(words), 50, step_ns) == pytest.approx(duty / 100, abs=0.03)
    assert cuda.waited, "the step is waited for before it is measured"


def test_a_rank_at_full_duty_does_not_wait(cuda, words, monkeypatch):
    ask(words, FULL)
    assert Hand(monkeypatch).duty(Share(words), 50, 400_000) == 1.0
    assert not cuda.waited


@pytest.mark.parametrize("before", [0, FULL])
def test_time_at_full_speed_is_no_step_to_pause_for(cuda, words, monkeypatch, before):
    """Alone it was not asked to look for hours; at full duty, many steps may be queued."""
    clock, share = Hand(monkeypatch), Share(words)
    for duty in (50, before):
        ask(words, duty)
        share.heed()
    clock.now_ns += 10**12
    words[page.W_BEAT] = began_ns = clock.now_ns
    ask(words, 50)
    share.heed()
    assert clock.now_ns == began_ns


@pytest.mark.parametrize("change", ["park", "free", "silence"])
def test_a_pause_ends_when_it_must(cuda, words, change):
    share = Share(words)
    ask(words, 1)
    share.heed()
    share._since_ns -= 10**9  # a step of a second: a pause of 99
    words[page.W_BEAT] = time.monotonic_ns() + 60 * 10**9  # the node's silence does not end it meanwhile
    waiter = threading.Thread(target=share.heed, daemon=True)
    waiter.start()
    time.sleep(0.02)
    assert waiter.is_alive()
    if change == "park":
        words[page.W_AT] = 0
    elif change == "free":
        words[page.W_THROTTLE] = 0
    else:
        words[page.W_BEAT] = time.monotonic_ns() - sharing.SILENT_NS - 1
    waiter.join(5)
    assert not waiter.is_alive()


def test_a_park_is_no_step(cuda, words):
    share = Share(words)
    ask(words, 1)
    share.heed()
    share._since_ns -= 10**12
    share.rest()
    started = time.monotonic()
    share.heed()
    assert time.monotonic() - started < 1


def test_a_rank_looks_once_it_is_asked_and_again_until_all_is_undone(cuda):
    rank = Rank("")
    rank.boundary()
    rank.words[page.W_AT] = page.NEVER
    rank.share = Share(rank.words)
    ask(rank.words, FULL, 500 * MIB)
    rank.boundary()
    assert cuda.fractions == {1: 0.5}
    ask(rank.words, 0)
    rank.boundary()
    assert cuda.fractions == {1: 1.0}
    assert rank.calm == 0
    rank.share = None  # not looked at any more
    rank.boundary()


def test_the_last_word_has_the_peak(cuda):
    rank = Rank("")
    rank.boundary()
    rank.stop = SimpleNamespace(waited_ns=0, parks=0)
    rank.finish()
    assert rank.words[page.W_PEAK] == 300 * MIB
    assert rank.words[page.W_STATE] == page.DONE
