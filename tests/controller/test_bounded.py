"""A policy that does not answer in time is left, said so, and begins anew."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable

import pytest

from gandiva_slurm.controller.bounded import REST_S, Bounded, TooSlow
from gandiva_slurm.policy.learnt import Learnt
from gandiva_slurm.policy.port import Cluster, Plan, View

VIEW = View(0, Cluster([("v100", 1)]), {}, Learnt())
LIMIT_S = 0.2


class Thinks:
    """A policy that does as it is told before it answers; `made` counts them."""

    name, fits_memory = "thinks", True
    made = 0

    def __init__(self, how: Callable[[], None]) -> None:
        Thinks.made += 1
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
def test_one_that_takes_long_is_left_and_begins_anew_after_a_rest(how: Callable[[], None]) -> None:
    now_s, before, handler = [100.0], Thinks.made, signal.getsignal(signal.SIGVTALRM)
    policy = Bounded(lambda: Thinks(how), LIMIT_S, lambda: now_s[0])
    with pytest.raises(TooSlow, match=r"took more than 0.2 s; it begins anew 60 s after that"):
        policy.decide(VIEW)
    assert Thinks.made == before + 2
    assert signal.getsignal(signal.SIGVTALRM) == handler
    began_s = time.monotonic()
    with pytest.raises(TooSlow, match="begins anew"):
        policy.decide(VIEW)
    assert time.monotonic() - began_s < LIMIT_S, "meanwhile it costs nothing"
    now_s[0] += REST_S
    with pytest.raises(TooSlow, match="begins anew"):
        policy.decide(VIEW)


def test_one_that_answers_is_passed_on_and_nothing_is_left_behind() -> None:
    policy = Bounded(lambda: Thinks(lambda: None), LIMIT_S)
    assert (policy.name, policy.fits_memory) == ("thinks", True)
    for _ in range(200):
        assert policy.decide(VIEW).runs == {1: (0,)}
    assert not [
        thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)
    ]


def test_what_a_policy_raises_is_its_own() -> None:
    def fails() -> None:
        raise ValueError("no idea")

    with pytest.raises(ValueError, match="no idea"):
        Bounded(lambda: Thinks(fails), LIMIT_S).decide(VIEW)


def test_one_that_cannot_be_made_again_rests_all_the_same() -> None:
    made: list[Thinks] = []

    def make() -> Thinks:
        if made:
            raise ValueError("not again")
        made.append(Thinks(sleeps))
        return made[0]

    policy = Bounded(make, LIMIT_S, lambda: 100.0)
    with pytest.raises(ValueError, match="not again"):
        policy.decide(VIEW)
    with pytest.raises(TooSlow):
        policy.decide(VIEW)
