"""A parked training is written to disk while it stands still, and its node lets it run for that (ADR 0059).

The state was captured at the boundary, before its memory left the device; the bytes are read from where they
are on the host meanwhile. The training goes on whenever it is told to: a writing that is not through then has
failed, and what was whole before is whole still. Nothing that is read behind that moment is ever written.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from gandiva_slurm.client.copying import Moved
from gandiva_slurm.client.errors import NotSaved
from gandiva_slurm.client.host import MIB, SPARE, free_bytes
from gandiva_slurm.client.notice import say
from gandiva_slurm.wire.page import W_SAVED, W_SAVING

#: A rank writes no faster, bytes a second: other jobs read and write there, too.
RATE = 256 * MIB
#: Between two looks at whether it is to stop.
_CHUNK = MIB
#: The file system must have room for this many of it: its users' other files come first.
ROOM = 2
#: A writing thread's own niceness.
_NICE = 19
_NO_TIME = "its turn came before it was written"

#: What was moved off the device, by its storage.
Kept = Dict[int, Moved]
#: Writes a captured state from the host's memory; NotSaved, OSError say why not.
Writing = Callable[[Kept, "Pace"], None]


class Pace:
    """Lets bytes through no faster than RATE, and none once the training is to go on."""

    def __init__(self) -> None:
        """Let all through."""
        self.is_over = False
        self._due_s = time.monotonic()

    def check(self) -> None:
        """NotSaved where the training goes on, or has ended."""
        if self.is_over or not threading.main_thread().is_alive():
            raise NotSaved(_NO_TIME)

    def writer(self, write: Callable[[bytes], Any]) -> _Paced:
        """Return a file to write into, at this pace."""
        return _Paced(self, write)

    def wait(self, size: int) -> None:
        """Wait until `size` bytes more are due; time in which nothing was written counts for nothing."""
        self._due_s = max(self._due_s, time.monotonic() - 0.1) + size / RATE
        time.sleep(max(0.0, self._due_s - time.monotonic()))


class _Paced(io.RawIOBase):
    def __init__(self, pace: Pace, write: Callable[[bytes], Any]) -> None:
        self._pace, self._write = pace, write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK):
            chunk = bytes(view[start : start + _CHUNK])
            self._pace.check()  # what was read before that is of the training that stands still
            self._write(chunk)
            self._pace.wait(len(chunk))
        return len(view)


class Behind:
    """The writing of one rank's parked states, one at a time, by a thread."""

    def __init__(self, words: memoryview) -> None:
        """Show on these words of the page how it stands."""
        self._words = words
        self._pace: Optional[Pace] = None
        self._thread: Optional[threading.Thread] = None

    def begin(self, writing: Writing, kept: Kept, seq: int) -> None:
        """Write what was captured at boundary `seq`; the rank's memory is off the device, in `kept`."""
        if self._thread is not None and self._thread.is_alive():
            say("not saved while parked: the file system has not taken the last one yet")
            return
        self._pace = pace = Pace()
        self._words[W_SAVING] = 1
        # No daemon: at the script's end torch's C++ would be ended in the midst of a call of ours.
        self._thread = threading.Thread(
            target=_write, args=(writing, kept, pace, self._words, seq), name="gandiva-save"
        )
        self._thread.start()

    def stop(self) -> None:
        """The training goes on: what is not whole by now never will be. It is not waited for."""
        if self._pace is not None:
            self._pace.is_over, self._pace = True, None
            self._words[W_SAVING] = 0


