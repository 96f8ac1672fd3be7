"""What a boundary costs the script when nobody asks it to stop: at most half a microsecond (contract).

Rounds are short and the best one counts. Where even an empty call takes longer than on the machine the limits
were tried on, because others use its cores, the limits are that much wider: a ratio within one run.
"""

import time

import pytest

from gandiva_slurm.client import optimizers, rank
from gandiva_slurm.client.loop import StepsIterator, step
from gandiva_slurm.client.rank import Rank
from gandiva_slurm.client.run import Run
from gandiva_slurm.client.stop import Stop
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.pages import Page
from gandiva_slurm.wire.page import PAGE_BYTES, W_SEQ
from tests.park_harness import map_words

CALLS, ROUNDS = 2_000, 200
#: An empty call, measured where boundary, step, steps and hook took 190, 280, 270 and 430 ns.
EMPTY_CALL_NS = 26
LIMIT_NS = 500
#: The hook is two calls by torch around every Optimizer.step, which itself takes 15 us at the least.
HOOK_LIMIT_NS = 1_000


@pytest.fixture
def joined(monkeypatch):
    """A rank on a real shared page."""
    page = Page.make(JobKey(1, 0), 0, 1, 0)
    mine = Rank("")
    mine.words = map_words(page.fd, PAGE_BYTES)
    mine.stop = Stop(mine.words, 0)
    monkeypatch.setattr(rank, "_rank", mine)
    yield mine
    assert page.read()[W_SEQ] == mine.seq >= CALLS, "the boundaries did not reach the page"
    page.close()


def best_ns(function):
    """Time many short rounds and return the best round's nanoseconds for one call."""
    calls, best = range(CALLS), float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in calls:
            function()
        best = min(best, time.perf_counter_ns() - start)
    return best / CALLS


def measure(benchmark, function, limit_ns=LIMIT_NS):
    """Benchmark a boundary and hold it to its limit."""
    benchmark.pedantic(function, rounds=1, iterations=CALLS)
    slowness = max(1.0, best_ns(lambda: None) / EMPTY_CALL_NS)
    cost_ns = best_ns(function)
    benchmark.extra_info.update(ns_per_boundary=round(cost_ns), machine_slowness=round(slowness, 2))
    assert cost_ns <= limit_ns * slowness


def test_boundary(benchmark, joined):
    measure(benchmark, joined.boundary)


def test_step(benchmark, joined):
    measure(benchmark, step)


def test_steps(benchmark, joined):
    endless = StepsIterator(iter(int, 1), joined.boundary)
    measure(benchmark, endless.__next__)


def test_attached_steps(benchmark, joined):
    training = Run([], [])
    training.go_under(joined, None)
    measure(benchmark, iter(training.steps(iter(int, 1))).__next__)


def test_hook(benchmark, joined):
    class Optimizer:
        pass

    watch, optimizer, kwargs = optimizers.StepWatch(joined, lambda: -1), Optimizer(), {}

    def hooks():
        watch.before(optimizer, (), kwargs)
        watch.after(optimizer, (), kwargs)

    measure(benchmark, hooks, HOOK_LIMIT_NS)
