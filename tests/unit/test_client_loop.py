"""`steps` and `step`: what the script's loop sees of them, with and without Gandiva."""

import threading
import weakref

import pytest

import gandiva_slurm as gandiva
from gandiva_slurm.client import notice, rank
from gandiva_slurm.wire.page import KIND_HOOK, KIND_STEP, KIND_STEPS


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.delenv("GANDIVA_SOCKET", raising=False)
    monkeypatch.setattr(rank, "_rank", None)
    monkeypatch.setattr(notice, "_said", set())


@pytest.fixture
def ours(monkeypatch, tmp_path):
    """A rank that counts; its node does not answer, which changes nothing for the loop."""
    mine = rank.Rank(str(tmp_path / "nobody.sock"))
    monkeypatch.setattr(rank, "_rank", mine)
    monkeypatch.setattr(notice, "_said", {"quiet"})
    return mine


class Batch:
    pass


def test_alone_the_iterable_is_returned_as_it_is(alone, capsys):
    data = [1, 2, 3]
    assert gandiva.steps(data) is data
    gandiva.step()
    gandiva.steps(data)
    assert capsys.readouterr().err == (
        "gandiva: no GANDIVA_SOCKET here: this script runs as if gandiva were not imported\n"
    )


def test_only_the_first_rank_says_so(alone, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    gandiva.step()
    assert capsys.readouterr().err == ""


def test_each_item_is_a_boundary_once_it_is_done(ours):
    seen = [(item, ours.seq) for item in gandiva.steps("abc")]
    assert seen == [("a", 0), ("b", 1), ("c", 2)]
    assert ours.seq == ours.user_steps == 3
    assert ours.kind == KIND_STEPS


def test_length_and_attributes_are_the_iterables_own(ours):
    class Loader(list):
        dataset = "imagenet"

    wrapped = gandiva.steps(Loader([1, 2]))
    assert len(wrapped) == 2 and wrapped.dataset == "imagenet"
    with pytest.raises(AttributeError):
        _ = wrapped.sampler


def test_iterable_without_length_has_none(ours):
    wrapped = gandiva.steps(item for item in (1, 2))
    assert not hasattr(wrapped, "__len__") and bool(wrapped)
    assert list(wrapped) == [1, 2]


def test_loader_whose_length_is_unknown_says_so_as_without_us(ours):
    class Streaming(list):
        def __len__(self):
            raise TypeError("IterableDataset has no length")

    with pytest.raises(TypeError, match="no length"):
        len(gandiva.steps(Streaming([1])))
    assert list(gandiva.steps(Streaming([1]))) == [1]


def test_enumerate_and_a_second_epoch(ours):
    wrapped = gandiva.steps([10, 20])
    assert [list(enumerate(wrapped)) for _ in range(2)] == [[(0, 10), (1, 20)]] * 2
    assert ours.seq == 4


def test_last_batch_is_gone_before_the_rank_stops(ours, monkeypatch):
    born, alive = [], []

    class Source:
        def __iter__(self):
            return self

        def __next__(self):
            if len(born) == 3:
                raise StopIteration
            batch = Batch()
            born.append(weakref.ref(batch))
            return batch

    iterator = iter(gandiva.steps(Source()))
    monkeypatch.setattr(iterator, "_boundary", lambda: alive.append([ref() is not None for ref in born]))
    for batch in iterator:
        assert batch is not None
        del batch
    assert alive == [[False], [False] * 2, [False] * 3]


def test_loop_that_breaks_off_counts_what_was_done(ours):
    for item in gandiva.steps(range(10)):
        if item == 4:
            break
    assert ours.seq == 4


def test_step_marks_hand_written_loops(ours):
    for _ in range(3):
        gandiva.step()
    assert (ours.seq, ours.user_steps, ours.kind) == (3, 3, KIND_STEP)


def test_error_in_the_loader_passes_through(ours):
    def broken():
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(gandiva.steps(broken()))


def test_hook_kind_is_the_default(ours):
    assert ours.kind == KIND_HOOK


def test_loop_in_another_thread_trains_without_boundaries(ours):
    gandiva.step()
    other = threading.Thread(target=lambda: list(gandiva.steps([1, 2])))
    other.start()
    other.join(10)
    assert ours.seq == 1


def test_unknown_name_says_what_there_is():
    told = r"has no 'stpes'; it has BadCheckpoint, Elas.*, attach.*step, steps"
    with pytest.raises(AttributeError, match=told):
        _ = gandiva.stpes
