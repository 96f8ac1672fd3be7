"""What the accounts say of a move whose target was lost before the job had begun there."""

from __future__ import annotations

import pytest

from gandiva_slurm.accounting import losses
from tests.unit.test_losses import Book
from tests.unit.test_losses import book as book

S = 10**9


@pytest.mark.parametrize("lost", (1, 2))
def test_it_is_one_move_to_where_it_went_on(book: Book, lost: int) -> None:
    book.run(begun=0, steps=130, save_ns=2 * S)
    book.left("image", 0, 130)
    for _ in range(lost):
        book.run(steps=0, node="n2")
        assert book.told() == (1, None, 2.0, losses.NOT_ON, "")
    book.run(begun=120, node="n3", is_restored=True)
    assert book.told() == (1, 10, 2.0, "", "")
    book.ledger.close()


def test_a_lost_node_then_a_lost_target_is_one_move(book: Book) -> None:
    book.run(begun=20, steps=130)
    book.run(steps=0, node="n2")
    assert book.told() == (0, 0, 0.0, "", ""), "as far as is known it was requeued"
    book.run(begun=110, node="n3", is_restored=True)
    assert book.told() == (1, 40, 0.0, "", "")
    book.ledger.close()