def _write(writing: Writing, kept: Kept, pace: Pace, words: memoryview, seq: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        writing(kept, pace)
        words[W_SAVED] = seq
    except Exception as err:
        why: Any = err if isinstance(err, (NotSaved, OSError)) else f"{type(err).__name__}: {err}"
        why = _NO_TIME if pace.is_over else why  # of which torch makes an error of its own
        say(f"not saved while parked, training goes on: {why}")
    finally:
        if not pace.is_over:
            words[W_SAVING] = 0


class OnHost:
    """Gives the tensors of a captured state with their bytes on the host."""

    def __init__(self, torch: Any, kept: Kept) -> None:
        """`kept`: the storages that are moved off the device."""
        self._torch, self._kept = torch, kept
        self._made: Dict[int, Any] = {}
        #: Slabs that are looked into must live as long.
        self._slabs: List[Any] = []
        #: Bytes of all storages seen.
        self.size = 0

    def state(self, thing: Any) -> Any:
        """Return a state with all its tensors on the host; containers are new ones. NotSaved: it cannot be.

        Nothing of it keeps a tensor of the device: the script may let go of its own.
        """
        if self._torch is None:
            return thing
        if isinstance(thing, self._torch.Tensor):
            return self.tensor(thing)
        if isinstance(thing, dict):
            made = copy.copy(thing)  # with what torch keeps beside the items
            for key, value in thing.items():
                made[key] = self.state(value)
            return made
        return type(thing)(map(self.state, thing)) if type(thing) in (list, tuple) else thing

    def tensor(self, tensor: Any) -> Any:
        """Return a tensor with its bytes on the host, itself if they are."""
        torch = self._torch
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            if tensor.device.type != "cpu":
                raise NotSaved(f"a {type(tensor).__name__} stays on the device")
            return tensor
        storage = tensor.untyped_storage()
        moved = self._kept.get(storage._cdata)
        if moved is None and tensor.device.type != "cpu":
            raise NotSaved("its memory stays on the device while it is parked")
        if storage._cdata not in self._made:
            self._made[storage._cdata] = storage if moved is None else self._storage(moved)
            self.size += storage.nbytes() if moved is None else moved.size
        if moved is None:
            return tensor
        if tensor.is_conj() or tensor.is_neg():
            raise NotSaved("a tensor of it is a conjugate or negated view")
        made = torch.empty(0, dtype=tensor.dtype)
        made.set_(self._made[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
        return made.requires_grad_(tensor.requires_grad)

    def _storage(self, moved: Moved) -> Any:
        """Return a storage of exactly these bytes: of a slab torch would save all that is in it."""
        torch, size = self._torch, moved.size
        if len(moved.pieces) == 1:
            import ctypes  # torch has it

            piece = moved.pieces[0]
            self._slabs.append(piece.slab)
            there = (ctypes.c_ubyte * size).from_address(piece.slab.data_ptr() + piece.start)
            return torch.frombuffer(there, dtype=torch.uint8).untyped_storage()
        if size > free_bytes() - SPARE:
            raise NotSaved(f"its {size // MIB} MiB in several pieces want as much of the host's memory again")
        flat, at = torch.empty(size, dtype=torch.uint8, device="cpu"), 0
        for piece in moved.pieces:
            flat[at : at + piece.length].copy_(piece.bytes())
            at += piece.length
        return flat.untyped_storage()


def pickling(torch: Any, kept: Kept) -> Any:
    """Return what torch.save pickles with: it finds tensors within objects of the script's, too."""
    host = OnHost(torch, kept)

    class Pickler(pickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if not isinstance(thing, torch.Tensor):
                return NotImplemented
            made = thing if isinstance(thing, torch.nn.Parameter) else host.tensor(thing)
            return NotImplemented if made is thing else made.__reduce_ex__(2)

    module: Any = type(sys)("gandiva_pickle")
    module.__dict__.update(pickle.__dict__, Pickler=Pickler)
    return module


def check_room(directory: str, size: int) -> None:
    """NotSaved where the file system has less room than ROOM times `size`."""
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if free < ROOM * size:
        left, wanted = free // MIB, f"{ROOM} times {size // MIB}"
        raise NotSaved(f"no space left for a checkpoint in {directory}: {left} MiB, and {wanted} are wanted")
