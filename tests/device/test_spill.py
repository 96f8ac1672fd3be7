"""Spilling on the simulated card: beyond its cap a rank goes on in host memory, to the same bits."""

import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from gandiva_slurm.client import spill
from gandiva_slurm.client.sharing import Share, tell_memory
from gandiva_slurm.client.tiers import BestTier
from gandiva_slurm.wire import page
from gandiva_slurm.wire.page import TIER_TORCH
from tests import patience
from tests.device import backend, card
from tests.device.conftest import CONTEXT, MIB

CAP, SPILL = 48 * MIB, 96 * MIB
WIDE = 1024


def words(duty=50, cap=CAP, room=SPILL):
    """A page of a rank that shares the card."""
    made = memoryview(bytearray(page.PAGE_BYTES)).cast("Q")
    made[page.W_AT], made[page.W_BEAT] = page.NEVER, time.monotonic_ns() + 10**12
    made[page.W_MEM_CAP], made[page.W_SPILL], made[page.W_THROTTLE] = cap, room, duty
    return made


def train(share=None, steps=4):
    """Train a model of 16 MiB with AdamW, 64 MiB in all; return its losses and weights, to the last bit."""
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(WIDE, WIDE, bias=False) for _ in range(4)]).to("card")
    optimizer, losses = torch.optim.AdamW(model.parameters(), foreach=False), []
    for _ in range(steps):
        if share is not None:
            share.heed()
        optimizer.zero_grad()
        loss = model(torch.randn(8, WIDE).to("card")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return model, optimizer, losses + weights(model)


def weights(model):
    return [weight.cpu().double().sum().item().hex() for weight in model.parameters()]


def main(what, path):
    """In a process of its own: `alone`, `capped` without host memory, or `spilled`."""
    torch.set_num_threads(1)
    cuda = backend.install()
    spill.LIBRARY = __file__  # the card's pools ask for none
    torch.ones(1, device="card")
    mine = words(room=SPILL if what == "spilled" else 0)
    share = Share(mine) if what != "alone" else None
    found = {}
    try:
        model, optimizer, bits = train(share)
    except torch.OutOfMemoryError:
        return {"bits": None}
    found |= {"bits": bits, "used": sum(card.used(path).values())}
    if what == "spilled":
        tell_memory(mine)
        found["told"] = [mine[word] for word in (page.W_SPILLED, page.W_PEAK, page.W_OOMS)]
        tier = BestTier({})
        tier._seen.update({id(one): (lambda one=one: one) for one in (model, optimizer)})
        done = tier.release()
        found["parked"] = [done.held, done.why, tier.number == TIER_TORCH, sum(card.used(path).values())]
        mine[page.W_THROTTLE] = 0
        share.wake()
        tier.restore()
        found["back"] = [spill.mine.size, spill.mine.used(cuda), cuda.get_per_process_memory_fraction()]
        found["same"] = weights(model) == bits[-4:]
    return found


def run(what, card_env, card_path):
    argv = [sys.executable, "-m", "tests.device.test_spill", what, str(card_path)]
    done = subprocess.run(
        argv, env=card_env, capture_output=True, text=True, timeout=120 * patience.slowness()
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_beyond_its_cap_it_goes_on_in_host_memory_to_the_same_bits(card_env, card_path):
    alone = run("alone", card_env, card_path)
    assert alone["used"] > CONTEXT + CAP + 16 * MIB
    assert run("capped", card_env, card_path)["bits"] is None, "without it ends"
    found = run("spilled", card_env, card_path)
    assert found["bits"] == alone["bits"]
    assert found["used"] <= CONTEXT + CAP, "the card has no more of it than its cap"
    spilled, peak, ooms = found["told"]
    assert spilled > 16 * MIB and peak <= CAP and ooms == 0, "what the host has does not count as the card's"
    held, why, is_moved, used = found["parked"]
    assert (held, why, is_moved, used) == (0, "", True, CONTEXT), "a park takes it all along"
    assert found["back"] == [0, 0, 1.0] and found["same"], "with room it is back, and no pool is kept"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
