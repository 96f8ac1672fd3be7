"""Sparse gradients on the card, parked after each step; this file with HOW and CARD is the training."""

import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from gandiva_slurm.client.tiers import BestTier
from gandiva_slurm.wire.page import TIER_TORCH
from tests import patience
from tests.device import backend, card
from tests.device.conftest import CONTEXT, MIB

ROWS, WIDTH, STEPS = 8192, 128, 5
#: The rows of each gradient: 0.5 MiB, less than what may stay of what nothing accounts for.
TOKENS = 1024
#: By how a training goes: the steps whose gradients are sparse.
SPARSE = {"always": range(STEPS), "since its third step": range(2, STEPS)}


def train(how, device, park):
    """Train; return the losses and what was learnt, to the last bit."""
    torch.manual_seed(3)
    table, last = nn.Embedding(ROWS, WIDTH, sparse=True).to(device), nn.Linear(WIDTH, 4).to(device)
    rows, rest = torch.optim.SparseAdam(table.parameters()), torch.optim.SGD(last.parameters(), 0.1)
    if how != "always":
        rows = torch.optim.SGD(table.parameters(), 0.1)  # takes both kinds
    seen = (table, last, rows, rest)
    between, losses = park(seen), []
    for number in range(STEPS):
        table.sparse = number in SPARSE[how]
        tokens = torch.randint(ROWS, (TOKENS,)).to(device)
        loss = last(table(tokens)).square().mean()
        for optimizer in (rows, rest):
            optimizer.zero_grad()
        loss.backward()
        assert table.weight.grad.is_sparse == table.sparse
        rows.step()
        rest.step()
        losses.append(loss.item().hex())
        # Of what is only in variables a little may stay.
        del loss, tokens
        between()
    return losses + [weight.detach().cpu().double().sum().item().hex() for weight in table.parameters()]


def main(how):
    """In a process of its own: on the CPU, then on the card with a park after each step."""
    torch.set_num_threads(1)
    cuda, parks = backend.install(), []
    wanted = train(how, "cpu", lambda seen: lambda: None)

    def park(seen):
        tier = BestTier({id(one): weakref.ref(one) for one in seen})

        def between():
            cuda.synchronize()
            done = tier.release()
            parks.append([*done[:2], done.why, tier.number, sum(card.used(Path(sys.argv[2])).values())])
            tier.restore()

        return between

    return {"same": train(how, backend.NAME, park) == wanted, "parks": parks}


@pytest.mark.parametrize("how", SPARSE)
def test_sparse_gradients_leave_at_each_park_and_bits_stay(card_env, card_path, how):
    argv = [sys.executable, "-m", "tests.device.test_sparse", how, str(card_path)]
    done = subprocess.run(
        argv, env=card_env, capture_output=True, text=True, timeout=120 * patience.slowness()
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["same"], "what the CPU trains, to the last bit"
    assert len(said["parks"]) == STEPS
    for released, held, why, tier, used in said["parks"]:
        assert (why, tier) == ("", TIER_TORCH) and released > 4 * MIB
        assert (held, used) == (0, CONTEXT), "a context is all that stays"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
