"""Builds the simulated card for the PyTorch that is installed, once: build/card-….so.

`python -m tests.device.build` does so before the tests that want it: they run at low priority.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

SOURCES = sorted((Path(__file__).parent / "src").iterdir())
BUILD = Path(__file__).parents[2] / "build"
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
LIBRARIES = ("-ltorch", "-ltorch_cpu", "-lc10")
#: Longest that the compiler may take: 17 s of a quiet core, 46 s of a slow one, and once, at low priority
#: beside the real floors, more than 240 s.
DEADLINE_S = 900


class CannotBuildError(Exception):
    """There is no compiler, or this PyTorch has no headers."""


def library() -> Path:
    """Return the library, built unless it is there; CannotBuildError says what is missing."""
    compiler, places = compiler_and_places()
    BUILD.mkdir(exist_ok=True)
    made = BUILD / f"card-{_key(compiler)}.so"
    with open(BUILD / "card.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of one run wait for the first
        if not made.exists():
            _compile(compiler, places, made)
    return made


def compiler_and_places() -> tuple[str, list[str]]:
    """Return the compiler, and what it is told to find PyTorch; CannotBuildError says what is missing."""
    torch_dir = Path(torch.__file__).parent
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise CannotBuildError("there is no C++ compiler")
    if not (torch_dir / "include/ATen/core/CachingHostAllocator.h").exists():
        raise CannotBuildError(f"PyTorch {torch.__version__} has no headers here, or older ones")
    include, lib = torch_dir / "include", torch_dir / "lib"
    # As a system's, torch's own headers may warn; our code may not.
    places = ["-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include"), f"-L{lib}"]
    return compiler, [*places, f"-Wl,-rpath,{lib}"]


def _key(compiler: str) -> str:
    """What the library depends on."""
    digest = hashlib.sha256(repr((torch.__version__, sys.version, compiler, FLAGS)).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, places: list[str], made: Path) -> None:
    part = made.with_suffix(".part")
    source = Path(__file__).parent / "src/device.cpp"
    command = [compiler, *FLAGS, *places, str(source), "-o", str(part), *LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, f"the simulated card does not compile:\n{done.stderr[-4000:]}"
    for old in BUILD.glob("card-*.so"):
        old.unlink()
    part.rename(made)


if __name__ == "__main__":
    try:
        library()
    except CannotBuildError as err:
        print(f"card: not built: {err}", file=sys.stderr)
