"""What a guaranteed job's step takes beside an opportunistic one with a duty, on a played GPU.

    python -m tests.bench.beside [ROUNDS]

A kernel is half a millisecond of sleep with the GPU to itself; two processes that want it take turns,
kernel by kernel. Processors are hardly needed, so that others' load says little. The rest is real: torch's
modules and its backward, the client's hooks and pauses. Modes take turns; a row for each is printed.
"""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gandiva_slurm.client import in_step, sharing
from gandiva_slurm.wire import page

#: How the guest is held back: it is not there, not at all, by pauses between its steps, or within them too.
MODES = (("alone", 0), ("free", 100), ("between", 10), ("within", 10), ("between", 25), ("within", 25))
ROUND_S, WARM_S = 20.0, 6.0
KERNEL_S, LOOK_S = 5e-4, 2e-5
#: Layers of a step: one kernel forward and one backward each.
HOST_LAYERS, GUEST_LAYERS = 20, 300


class Gpu:
    """A GPU of two processes, by Peterson's algorithm in a file: the one that waits is next."""

    def __init__(self, path: Path, me: int) -> None:
        with open(path, "r+b") as file:
            self._words, self._me = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q"), me

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have the GPU."""
        words, me, other = self._words, self._me, 1 - self._me
        words[me], words[2] = 1, other
        while words[other] and words[2] == other:
            time.sleep(LOOK_S)
        try:
            yield
        finally:
            words[me] = 0


class Kernel(torch.autograd.Function):
    """Does nothing, for as long as a kernel takes."""

    @staticmethod
    def forward(ctx: Any, x: Any, gpu: Gpu) -> Any:
        ctx.gpu = gpu
        with gpu.held():
            time.sleep(KERNEL_S)
        return x + 1

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with ctx.gpu.held():
            time.sleep(KERNEL_S)
        return grads[0], None


class Layer(nn.Module):
    """One kernel each way."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    def forward(self, x: Any) -> Any:
        return Kernel.apply(x, self._gpu)


def steps(path: Path, me: int, layers: int) -> Iterator[None]:
    """Train for ever; come up after each step."""
    model = nn.Sequential(*[Layer(Gpu(path, me)) for _ in range(layers)])
    weight = nn.Parameter(torch.zeros(4))
    while True:
        model(weight * 2).sum().backward()
        yield


def guest(path: Path, mode: str, duty: int) -> None:
    """Train with long steps at a duty; say when each has ended."""
    if mode == "between":
        in_step.Layers.watch = lambda self: None  # type: ignore[method-assign]
    words = memoryview(bytearray(page.PAGE_BYTES)).cast("Q")
    words[page.W_AT], words[page.W_THROTTLE] = page.NEVER, duty
    words[page.W_BEAT] = time.monotonic_ns() + 10**12
    share = sharing.Share(words)
    for _ in steps(path, 1, GUEST_LAYERS):
        share.heed()
        print(time.monotonic(), flush=True)


def host(path: Path, seconds: float) -> list[float]:
    """Train with short steps for so long; return what each took, ms."""
    took, began = [], time.monotonic()
    end = began + seconds
    for _ in steps(path, 0, HOST_LAYERS):
        now = time.monotonic()
        took.append(1e3 * (now - began))
        began = now
        if now > end:
            break
    return took


def measure(path: Path, mode: str, duty: int) -> tuple[list[float], int]:
    """Return what the host's steps took beside such a guest, and how many the guest did meanwhile."""
    path.write_bytes(bytes(4096))
    if mode == "alone":
        return host(path, ROUND_S), 0
    argv = [sys.executable, "-m", "tests.bench.beside", "guest", str(path), mode, str(duty)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            host(path, WARM_S)
            began = time.monotonic()
            took, ended = host(path, ROUND_S), time.monotonic()
        finally:
            other.kill()
        done = [float(line) for line in other.stdout.read().split()]
    return took, sum(began < at <= ended for at in done)


def main() -> None:
    """Measure all modes in turns."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    took: dict[tuple[str, int], list[float]] = {mode: [] for mode in MODES}
    done = dict.fromkeys(MODES, 0)
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(rounds):
            for mode in MODES:
                some, count = measure(Path(file.name), *mode)
                took[mode] += some
                done[mode] += count
    print("| the guest's pauses, its duty | step p50, ms | p99 | mean | the guest's steps a minute |")
    print("|---|---|---|---|---|")
    for (mode, duty), each in took.items():
        each.sort()
        told = f"{each[len(each) // 2]:.1f} | {each[len(each) * 99 // 100]:.1f} | {sum(each) / len(each):.1f}"
        print(f"| {mode}, {duty} % | {told} | {done[mode, duty] * 60 / ROUND_S / rounds:.1f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["guest"]:
        guest(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    main()
