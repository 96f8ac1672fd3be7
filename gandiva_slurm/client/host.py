"""Host memory to keep a parked rank's device memory in: slabs, pinned as far as the budget goes.

Pinned memory is copied several times faster and is dear to get, so it is kept for the next park; the node
cannot swap it, so there is a budget. What is beyond it is pageable, and given back when the rank goes on.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Iterator, List, Optional, Tuple

from gandiva_slurm.client.copying import Piece
from gandiva_slurm.client.errors import Refused
from gandiva_slurm.client.identity import number

MIB = 1 << 20
#: Slabs are powers of two, as torch's allocator of pinned memory rounds up to these.
LEAST_SLAB, LARGEST_SLAB = MIB, 64 * MIB
#: Without GANDIVA_PINNED_MIB the ranks of a node pin no more than this part of what their job may use.
PINNED_PART = 1 / 4
#: One park pins for no longer, about ten GiB on an H200's host: the next ones pin the rest. A thread that
#: pins beside the training instead stops it as long, or slows it down to a half (docs/adr/0052).
PIN_S = 5.0
#: So much host memory is left free.
SPARE = 64 * MIB
#: Limits of cgroups that mean none are larger than any machine.
_NO_LIMIT = 1 << 60
_CGROUPS = "/sys/fs/cgroup"

#: Allocates bytes of host memory, pinned or not: a flat tensor of bytes.
Allocate = Callable[[int, bool], Any]


class Slabs:
    """Host memory, handed out in pieces from its start, and taken back as a whole."""

    def __init__(self, allocate: Allocate, budget: Optional[int] = None) -> None:
        """Allocate nothing yet; pin at most `budget` bytes."""
        self._allocate = allocate
        self._budget = pinned_budget() if budget is None else budget
        self._pinned: List[Any] = []
        self._pageable: List[Any] = []
        self._slab, self._at = 0, 0

    @property
    def slabs(self) -> List[Any]:
        """All slabs there are now."""
        return self._pinned + self._pageable

    def make_room(self, size: int) -> None:
        """Have slabs for so many bytes in all; Refused when the host lacks them."""
        missing = size - sum(map(len, self.slabs))
        free = free_bytes() // local_world() - SPARE
        if missing > max(0, free):
            there = max(0, free) // MIB
            raise Refused(f"that takes {-(-missing // MIB)} MiB of host memory more, and {there} are free")
        until = time.monotonic() + PIN_S
        while missing > 0:
            missing -= self._add(_slab_bytes(missing), time.monotonic() < until)

    def take(self, size: int) -> List[Piece]:
        """Hand out that many bytes: pieces of slabs, one after the other."""
        pieces, pinned, done = [], len(self._pinned), 0
        while done < size:
            is_pinned = self._slab < pinned
            slab = self._pinned[self._slab] if is_pinned else self._pageable[self._slab - pinned]
            length = min(size - done, len(slab) - self._at)
            pieces.append(Piece(slab, self._at, length))
            done, self._at = done + length, self._at + length
            if self._at == len(slab):
                self._slab, self._at = self._slab + 1, 0
        return pieces

    def give_back(self) -> None:
        """Take back all pieces; pinned memory is kept for the next time."""
        self._pageable = []
        self._slab = self._at = 0

    def _add(self, size: int, has_time: bool) -> int:
        if has_time and sum(map(len, self._pinned)) + size <= self._budget:
            try:
                self._pinned.append(self._allocate(size, True))
            except RuntimeError:
                self._budget = 0  # more cannot be pinned here
            else:
                return size
        self._pageable.append(self._allocate(size, False))
        return size


def _slab_bytes(missing: int) -> int:
    return int(min(max(LEAST_SLAB, 1 << (missing - 1).bit_length()), LARGEST_SLAB))


def pinned_budget() -> int:
    """Return how many bytes this rank may pin: GANDIVA_PINNED_MIB, else its part of the job's memory."""
    named = number("GANDIVA_PINNED_MIB", -1)
    if named >= 0:
        return named * MIB
    limits = [limit for limit, _ in _limits()]
    return int(min([_meminfo("MemTotal:"), *limits]) * PINNED_PART) // local_world()


def free_bytes() -> int:
    """Return how much more host memory this process can get: the machine's, within its cgroups."""
    return min([_meminfo("MemAvailable:"), *(limit - used for limit, used in _limits())])


def local_world() -> int:
    """Return how many ranks of the job share this node."""
    return max(1, number("LOCAL_WORLD_SIZE", number("SLURM_NTASKS_PER_NODE", 1)))


def _meminfo(name: str) -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
    except (OSError, StopIteration):
        return _NO_LIMIT


def _limits() -> List[Tuple[int, int]]:
    """Return limit and use of every memory cgroup around this process that has a limit."""
    found = []
    for directory, limit_name, used_name in _cgroup_files():
        limit, used = _read(os.path.join(directory, limit_name)), _read(os.path.join(directory, used_name))
        if limit is not None and used is not None and limit < _NO_LIMIT:
            found.append((limit, used - _cached(directory)))
    return found


def _cgroup_files() -> Iterator[Tuple[str, str, str]]:
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as lines:
            entries = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return
    for _, controllers, path in entries:
        is_v1 = "memory" in controllers.split(",")
        if controllers and not is_v1:
            continue
        root = os.path.join(_CGROUPS, "memory") if is_v1 else _CGROUPS
        names = ("limit_in_bytes", "usage_in_bytes") if is_v1 else ("max", "current")
        while True:
            yield root + path, f"memory.{names[0]}", f"memory.{names[1]}"
            if path in ("/", ""):
                break
            path = os.path.dirname(path)


def _cached(directory: str) -> int:
    """Return what of a cgroup's use is files that can be dropped."""
    try:
        with open(os.path.join(directory, "memory.stat"), encoding="ascii") as lines:
            pairs = dict(line.split() for line in lines)
    except (OSError, ValueError):
        return 0
    return int(pairs.get("total_inactive_file", pairs.get("inactive_file", 0)))


def _read(path: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None  # "max", or no such file
