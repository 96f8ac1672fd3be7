"""What is free of a GPU's memory is shared out among those that have it at the same time."""

from gandiva_slurm.policy.packing.room import CONTEXT_BYTES, caps, need, room

GIB = 1 << 30
CARD_BYTES = 16 * GIB


def test_what_is_free_is_shared_out_above_both_peaks() -> None:
    free = room(CARD_BYTES, [2 * GIB])
    assert free == 13 * GIB
    assert caps(free, [6 * GIB, 3 * GIB]) == [7 * GIB, 4 * GIB]
    assert sum(caps(free, [6 * GIB, 3 * GIB])) + 2 * CONTEXT_BYTES == free
    assert caps(free, [9 * GIB, 3 * GIB]) == []
    assert caps(free, []) == []
    assert need(16 * GIB) == 18 * GIB
