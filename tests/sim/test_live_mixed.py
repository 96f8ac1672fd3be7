"""The live daemons' engine on 36 GPUs of three types: how far moves, exchanges and packs carry it."""

import pytest

from gandiva_slurm.sim import live
from tests.sim.mixed import W1, W1C, mean_jct_s, rho_of_users, run, settings
from tests.slow import slow

pytestmark = slow("27 s each; test_live and test_live_packing run the same engine on smaller workloads")

# Without exchanges, and without tries of types nobody was measured on: 20,800 s and 45,400 s.


def test_fast_types_go_to_whom_they_help() -> None:
    outcome, _ = run(W1, live.make, settings(60, 1, 8))
    assert mean_jct_s(outcome) <= 19_500
    assert max(rho_of_users(outcome).values()) <= 0.9


def test_shares_hold_while_places_are_exchanged() -> None:
    outcome, watched = run(W1C, live.make, settings(60, 1, 8))
    assert mean_jct_s(outcome) <= 38_500, "packed jobs kept apart: 38,800"
    for until_s in (6_000, 18_000, 30_000):
        shares = watched.shares_until(until_s)
        assert shares == pytest.approx(dict.fromkeys(shares, 0.25), abs=0.02)
