"""What a park says it holds, and that it gives back torch's cache where it can move nothing."""

import time

import pytest
import torch

from gandiva_slurm.client import device, host, offload, tiers
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.wire.page import TIER_HOLD, TIER_TORCH
from tests.device import card
from tests.device.conftest import CONTEXT, MIB

#: A tensor of 5 MiB keeps its whole segment.
SEGMENT = 20 * MIB


def begin():
    """Have one tensor in a segment of its own, and much that is cached only."""
    freed = [torch.empty(12 * MIB, dtype=torch.uint8, device="card") for _ in range(3)]
    kept = torch.ones(5 * MIB, dtype=torch.uint8, device="card")
    del freed
    return kept


def test_hold_gives_the_cache_back_and_tells_what_nobody_else_can_have(on_card, card_path):
    def check(cuda):
        kept = begin()
        reserved = cuda.memory_reserved(0)
        done = tiers.HoldTier().release()
        return [reserved, done, sum(card.used(card_path).values()), int(kept.sum())]

    reserved, done, used, total = on_card(check)
    assert reserved == SEGMENT + 36 * MIB and total == 5 * MIB
    released, held, peak, _ = done
    assert (released, held, used) == (0, SEGMENT, CONTEXT + SEGMENT) and peak == 41 * MIB


@pytest.mark.parametrize("why", ["host memory", "copy", "threads"])
def test_every_refusal_gives_the_cache_back(why, on_card, card_path, monkeypatch):
    def refuse(*_):
        raise Refused("another thread is inside torch")

    if why == "host memory":
        monkeypatch.setattr(host, "free_bytes", lambda: 0)
    elif why == "threads":
        monkeypatch.setattr(offload, "refuse_other_threads", refuse)

    def check(cuda):
        kept = begin()
        tier = tiers.BestTier({1: lambda: kept})
        if why == "copy":
            tier._mover("torch", 2.0)._copy_out = refuse
        done = tier.release()
        return [done, tier.number, sum(card.used(card_path).values())]

    (released, held, _, because), number, used = on_card(check)
    assert (number, released, held, used) == (TIER_HOLD, 0, SEGMENT, CONTEXT + SEGMENT) and because


def test_what_is_moved_leaves_a_context_alone(on_card, card_path):
    def check(cuda):
        kept = begin()
        tier = tiers.BestTier({1: lambda: {"kept": kept}})
        done = tier.release()
        used = sum(card.used(card_path).values())
        tier.restore()
        return [done, used, int(kept.sum())]

    (released, held, _, _), used, total = on_card(check)
    assert (released, held, used, total) == (5 * MIB, 0, CONTEXT, 5 * MIB)


def test_what_another_stream_has_goes_too_and_comes_back_as_that_streams(on_card, card_path):
    """FSDP2 allocates its gradients so; torch gives the block on, once freed, in that stream's order."""

    def check(cuda):
        side = cuda.Stream()
        with cuda.stream(side):
            theirs = torch.full((5 * MIB,), 3, dtype=torch.uint8, device="card")
        kept = begin()
        tier = tiers.BestTier({1: lambda: {"kept": kept, "theirs": theirs}})
        done = tier.release()
        used = sum(card.used(card_path).values())
        tier.restore()

        def stream_of(tensor):
            at = tensor.untyped_storage().data_ptr()
            found = [one for one in cuda.memory_snapshot() if 0 <= at - one["address"] < one["total_size"]]
            return found[0]["stream"]

        streams = [stream_of(kept) == 0, stream_of(theirs) == side.cuda_stream]
        return [done, used, int(kept.sum()), int(theirs.sum()), streams, side.cuda_stream]

    (released, held, _, _), used, *sums, streams, number = on_card(check)
    assert (released, held, used, sums) == (10 * MIB, 0, CONTEXT, [5 * MIB, 15 * MIB])
    assert streams == [True, True] and number


def test_work_that_is_queued_is_waited_for_as_long_as_asked(on_card):
    def check(cuda):
        kept = torch.ones(MIB, device="card")
        tier = offload.TorchTier(torch, device.Cuda(torch), {1: lambda: {"kept": kept}})
        began = time.monotonic()
        cuda.queue_work(5.0)
        with pytest.raises(TimeoutError, match="still busy"):
            tier.release(0.1)
        assert time.monotonic() - began < 4.5, "it gave up"
        with pytest.raises(TimeoutError, match=r"still busy 0\.1 s"):
            tiers.HoldTier().release(0.1)
        done = tier.release(30.0)
        tier.restore()
        return [done[0] > 0, bool((kept == 1).all())]

    assert on_card(check) == [True, True]


def test_the_first_park_waits_no_longer_than_others(on_card):
    """It tries the tier with a few bytes, and these would wait for all that is queued."""

    def check(cuda):
        kept = torch.ones(MIB, device="card")
        tier = tiers.BestTier({1: lambda: {"kept": kept}})
        cuda.queue_work(5.0)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="still busy"):
            tier.release(0.1)
        took_s = time.monotonic() - began
        done = tier.release(30.0)
        tier.restore()
        return [took_s < 4.5, tier.number, done[0] > 0]

    assert on_card(check) == [True, TIER_TORCH, True]
