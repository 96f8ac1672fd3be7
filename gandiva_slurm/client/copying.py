"""Copies of a rank's storages between the device and the host.

A copy has a price of its own, about 20 us of Python, torch and driver; a ResNet-50 with its optimizer has 590
storages at a boundary, most of a few KiB. Small ones are gathered on the device first, by one kernel for many
of them, and cross as one copy: AntMan's and PipeSwitch's grouping, without their allocators.
Source: PipeSwitch (OSDI 2020), section 4.2; docs/adr/0052.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List, NamedTuple, Optional

#: Up to this many bytes a storage goes through the gathering block; a larger one is copied by itself.
SMALL_BYTES = 4 << 20
#: Size of the gathering block, of the device's memory: while one group crosses, the next is made up.
BLOCK_BYTES = 8 << 20


class Piece(NamedTuple):
    """A part of a slab of host memory: `length` bytes from `start`."""

    slab: Any
    start: int
    length: int

    def bytes(self) -> Any:
        """Return it as a flat tensor of bytes."""
        return self.slab[self.start : self.start + self.length]


class Moved(NamedTuple):
    """A storage whose bytes are on the host, in pieces, one after the other."""

    storage: Any
    size: int
    pieces: List[Piece]
    #: The storage's bytes as a flat tensor: as good after the storage has been let go and is back.
    flat: Any
    #: On which of the device's streams it is allocated again; None: on the current one.
    stream: Optional[Any] = None


def copy(torch: Any, moved: Iterable[Moved], is_out: bool) -> Iterator[None]:
    """Begin all copies, out of the device or into it, on its current stream; yield after each.

    Only the bytes go: nothing is allocated or let go but the gathering block, and without room for that each
    storage is copied by itself.
    """
    block: Optional[Any] = None
    is_able = hasattr(torch, "_foreach_copy_")  # since torch 2.1
    with torch.no_grad():
        for group in _groups(moved):
            if len(group) > 1 and is_able:
                block = _block(torch, group[0].storage.device, block)
                is_able = block is not None
            if len(group) > 1 and is_able:
                _gathered(torch, group, block, is_out)
                yield
                continue
            for one in group:
                _by_itself(one, is_out)
                yield


def flat(torch: Any, storage: Any, size: int) -> Any:
    """Return the bytes of a storage as a flat tensor."""
    made = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return made.set_(storage, 0, (size,), (1,))


def _groups(moved: Iterable[Moved]) -> Iterator[List[Moved]]:
    """Split into runs that are one behind the other in one slab, and fit the gathering block."""
    group: List[Moved] = []
    size = 0
    for one in moved:
        if group and not (size + one.size <= BLOCK_BYTES and _follows(one, group[-1])):
            yield group
            group, size = [], 0
        group.append(one)
        size += one.size
    if group:
        yield group


def _follows(one: Moved, other: Moved) -> bool:
    if max(one.size, other.size) > SMALL_BYTES or len(one.pieces) != 1 or len(other.pieces) != 1:
        return False
    piece, before = one.pieces[0], other.pieces[0]
    is_behind = piece.slab is before.slab and piece.start == before.start + before.length
    return is_behind and one.storage.device == other.storage.device


def _block(torch: Any, device: Any, block: Optional[Any]) -> Optional[Any]:
    """Return a gathering block on the device, the one there is if it will do; None where there is no room."""
    if block is not None and block.device == device:
        return block
    try:
        return torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device)
    except RuntimeError:
        return None  # out of the device's memory


def _gathered(torch: Any, group: List[Moved], block: Any, is_out: bool) -> None:
    sizes = [one.size for one in group]
    total, first = sum(sizes), group[0].pieces[0]
    crossing, host = block[:total], Piece(first.slab, first.start, total).bytes()
    parts = list(torch.split_with_sizes(crossing, sizes))
    flats = [one.flat for one in group]
    if is_out:
        torch._foreach_copy_(parts, flats)
        host.copy_(crossing, non_blocking=True)
    else:
        crossing.copy_(host, non_blocking=True)
        torch._foreach_copy_(flats, parts)


def _by_itself(one: Moved, is_out: bool) -> None:
    at = 0
    for piece in one.pieces:
        there, here = one.flat[at : at + piece.length], piece.bytes()
        target, source = (here, there) if is_out else (there, here)
        target.copy_(source, non_blocking=True)
        at += piece.length
