"""What forecasts take from the ledger: how long ended jobs held their GPUs, and what starts took."""

import pytest

from gandiva_slurm.accounting.past import ended_jobs, load_ns
from tests.unit.test_queries import NS, Book
from tests.unit.test_report import fill


@pytest.fixture
def book(tmp_path):
    made = Book(tmp_path / "ledger.sqlite")
    yield made
    made.db.close()
    made.ledger.close()


def test_jobs_that_ended_are_told_with_what_they_held_of_each_gpu(book):
    fill(book)
    told = {job.job_id: job for job in ended_jobs(book.db)}
    assert told.keys() == {7, 8}, "neither those that go on nor those that wait"
    assert (told[7].user, told[7].gpus, told[7].end_s, told[7].length_ns) == ("user1", 2, 200, 30 * NS)
    assert told[8].length_ns == 10 * NS, "of a shared GPU half"


def test_an_empty_ledger_tells_nothing(book):
    assert ended_jobs(book.db) == [] and load_ns(book.db) == 0
