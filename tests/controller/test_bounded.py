"""A policy that does not answer in time is left; tests/unit/test_decider.py: what the engine makes of it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable

import pytest

from gandiva_slurm.controller.bounded import ask
from gandiva_slurm.engine.apply.decider import TooSlow
from gandiva_slurm.policy.learnt import Learnt
from gandiva_slurm.policy.port import Cluster, Plan, View

VIEW = View(0, Cluster([("v100", 1)]), {}, Learnt())
LIMIT_S = 0.2
#: Longer than any answer of a policy that does nothing.
LONG_S = 60.0


class Thinks:
    """A policy that does as it is told before it answers."""

    name = "thinks"

    def __init__(self, how: Callable[[], None]) -> None:
        self._how = how

    def decide(self, view: View) -> Plan:
        self._how()
        return Plan({1: (0,)})


def sleeps() -> None:
    time.sleep(60)


def loops() -> None:
    while True:
        pass


def takes_all_for_its_own() -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(60)


@pytest.mark.parametrize("how", [sleeps, loops, takes_all_for_its_own])
def test_one_that_takes_long_is_left(how: Callable[[], None]) -> None:
    handler, began_s = signal.getsignal(signal.SIGVTALRM), time.monotonic()
    with pytest.raises(TooSlow, match=r"took more than 0.2 s"):
        ask(Thinks(how), VIEW, LIMIT_S)
    assert LIMIT_S <= time.monotonic() - began_s < 30
    assert signal.getsignal(signal.SIGVTALRM) == handler


def test_one_that_answers_is_passed_on_and_nothing_is_left_behind() -> None:
    policy, before = Thinks(lambda: None), threading.active_count()
    for _ in range(200):
        assert ask(policy, VIEW, LONG_S).runs == {1: (0,)}
    assert threading.active_count() == before


def test_what_a_policy_raises_is_its_own() -> None:
    def fails() -> None:
        raise ValueError("no idea")

    with pytest.raises(ValueError, match="no idea"):
        ask(Thinks(fails), VIEW, LONG_S)
