"""What the steps of install-python.py share: lines, sentences, pip and why it failed, free space."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
GB = 10**9
#: What pip says where an index is not reached, or a download broke off.
NO_NETWORK = (
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Max retries",
    "Connection broken",
    "Connection reset",
    "IncompleteRead",
    "incomplete-download",
    "ProtocolError",
    "ProxyError",
    "SSLError",
    "name resolution",
    "DO NOT MATCH THE HASHES",  # a download that was cut, as Debian 12's pip sees it,
    "is invalid.",  # and a wheel that was cut, from an index without hashes
)
GOES_ON = "make setup then goes on from here"


def say(words: str) -> None:
    """A line of progress."""
    print(words, flush=True)


def stop(what: str, then: str, shown: str = "") -> NoReturn:
    """End with a sentence, what and the next step, below the last lines of a program's output."""
    lines = [line for line in shown.splitlines() if line.strip() and "is ignored: it is neither" not in line]
    print("\n".join([*lines[-8:], f"gandiva: {what}", f"gandiva: next: {then}"]), file=sys.stderr, flush=True)
    sys.exit(1)


@contextlib.contextmanager
def step(name: str, words: str) -> Iterator[None]:
    """One line as a step begins, one with the seconds it took."""
    say(f"== {name}: {words}")
    began = time.monotonic()
    yield
    say(f"   {name}: {time.monotonic() - began:.0f} s")


def runs(*command: object) -> bool:
    """True where the command starts and exits with 0."""
    try:
        return subprocess.run([*map(str, command)], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def pip(venv: Path, *words: str, shown: bool = False) -> tuple[bool, str]:
    """Run pip install; whether it went well, and what it said. Shown: on a terminal, as it goes."""
    command = [
        str(venv / "bin/python"),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-compile",
    ]
    retries = os.environ.get("PIP_RETRIES", "0")  # without any, pip does not say why it found nothing
    settings = {"PIP_RETRIES": "3" if retries == "0" else retries, "PIP_ROOT_USER_ACTION": "ignore"}
    environment = {**os.environ, **settings, "LC_ALL": "C.UTF-8"}
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(
            [*command, *words],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if shown and sys.stdout.isatty() else log,
            stderr=log,
            close_fds=False,  # it holds the lock of take_turns
            check=False,
        )
        log.seek(0)
        return done.returncode == 0, log.read()


def unreached(said: str) -> bool:
    """True where pip's words are those of a lost or missing connection."""
    return any(sign in said for sign in NO_NETWORK)


def explain(name: str, wanted: str, said: str) -> NoReturn:
    """End with the reason why pip failed at what was wanted."""
    if unreached(said):
        what = f"pip does not reach its package index, or the connection broke, when it fetched {wanted}"
        then = f"check the network, a proxy and pip's index (pip config list); {GOES_ON}"
    elif "No space left" in said:
        what, then = f"no space was left for {wanted}", f"make room; {GOES_ON}"
    elif "No matching distribution" in said:
        what = f"pip finds no {wanted} for this Python and machine"
        then = (
            "name a PyTorch that an index of yours has: make setup TORCH=... TORCH_INDEX=... (docs/setup.md)"
        )
    else:
        what, then = f"pip failed at {wanted}", f"mend what its last lines above name; {GOES_ON}"
    stop(f"{name}: {what}", then, said)


def room(place: Path) -> tuple[str, int]:
    """The file system that a place is or will be on, and the bytes free there."""
    while not place.exists():
        place = place.parent
    told = subprocess.run(["df", "-Pk", str(place)], stdout=subprocess.PIPE, text=True, check=True).stdout
    cells = told.splitlines()[-1].split(None, 5)
    return cells[5], int(cells[3]) * 1024


def want_room(venv: Path, name: str, download: int, unpacked: int) -> None:
    """Stop where the environment, pip's temporary files or its store have too little space (bytes)."""
    store = Path(os.environ.get("PIP_CACHE_DIR") or "~/.cache/pip").expanduser()
    needs: dict[str, int] = {}
    free: dict[str, int] = {}
    for place, size in ((venv, unpacked), (Path(tempfile.gettempdir()), download), (store, download)):
        mount, free[mount] = room(place)
        needs[mount] = needs.get(mount, 0) + size
    for mount, size in needs.items():
        if free[mount] < size:
            what = f"too little space on {mount}: {free[mount] / GB:.1f} GB free, {size / GB:.1f} GB needed"
            parts = (
                f"{venv.name} takes {unpacked / GB:.1f} GB, pip's files and store {download / GB:.1f} GB each"
            )
            then = "make room, or name other places (VENV=DIR, TMPDIR, PIP_CACHE_DIR), then make setup again"
            stop(f"{name}: {what} ({parts})", then)
