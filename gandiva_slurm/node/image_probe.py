"""The program that `gandiva check --process-images N` makes images of: what it writes is known before.

    python -m gandiva_slurm.node.image_probe FILE [card]

It has what trainings have: PyTorch, where that is here, a second process at the other end of a pipe, as a
loader is, and memory that changes at each step. Line n of FILE is a digest over what the steps before it left
in memory. Where an image lost or doubled anything, the lines after it differ, or the two processes disagree.
With `card` the memory of one of them is a GPU's.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

#: Memory of each of the two processes, and what one step works on, in bytes.
MEMORY, PART = 32 << 20, 128 << 10
#: Upon this it does not end with its parent any more.
OUTLIVES = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1
#: Seconds between two steps.
STEP_S = 0.01


class Memory(Protocol):
    """Bytes, by slices."""

    def __getitem__(self, place: slice) -> bytes | bytearray: ...

    def __setitem__(self, place: slice, data: bytes) -> None: ...


class CardMemory:
    """Memory of the first GPU, by the driver's own calls; RuntimeError where one fails."""

    def __init__(self, data: bytes) -> None:
        """Copy this there."""
        self._driver = ctypes.CDLL("libcuda.so.1")
        context, device, self._at = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(self._at), ctypes.c_size_t(len(data)))
        self[0 : len(data)] = data

    def __getitem__(self, place: slice) -> bytes:
        """Copy from there."""
        size = place.stop - place.start
        data, source = ctypes.create_string_buffer(size), ctypes.c_uint64(self._at.value + place.start)
        self._call("cuMemcpyDtoH_v2", data, source, ctypes.c_size_t(size))
        return data.raw

    def __setitem__(self, place: slice, data: bytes) -> None:
        """Copy there."""
        target = ctypes.c_uint64(self._at.value + place.start)
        self._call("cuMemcpyHtoD_v2", target, ctypes.c_char_p(bytes(data)), ctypes.c_size_t(len(data)))

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name}: error {code}")


def digests(memory_of: Callable[[bytes], Memory] = bytearray) -> Iterator[str]:
    """Yield what each step writes, without end; `memory_of` makes the memory that it works on."""
    memory = memory_of(random.Random(0).randbytes(MEMORY))
    for step in itertools.count():
        place = step * PART % MEMORY
        digest = hashlib.blake2b(memory[place : place + PART] + step.to_bytes(8, "little")).digest()
        memory[place : place + len(digest)] = digest
        yield digest.hex()


def _tell(pipe: int) -> None:
    for digest in digests():
        os.write(pipe, digest.encode())


def main() -> None:
    """Count until killed; end with a sentence where the other process counts differently."""
    libc = ctypes.CDLL(None)
    signal.signal(OUTLIVES, lambda *_: libc.prctl(_PR_SET_PDEATHSIG, 0))
    with contextlib.suppress(ImportError):
        __import__("torch")
    heard, said = os.pipe()
    if os.fork() == 0:
        os.close(heard)
        with contextlib.suppress(BrokenPipeError):
            _tell(said)
        os._exit(0)
    os.close(said)
    with open(heard, "rb") as other, open(sys.argv[1], "a", buffering=1, encoding="ascii") as lines:
        for digest in digests(CardMemory if sys.argv[2:] == ["card"] else bytearray):
            if other.read(len(digest)) != digest.encode():
                sys.exit("the other process counts differently")
            lines.write(f"{digest}\n")
            time.sleep(STEP_S)


if __name__ == "__main__":
    main()
