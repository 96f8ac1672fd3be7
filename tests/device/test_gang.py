"""Gangs on simulated cards, parked by a node that plays gandivad, and moved: to the last bit."""

import pytest

from gandiva_slurm.wire.page import TIER_REQUEUE, TIER_TORCH, W_HELD, W_RELEASED, W_TIER_USED
from tests.attach.test_requeue import DEADLINE_S, Room
from tests.device import backend, card
from tests.device.conftest import CONTEXT, MIB
from tests.slow import by_need, soaked

WORLD, PARKS, TOTAL = 2, 2, 512 * MIB
#: What torch's allocator takes of a card for tensors of 1 to 10 MiB; a larger one has a segment of its own.
SEGMENT = 20 * MIB
#: The parameters of the recipe `wide`, which as much is kept of in DistributedDataParallel's buckets.
WIDE_BYTES = 4 * (9 * 1024 + 1025 * 4096 + 4097 * 3)
#: It goes on until it is told to end, so that no park comes too late.
ENDLESS = ("--epochs", "1000000", "--device", "card")
#: The recipe, and how many cards the two ranks have.
CASES = {
    "DDP on one card": ("wrapped", 1),
    "DDP on a card each": ("wide", 2),
    "gradients of each rank": ("synced_late", 1),
    "FSDP2": ("sharded", 1),
    "FSDP2 on a card each": ("sharded_wide", 2),
}


MORE = ("DDP on one card", "FSDP2")
#: Those of `make test-all`, and what `make soak` has; one training on the card is parked in `make test`.
FORMS = [
    *by_need(case for case in CASES if case not in MORE),
    *(soaked(case, why="those on a card each have more to move") for case in MORE),
]


@pytest.fixture
def room(tmp_path):
    made = Room(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("case", FORMS)
def test_a_gang_is_parked_and_moved_to_the_last_bit(case, room, library, tmp_path):
    recipe, number = CASES[case]
    paths = [card.make(tmp_path / f"card{rank}", TOTAL, CONTEXT) for rank in range(number)]
    env = backend.environment(library, *paths)
    room.start(recipe, *ENDLESS, "--step-ms", "20", world=WORLD, **env)
    for _ in range(PARKS):
        room.node.park(DEADLINE_S)
        assert room.node.gang.phase == "parked", room.node.gang.last_error
        check_memory(room, paths, recipe)
        room.node.resume(DEADLINE_S)
    views = room.leave()
    assert room.node.gang.phase == "parked", room.node.gang.last_error
    assert {view[W_TIER_USED] for view in views} == {TIER_REQUEUE}
    room.kill()
    assert not any(card.used(path) for path in paths)
    room.start(recipe, *ENDLESS, world=WORLD, restart=1, **env)
    (tmp_path / "moved.stop").touch()
    room.finish()
    assert "goes on from" in room.said(1)
    found = [room.lines("moved", rank) for rank in range(WORLD)]
    epochs = 1 + int(found[0][-2].split()[0])
    room.start(recipe, *ENDLESS, "--epochs", str(epochs), world=WORLD, is_ours=False, **env)
    room.finish()
    assert found == [room.lines("alone", rank) for rank in range(WORLD)]


def check_memory(room, paths, recipe):
    """Of each rank a card has a context and what its page tells; of the tensors, what DDP alone knows of."""
    used = {}
    for path in paths:
        used |= card.used(path)
    for peer, view in zip(room.node.peers.values(), room.node.views(), strict=True):
        released, held = view[W_RELEASED], view[W_HELD]
        assert view[W_TIER_USED] == TIER_TORCH and released > 0
        assert used[peer.pid] == CONTEXT + held
        if recipe == "wide":
            assert WIDE_BYTES <= held < WIDE_BYTES + 2 * SEGMENT, "the buckets"
            assert released >= 4 * WIDE_BYTES, "parameters, gradients, the optimizer's two"
        elif recipe == "sharded_wide":
            assert held <= 2 * MIB, "its gradients go, too, which another stream than the script's has"
            assert released >= 4 * WIDE_BYTES // WORLD, "parameters, gradients, the optimizer's two"
        else:
            assert held <= SEGMENT, "all of it is small"
