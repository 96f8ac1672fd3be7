"""A card as it is seen from outside: made as a file, and read as NVML's figures of a GPU would be."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: The layout is that of tests/device/src/card.h.
_MAGIC, _SLOTS = 0x4452414347444E47, 64
_HEAD, _SLOT = struct.Struct("<QQQ"), struct.Struct("<qQQ")


def make(path: Path, total: int, context: int) -> Path:
    """Make a card of `total` bytes on which each process's context takes some."""
    path.write_bytes(_HEAD.pack(_MAGIC, total, context) + bytes(_SLOTS * _SLOT.size))
    return path


def total(path: Path) -> int:
    """Return how much memory a card has, in bytes."""
    return int(_HEAD.unpack_from(path.read_bytes())[1])


def used(path: Path) -> dict[int, int]:
    """Return the bytes that each living process has on the card."""
    data = path.read_bytes()[_HEAD.size :]
    return {pid: size for pid, start, size in _SLOT.iter_unpack(data) if pid and start_of(pid) == start}


def start_of(pid: int) -> int:
    """Return when a process started, in ticks; 0 for none, and for one that has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if words[0] in "ZX" else int(words[19])


@contextlib.contextmanager
def occupied(path: Path, size: int) -> Iterator[None]:
    """Have this process take `size` bytes, as a neighbour would; it has no context."""
    with open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        taken = list(_SLOT.iter_unpack(path.read_bytes()[_HEAD.size :]))
        place = _HEAD.size + _SLOT.size * next(n for n, (pid, _, _) in enumerate(taken) if not pid)
        _put(file, place, (os.getpid(), start_of(os.getpid()), size))
    try:
        yield
    finally:
        with open(path, "r+b") as file:
            _put(file, place, (0, 0, 0))


def _put(file: BinaryIO, place: int, slot: tuple[int, int, int]) -> None:
    file.seek(place)
    file.write(_SLOT.pack(*slot))
    file.flush()
