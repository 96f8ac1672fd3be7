"""What arrives on the node's socket: a task's BIND line and a rank's hello, parsed and bounded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey

#: The longest line accepted, BIND with its slot lists included.
MAX_LINE = 4096
#: More ranks than this on one node are a mistake or mischief.
MAX_WORLD = 1 << 16
_MAX_TEXT = 256
_MOST = 1 << 31
_STEP_WORDS = ("batch", "interactive", "extern")


@dataclass(frozen=True)
class Bind:
    """A task that Slurm starts, before its program runs. Empty slot lists: Slurm named none.

    `has_gpus` is False in a step that Slurm gave no GPU (`srun --gres=none`).
    """

    key: JobKey
    step: str
    task: int
    job_slots: tuple[int, ...]
    step_slots: tuple[int, ...]
    has_gpus: bool = True

    @property
    def is_numbered_step(self) -> bool:
        """True for a task of srun: it is expected to train."""
        return self.step.isdigit()


@dataclass(frozen=True)
class Hello:
    """A process at its first mini-batch boundary; all of it is its own word."""

    rank: int
    world: int
    master: str
    backend: str
    torch: str
    kind: int


def parse_bind(line: bytes) -> Bind:
    """Read `BIND version job restart step task job-slots step-slots`; PeerError when it is something else.

    Both versions say the same; a plugin that speaks version 2 knows the answer LATER, and asks again.
    """
    words = line.decode("ascii", errors="replace").split()
    if len(words) != 8 or words[0] != "BIND" or words[1] not in ("1", "2"):
        raise PeerError(f"not a BIND line of version 1 or 2: {words[:2]}; update SPANK plugin or gandivad")
    job, restart, step, task = words[2:6]
    if not (step.isdigit() or step in _STEP_WORDS):
        raise PeerError(f"BIND names step {step!r}; expected a number or one of {', '.join(_STEP_WORDS)}")
    try:
        key = JobKey(_natural(job), _natural(restart))
        return Bind(key, step, _natural(task), _slots(words[6]), _slots(words[7]), words[7] != "none")
    except ValueError as err:
        raise PeerError(f"BIND has a field that is no number: {err}") from err


def parse_task(line: bytes) -> int:
    """Read `TASK uid`, root's word whose task this process becomes; PeerError when it is something else."""
    words = line.decode("ascii", errors="replace").split()
    try:
        if len(words) != 2 or words[0] != "TASK":
            raise ValueError(words[:1])
        return _natural(words[1])
    except ValueError as err:
        raise PeerError("not a TASK line with a uid; update SPANK plugin or gandivad") from err


def parse_hello(line: bytes) -> Hello:
    """Read a rank's hello; PeerError when it is something else."""
    raw = parse_object(line)
    if raw.get("hello") != 1:
        raise PeerError("not a hello of version 1; update gandiva_slurm in the job or gandivad")
    rank, world = _int(raw, "rank"), _int(raw, "world")
    if not 0 <= rank < world <= MAX_WORLD:
        raise PeerError(f"rank {rank} of {world} is impossible")
    return Hello(
        rank, world, _text(raw, "master"), _text(raw, "backend"), _text(raw, "torch"), _int(raw, "kind")
    )


def parse_object(line: bytes) -> dict[str, Any]:
    """Read one JSON object."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise PeerError("not JSON") from err
    if not isinstance(raw, dict):
        raise PeerError("not a JSON object")
    return raw


def _natural(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 32:
        raise ValueError(text)
    return number


def _slots(text: str) -> tuple[int, ...]:
    return () if text in ("-", "none") else tuple(sorted({_natural(part) for part in text.split(",")}))


def _int(raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if type(value) is not int or not -_MOST <= value < _MOST:
        raise PeerError(f"hello: {name} is no number of 32 bits")
    return value


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name, "")
    if not isinstance(value, str):
        raise PeerError(f"hello: {name} is no text")
    return "".join(char if char.isprintable() else " " for char in value[:_MAX_TEXT])
