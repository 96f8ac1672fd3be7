"""When the driver moves a job's memory, and how `gandiva why` hears what is still on its GPUs."""

import pytest

from gandiva_slurm.node import tiers
from gandiva_slurm.node.tiers import RESIDUE, Facts
from gandiva_slurm.wire import page as wire
from tests.unit.test_node_leaving import floor  # noqa: F401

MUCH = RESIDUE + 1
PARKS = Facts(is_parkable=True, has_ranks=True)
BLIND = Facts(is_parkable=False)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (PARKS, "moved their memory themselves"),
        (PARKS._replace(held=RESIDUE), "moved their memory themselves"),
        (PARKS._replace(held=MUCH), ""),
        (PARKS._replace(held=MUCH, processes=2), "trains with 2 processes"),
        (PARKS._replace(held=MUCH, is_whole=False), "several nodes"),
        (PARKS._replace(held=MUCH, driver="no GPU"), "no GPU"),
        (PARKS._replace(held=MUCH, failed="it failed"), "it failed"),
        (BLIND, ""),
        (BLIND._replace(processes=4), "trains with 4 processes"),
        (BLIND._replace(is_whole=False), "several nodes"),
        (BLIND._replace(driver="off"), "off"),
        (BLIND._replace(failed="lock timed out"), "lock timed out"),
        (BLIND._replace(has_ranks=True), "in the middle of a mini-batch"),
    ],
)
def test_driver_moves_what_ranks_hold_and_what_has_no_ranks(facts, why):
    found = tiers.why_not_driver(facts)
    assert bool(found) == bool(why) and why in found


@pytest.mark.parametrize(
    ("tier", "held", "text", "want"),
    [
        (wire.TIER_HOLD, 5, wire.HELD_BECAUSE + "it has captured CUDA graphs", True),
        (wire.TIER_HOLD, 0, wire.HELD_BECAUSE + "it had captured CUDA graphs", False),
        (wire.TIER_TORCH, 5, wire.HELD_BECAUSE + "it was so once", False),
        (wire.TIER_HOLD, 5, "an error of another kind", False),
    ],
)
def test_why_hears_what_keeps_memory_on_the_gpu(floor, tier, held, text, want):  # noqa: F811
    job = floor.train(1)
    floor.train(2)
    job.ranks[0].page.write([(wire.W_HELD, held)])
    floor.next_quantum()
    floor.say(job, wire.PARKED, tier, error=text)
    told = floor.told(1)
    assert told.reason == "Parked" and (text in told.detail) == want
    assert tiers.held_bytes(job) == held
