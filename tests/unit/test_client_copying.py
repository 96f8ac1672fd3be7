"""client/copying: bytes that go to the host and back, many storages at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.client import copying, host

SLAB = host.MIB


def allocate(size: int, is_pinned: bool) -> Any:
    return torch.empty(size, dtype=torch.uint8)


def placed(storages: list[Any], slabs: host.Slabs) -> list[copying.Moved]:
    slabs.make_room(sum(storage.nbytes() for storage in storages))
    made = []
    for storage in storages:
        size = storage.nbytes()
        made.append(copying.Moved(storage, size, slabs.take(size), copying.flat(torch, storage, size)))
    return made


def bytes_of(storage: Any) -> list[int]:
    return copying.flat(torch, storage, storage.nbytes()).tolist()


def there_and_back(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LARGEST_SLAB", SLAB)
    tensors = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    storages = [tensor.untyped_storage() for tensor in tensors]
    want = [tensor.clone() for tensor in tensors]
    moved = placed(storages, host.Slabs(allocate, budget=0))
    for _ in copying.copy(torch, moved, is_out=True):
        pass
    for storage in storages:
        storage.resize_(0)
    for one in moved:
        one.storage.resize_(one.size)
        one.flat.fill_(0)
    for _ in copying.copy(torch, moved, is_out=False):
        pass
    assert all(torch.equal(found, wanted) for found, wanted in zip(tensors, want, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3 * SLAB // 2), min_size=1, max_size=12), st.sampled_from([1, 4096, SLAB]))
def test_bytes_are_the_same_whatever_the_sizes(sizes: list[int], small: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(copying, "SMALL_BYTES", small)
        monkeypatch.setattr(copying, "BLOCK_BYTES", SLAB)
        there_and_back(sizes, monkeypatch)


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the copies of each kind."""
    counts = {"gathered": 0, "alone": 0}
    gathered, alone = copying._gathered, copying._by_itself

    def count(kind: str, function: Any) -> Any:
        def call(*args: Any) -> None:
            counts[kind] += 1
            function(*args)

        return call

    monkeypatch.setattr(copying, "_gathered", count("gathered", gathered))
    monkeypatch.setattr(copying, "_by_itself", count("alone", alone))
    return counts


def test_small_storages_cross_together(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted(monkeypatch)
    there_and_back([64] * 500, monkeypatch)
    assert counts == {"gathered": 2, "alone": 0}


def test_what_lies_in_two_slabs_crosses_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted(monkeypatch)
    there_and_back([SLAB // 2] * 4, monkeypatch)
    assert counts == {"gathered": 4, "alone": 0}


def test_without_room_for_the_block_each_crosses_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted(monkeypatch)
    monkeypatch.setattr(copying, "_block", lambda *_: None)
    there_and_back([64] * 50, monkeypatch)
    assert counts == {"gathered": 0, "alone": 100}


def test_no_room_on_the_device_is_no_error() -> None:
    class Full:
        uint8 = torch.uint8

        def empty(self, *_: Any, **__: Any) -> Any:
            raise torch.OutOfMemoryError("the card is full")

    assert copying._block(Full(), torch.device("cpu"), None) is None


def test_a_park_pins_for_a_while_and_the_next_ones_pin_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pinned = [0.0], []

    def slow(size: int, is_pinned: bool) -> Any:
        pinned.append(is_pinned)
        clock[0] += host.PIN_S / 2 if is_pinned else 0.0
        return allocate(size, is_pinned)

    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(host, "LARGEST_SLAB", SLAB)
    slabs = host.Slabs(slow, budget=8 * SLAB)
    slabs.make_room(5 * SLAB)
    assert pinned == [True, True, False, False, False]
    slabs.give_back()
    pinned.clear()
    slabs.make_room(5 * SLAB)
    assert pinned == [True, True, False]
