"""In which order a job's GPUs are freed, and how `gandiva why` hears what is still on them."""

import pytest

from gandiva_slurm.node import tiers
from gandiva_slurm.node.tiers import CLIENT, DRIVER, FREEZE, RESIDUE, Facts
from gandiva_slurm.wire import page as wire
from tests.unit.test_node_leaving import Floor

MUCH = RESIDUE + 1
PARKS = Facts(is_parkable=True, has_ranks=True)
BLIND = Facts(is_parkable=False)


@pytest.mark.parametrize(
    ("facts", "want", "why"),
    [
        (PARKS, (CLIENT,), "moved their memory themselves"),
        (PARKS._replace(held=RESIDUE), (CLIENT,), "moved their memory themselves"),
        (PARKS._replace(held=MUCH), (CLIENT, DRIVER), ""),
        (PARKS._replace(held=MUCH, processes=2), (CLIENT,), "trains with 2 processes"),
        (PARKS._replace(held=MUCH, is_whole=False), (CLIENT,), "several nodes"),
        (PARKS._replace(held=MUCH, driver="no GPU"), (CLIENT,), "no GPU"),
        (PARKS._replace(held=MUCH, failed="it failed"), (CLIENT,), "it failed"),
        (BLIND, (DRIVER, FREEZE), ""),
        (BLIND._replace(processes=4), (FREEZE,), "trains with 4 processes"),
        (BLIND._replace(is_whole=False), (FREEZE,), "several nodes"),
        (BLIND._replace(driver="off"), (FREEZE,), "off"),
        (BLIND._replace(failed="lock timed out"), (FREEZE,), "lock timed out"),
        (BLIND._replace(has_ranks=True), (FREEZE,), "in the middle of a mini-batch"),
    ],
)
def test_order_of_tiers(facts, want, why):
    found = tiers.order(facts)
    assert found.tiers == want
    assert (DRIVER in found.left_out) == bool(why) and why in found.left_out.get(DRIVER, "")
    assert (CLIENT in found.left_out) == (not facts.is_parkable)


@pytest.fixture
def floor(tmp_path):
    made = Floor(tmp_path)
    yield made
    for resident in made.node.residents.values():
        for rank in resident.ranks:
            rank.page.close()


@pytest.mark.parametrize(
    ("tier", "held", "text", "want"),
    [
        (wire.TIER_HOLD, 5, wire.HELD_BECAUSE + "it has captured CUDA graphs", True),
        (wire.TIER_HOLD, 0, wire.HELD_BECAUSE + "it had captured CUDA graphs", False),
        (wire.TIER_TORCH, 5, wire.HELD_BECAUSE + "it was so once", False),
        (wire.TIER_HOLD, 5, "an error of another kind", False),
    ],
)
def test_why_hears_what_keeps_memory_on_the_gpu(floor, tier, held, text, want):
    job = floor.train(1)
    floor.train(2)
    job.ranks[0].page.write([(wire.W_HELD, held)])
    floor.next_quantum()
    floor.say(job, wire.PARKED, tier, error=text)
    told = floor.told(1)
    assert told.reason == "Parked" and (text in told.detail) == want
    assert tiers.held_bytes(job) == held
