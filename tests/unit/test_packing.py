"""Pairs: profiled alone first, tried where it promises something, kept when it pays, else not run again."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gandiva_slurm.policy.packing.pairs import Bench, Pair, PairBook
from gandiva_slurm.policy.port import JobView

V100 = "v100"


class Measured:
    """Rates that a test knows."""

    def __init__(
        self, alone: Mapping[str, float], packed: Mapping[tuple[str, str], tuple[float, float]]
    ) -> None:
        self.solo, self.pairs = alone, dict(packed)

    def alone(self, model: str, size: int, gpu_type: str, is_local: bool = True) -> float | None:
        return self.solo.get(model)

    def packed(self, model: str, other: str, gpu_type: str) -> tuple[float, float] | None:
        both = self.pairs.get((model, other))
        swapped = self.pairs.get((other, model))
        return both or (swapped and (swapped[1], swapped[0]))


def job(number: int, model: str, **fields: object) -> JobView:
    return JobView(number, "ada", 1, number, model, **fields)  # type: ignore[arg-type]


def bench(hosts: list[JobView], waiting: list[JobView], old: Mapping[int, int] | None = None) -> Bench:
    return Bench([(host, V100) for host in hosts], waiting, lambda job, gpu_type: 1.0, old or {})


def test_a_pair_is_tried_once_and_run_again_only_when_it_paid() -> None:
    book, rates = PairBook(), Measured({"a": 10.0, "b": 10.0, "c": 10.0}, {})
    hosts, waiting = [job(1, "a")], [job(2, "b")]
    assert book.match(bench(hosts, waiting), rates) == [Pair(1, 2, True)]
    rates.pairs[("a", "b")] = (4.0, 5.0)  # 0.9 in all: slicing is better
    book.learn(rates)
    assert book.match(bench(hosts, waiting), rates) == []
    assert (book.tried, book.kept, book.undone) == (1, 0, 1)
    assert book.match(bench(hosts, [job(3, "c")]), rates) == [Pair(1, 3, True)]
    rates.pairs[("a", "c")] = (7.0, 6.0)
    book.learn(rates)
    assert book.match(bench(hosts, [job(2, "b"), job(3, "c")]), rates) == [Pair(1, 3, False)]
    assert (book.tried, book.kept, book.undone) == (2, 1, 1)


def test_the_verdict_serves_all_jobs_of_the_models_either_way_round() -> None:
    book, rates = PairBook(), Measured({"a": 1.0, "b": 1.0}, {("a", "b"): (0.4, 0.4)})
    assert book.match(bench([job(7, "b")], [job(8, "a")]), rates) == []


def test_nobody_is_packed_before_he_was_measured_alone() -> None:
    book, rates = PairBook(), Measured({"a": 1.0}, {})
    assert book.match(bench([job(1, "a")], [job(2, "new")]), rates) == []
    assert book.match(bench([job(1, "new")], [job(2, "a")]), rates) == []


def test_who_does_not_fit_beside_the_other_is_not_run_there() -> None:
    book, rates = PairBook(), Measured({"a": 1.0, "b": 1.0}, {("a", "b"): (0.0, 0.0)})
    assert book.match(bench([job(1, "a")], [job(2, "b")]), rates) == []


def test_the_best_pairs_are_made_and_nobody_is_in_two() -> None:
    sums = {("a", "x"): (0.9, 0.9), ("a", "y"): (0.6, 0.6), ("b", "x"): (0.8, 0.8), ("b", "y"): (0.7, 0.7)}
    book, rates = PairBook(), Measured(dict.fromkeys("abxy", 1.0), sums)
    pairs = book.match(bench([job(1, "a"), job(2, "b")], [job(3, "x"), job(4, "y")]), rates)
    assert pairs == [Pair(1, 3, False), Pair(2, 4, False)]


@pytest.mark.parametrize(("both", "want"), [((0.6, 0.6), [Pair(1, 3, False)]), ((0.5, 0.5), [])])
def test_an_old_pair_stays_only_when_it_pays(both: tuple[float, float], want: list[Pair]) -> None:
    book = PairBook()
    rates = Measured({"a": 1.0, "b": 1.0}, {("a", "b"): both})
    assert book.match(bench([job(1, "a")], [job(2, "b"), job(3, "b")], {1: 3}), rates) == want


def test_models_that_never_paid_are_not_tried_with_everybody() -> None:
    """What is known of a model with some says what to expect of it with others."""
    names = [f"m{n}" for n in range(40)]
    rates = Measured(dict.fromkeys(names, 1.0), {})
    book = PairBook()
    for number, name in enumerate(names[1:], 2):
        if book.match(bench([job(1, "m0")], [job(number, name)]), rates):
            rates.pairs[("m0", name)] = (0.3, 0.3)
            book.learn(rates)
    assert 1 <= book.tried <= 5


def test_a_pair_stays_together_until_it_is_measured() -> None:
    book, rates = PairBook(), Measured({"a": 10.0, "b": 10.0, "c": 10.0}, {})
    hosts, waiting = [job(1, "a"), job(2, "c")], [job(3, "b")]
    [first] = book.match(bench(hosts, waiting), rates)
    other = 2 if first.host == 1 else 1
    kept = replace(bench(hosts, waiting, {other: 3}), on_trial={other})
    assert book.match(kept, rates) == [Pair(other, 3, True)]
    rates.pairs[("a", "b")] = rates.pairs[("c", "b")] = (4.0, 5.0)
    assert book.match(kept, rates) == []


@pytest.mark.parametrize(("kept", "stays"), [(0.39, False), (0.41, True)])
def test_no_word_of_one_has_the_other_worn_down(kept: float, stays: bool) -> None:
    """Whoever says that it is a hundred times as fast beside another is believed to be as fast as alone."""
    rates = Measured({"liar": 1.0, "honest": 1.0}, {("liar", "honest"): (100.0, kept)})
    pairs = PairBook().match(bench([job(1, "liar")], [job(2, "honest")], {1: 2}), rates)
    assert pairs == ([Pair(1, 2, False)] if stays else [])


def test_what_a_liar_says_of_pairs_promises_nobody_more_than_a_perfect_one() -> None:
    book, rates = PairBook(), Measured({"liar": 1.0, "b": 1.0, "c": 1.0}, {})
    book.match(bench([job(1, "liar")], [job(2, "b")]), rates)
    rates.pairs[("liar", "b")] = (1e9, 0.5)
    book.learn(rates)
    assert sum(book._guess("b", "c", V100)) <= 2.0
