"""The program that `gandiva check --process-images N` makes images of: what it writes is known before.

    python -m gandiva_slurm.node.image_probe FILE

It has what trainings have: PyTorch, where that is here, a second process at the other end of a pipe, as a
loader is, and memory that changes at each step. Line n of FILE is a digest over what the steps before it left
in memory. Where an image lost or doubled anything, the lines after it differ, or the two processes disagree.
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
from collections.abc import Iterator

#: Memory of each of the two processes, and what one step works on, in bytes.
MEMORY, PART = 32 << 20, 128 << 10
#: Upon this it does not end with its parent any more.
OUTLIVES = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1
#: Seconds between two steps.
STEP_S = 0.01


def digests() -> Iterator[str]:
    """Yield what each step writes, without end."""
    memory = bytearray(random.Random(0).randbytes(MEMORY))
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
        for digest in digests():
            if other.read(len(digest)) != digest.encode():
                sys.exit("the other process counts differently")
            lines.write(f"{digest}\n")
            time.sleep(STEP_S)


if __name__ == "__main__":
    main()
