"""Gangs that are written while they are parked, and are killed there: the next life goes on from that."""

import pytest

from gandiva_slurm.wire import page as wire
from tests.attach.test_requeue import CASES, DEADLINE_S, LONG, SLOWLY
from tests.attach.test_requeue import alone as alone
from tests.attach.test_requeue import room as room
from tests.slow import slow, soaked

pytestmark = slow("12 s each; one rank is in test_parked, a save before a gang leaves in test_requeue")


MORE = [soaked(f"{what} of each rank", why="one more case") for what in ("buffers", "gradients")]


@pytest.mark.parametrize("case", ["shards of each rank", *MORE])
def test_a_gang_goes_on_from_what_was_written_while_it_was_parked(case, room, alone):
    """DistributedDataParallel, between two syncs, too; FSDP2. Its memory is moved meanwhile."""
    recipe, world, options, _ = CASES[case]
    options = (*LONG, *options)
    room.start(recipe, *options, *SLOWLY, world=world, GANDIVA_TIER="torch-cpu")
    node = room.node
    for peer in node.peers.values():
        peer.page.write([(wire.W_TIER, wire.TIER_BEHIND)])
    node.park(DEADLINE_S)
    assert node.gang.phase == "parked", node.gang.last_error
    node.wait(lambda: not any(view[wire.W_SAVING] for view in node.views()), "the writing", DEADLINE_S)
    assert all(view[wire.W_SAVED] == view[wire.W_STATE_SEQ] for view in node.views())
    assert {view[wire.W_TIER_USED] for view in node.views()} == {wire.TIER_TORCH}
    room.kill()
    room.start(recipe, *options, world=world, restart=1, GANDIVA_TIER="torch-cpu")
    room.finish()
    assert "goes on from" in room.said(1)
    assert [room.lines("moved", rank) for rank in range(world)] == alone(recipe, world, *options)
