"""What all parts of `make fuzz` share: mutations drawn by a seed, and the count of what they did.

A case is a text of bytes. What takes it may refuse it by the errors that its documentation names; anything
else that is raised, a second of processor time, and memory or descriptors that grow are findings. Each
finding is written to build/fuzz; one that is mended moves to tests/fuzz/seeds, where a test tries it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import hashlib
import json
import logging
import os
import random
import re
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gandiva_slurm.model.errors import GandivaError
from tests import patience

HERE = Path(__file__).parent
SEEDS = HERE / "seeds"
FOUND = HERE.parents[1] / "build/fuzz"
#: The bound of one case, in processor seconds of a quiet machine; past the second one it is broken off.
SLOW_S, HANG_S = 1.0, 5.0
#: One case may ask for so much more memory than there was: with more, MemoryError is a finding.
MOST_BYTES = 1 << 30
#: What a process may grow by while a part runs: arenas, caches of regular expressions, logs' handlers.
GROWTH_BYTES = 16 << 20
#: And by this number of descriptors: a reader of the ledger that is open at this moment.
GROWTH_FDS = 8
#: After these cases memory is looked at, and what grew is what came since the last of them.
WARM_UP = (0, 20, 2_000)

HOSTILE = (
    0, 1, -1, 2, 255, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63),
    10**40, 10**4000, 0.5, -0.0, 1e308, float("inf"), float("nan"), True, False, None, "", "0", "x" * 300,
    "\x00", "\ud800", "٣", "１", "\u202e", "a\nb", "%n", "../..", "'", [], {}, [[]], [[], [[]]], {"": None},
    [0] * 300, [None], ["x"], [[0, 0]], [[1, 2, 3]],
)  # fmt: skip
#: What is of the right type gets further.
ALIKE: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 2, 3, 7, -1, 99, 1 << 16, 1 << 31, 1 << 32, 1 << 53, (1 << 63) - 1, -(1 << 63), 10**18),
    float: (0, 0.5, -1.0, 1e-300, 1e300, 1e308, -1e300, 2),
    str: (
        "",
        "0",
        "x" * 300,
        "\x00",
        "\ud800",
        "\u202e",
        "RUNNING",
        "SUSPENDED",
        "on",
        "n1",
        "user1",
        "a\nb",
        "'",
    ),
}
#: Bytes that break what reads them: no UTF-8, marks of encodings, control characters, JSON's own.
BAD_BYTES = (
    b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\r\n", b"\n", b"\x1b[2J",
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\u0000", b"\\ud800", b"-", b"1e9999", b"NaN", b" ", b"%",
)  # fmt: skip
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "cp037")
_NUMBER = re.compile(rb"\d+")


class HungError(Exception):
    """One case took more than HANG_S of processor time."""


@dataclass
class Tally:
    """What became of one target's cases."""

    target: str
    cases: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    took_s: float = 0.0
    grown_bytes: int = 0
    grown_fds: int = 0
    #: by place: what was raised there, and the first case that did
    findings: dict[str, bytes] = field(default_factory=dict)

    def told(self) -> str:
        """One line."""
        return (
            f"{self.target}: {self.cases:,} cases, {self.refused:,} refused, {self.took_s:.0f} s, "
            f"slowest {self.slowest_s * 1e3:.0f} ms, "
            f"grown {self.grown_bytes / 2**20:.1f} MiB and {self.grown_fds} descriptors, "
            f"{len(self.findings)} findings" + "".join(f"\n    {place}" for place in self.findings)
        )

    def note(self, place: str, case: bytes) -> None:
        """Keep the first case of each place, in a file too."""
        if place not in self.findings:
            self.findings[place] = case
            FOUND.mkdir(parents=True, exist_ok=True)
            name = hashlib.sha256(case).hexdigest()[:12]
            (FOUND / f"{self.target}.{name}.hex").write_text(case.hex() + "\n")


@dataclass(frozen=True)
class Target:
    """What takes cases: `call` raises one of `allowed` for what it refuses, and nothing else."""

    name: str
    draw: Callable[[random.Random], bytes]
    call: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...] = (GandivaError,)


