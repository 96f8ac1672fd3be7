"""What the accounts say of lost nodes: of a job that went on by itself, of a move whose target was lost."""

from __future__ import annotations

import pytest

from gandiva_slurm.accounting import losses
from gandiva_slurm.wire.messages import NodeReport
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
    assert book.told() == (0, None, 0.0, losses.NOT_ON, "")
    book.run(begun=110, node="n3", is_restored=True)
    assert book.told() == (1, 40, 0.0, "", "")
    book.ledger.close()


@pytest.mark.parametrize(
    ("begun", "lost", "why"), ((100, 50, ""), (0, 150, ""), (-1, None, losses.NO_COUNT))
)
def test_what_a_lost_node_cost_a_job_that_went_on_by_itself(
    book: Book, begun: int, lost: int | None, why: str
) -> None:
    """From its own newest file, or anew; where its optimizer counts nothing it is not guessed."""
    book.run(begun=20, steps=130)
    book.run(steps=0, node="n2")
    book.run(begun=begun, node="n3")
    assert book.told() == (0, lost, 0.0, why, "")
    book.ledger.close()


def test_a_requeue_costs_what_is_done_again_and_nothing_where_it_begins_anew(book: Book) -> None:
    for begun in (0, 100, 0):
        book.run(begun=begun, steps=30)
        final = (7, book.restart, begun, begun + 130, 150 * S)
        told = NodeReport("n1", "b", 0, 0, 0, 1, (), (), ((7, book.restart),), finals=(final,))
        book.ledger.record_report(told)
    assert book.told() == (0, 30, 0.0, "", "")
    book.ledger.close()