@dataclass(frozen=True)
class Budget:
    """When a target has had enough: a number of cases, or of seconds."""

    cases: int | None = None
    seconds: float | None = None

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the cases."""
        end_s = None if self.seconds is None else time.monotonic() + self.seconds
        number = 0
        while (self.cases is None or number < self.cases) and (end_s is None or time.monotonic() < end_s):
            yield number
            number += 1


def fuzz(target: Target, chance: random.Random, budget: Budget) -> Tally:
    """Draw and try cases; of a place that raises, the first counts."""
    tally, began_s = Tally(target.name), time.monotonic()
    before = _held()
    with quiet(), bounded():
        for number in budget.numbers():
            case = target.draw(chance)
            _try(target, case, tally)
            if number in WARM_UP:
                before = _held()
    after = _held()
    tally.took_s = time.monotonic() - began_s
    tally.grown_bytes, tally.grown_fds = after[0] - before[0], after[1] - before[1]
    if tally.grown_bytes > GROWTH_BYTES or tally.grown_fds > GROWTH_FDS:
        tally.note("it grew", b"")
    return tally


def _try(target: Target, case: bytes, tally: Tally) -> None:
    tally.cases += 1
    began_s = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
    try:
        target.call(case)
    except target.allowed:
        tally.refused += 1
    except Exception as err:
        tally.note(place_of(err), case)
    took_s = time.process_time() - began_s
    tally.slowest_s = max(tally.slowest_s, took_s)
    if took_s > SLOW_S and took_s > SLOW_S * patience.slowness():
        tally.note(f"took {took_s:.1f} s", case)


def place_of(err: BaseException) -> str:
    """What was raised, and the last line of ours that it came through."""
    frames = traceback.extract_tb(err.__traceback__)
    ours = [frame for frame in frames if "gandiva_slurm" in frame.filename] or frames
    return f"{type(err).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}: {str(err)[:80]!r}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What is refused is told in logs: not here."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Break a case off that takes more than HANG_S of processor time, or MOST_BYTES more memory."""

    def hang(_: int, __: object) -> None:
        raise HungError(f"more than {HANG_S} s")

    former = signal.signal(signal.SIGVTALRM, hang)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


@contextlib.contextmanager
def in_loop() -> Iterator[Callable[[Any], Any]]:
    """Yield what runs a coroutine to its end, always in the same loop."""
    with asyncio.Runner() as runner:
        yield runner.run


def _held() -> tuple[int, int]:
    """Resident bytes and descriptors of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))


# mutations


def mutated(case: bytes, chance: random.Random) -> bytes:
    """Change a text of bytes in one to four ways."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        case = chance.choice(_WAYS)(case, chance)
    return case


def mutated_json(value: Any, chance: random.Random) -> bytes:
    """Change one to three places of a JSON value, then now and then its text."""
    if chance.random() < 0.01:
        return chance.choice((b"[", b'{"a":')) * chance.choice((10, 1500, 100_000))
    value = json.loads(json.dumps(value))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        value = _changed(value, chance)
    text = json.dumps(value, separators=(",", ":")).encode()
    if chance.random() < 0.05:
        text = _repeated_key(text, chance)
    return mutated(text, chance) if chance.random() < 0.15 else text


def _changed(value: Any, chance: random.Random) -> Any:
    """Walk down to one place and put something else there."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        if chance.random() < 0.01:
            return _nested(chance)
        is_alike = chance.random() < 0.6
        return copy.deepcopy(chance.choice(ALIKE.get(type(value), HOSTILE) if is_alike else HOSTILE))
    keys: Sequence[Any] = list(value) if isinstance(value, dict) else range(len(value))
    key = chance.choice(keys)
    way = chance.random()
    if way < 0.05:
        del value[key]
    elif way < 0.1 and isinstance(value, list):
        value.insert(key, value[chance.randrange(len(value))])
    elif way < 0.1:
        value[key] = value[chance.choice(keys)]
    else:
        value[key] = _changed(value[key], chance)
    return value


def _nested(chance: random.Random) -> Any:
    value: Any = []
    for _ in range(chance.choice((10, 100, 300))):
        value = [value]
    return value


def _repeated_key(text: bytes, chance: random.Random) -> bytes:
    keys = re.findall(rb'"(\w+)":', text)
    if not keys:
        return text
    more = b'{"%s":%s,' % (chance.choice(keys), json.dumps(chance.choice(HOSTILE)).encode())
    return text.replace(b"{", more, 1)


def _flip(case: bytes, chance: random.Random) -> bytes:
    if not case:
        return case
    data = bytearray(case)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _cut(case: bytes, chance: random.Random) -> bytes:
    return case[: chance.randrange(len(case) + 1)]


def _doubled(case: bytes, chance: random.Random) -> bytes:
    one, two = sorted(chance.randrange(len(case) + 1) for _ in range(2))
    return case[:two] + case[one:two] * chance.choice((1, 2, 9)) + case[two:]


def _dropped(case: bytes, chance: random.Random) -> bytes:
    one, two = sorted(chance.randrange(len(case) + 1) for _ in range(2))
    return case[:one] + case[two:]


def _put(case: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(case) + 1)
    return case[:at] + chance.choice(BAD_BYTES) * chance.choice((1, 1, 1, 3)) + case[at:]


def _numbered(case: bytes, chance: random.Random) -> bytes:
    found = list(_NUMBER.finditer(case))
    if not found:
        return case
    match = chance.choice(found)
    number = chance.choice(HOSTILE[:15])
    return case[: match.start()] + str(number).encode() + case[match.end() :]


def _encoded(case: bytes, chance: random.Random) -> bytes:
    return case.decode("latin-1").encode(chance.choice(ENCODINGS), errors="replace")


def _deep(case: bytes, chance: random.Random) -> bytes:
    """Brackets within brackets, a few of them deeper than any parser goes down."""
    depth = 100_000 if chance.random() < 0.002 else chance.choice((3, 50, 1500))
    at = chance.randrange(len(case) + 1)
    return case[:at] + chance.choice((b"[", b'{"a":', b"{", b"(")) * depth + case[at:]


_WAYS = (_flip, _flip, _cut, _doubled, _dropped, _put, _put, _numbered, _numbered, _encoded, _deep)
