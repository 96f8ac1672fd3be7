"""Running Slurm's commands: the only place of this package that starts a process.

Argument vectors only, never a shell; the C locale; ISO times; a deadline on each call, after which the
command and its children are killed. Nothing secret is ever an argument: munge signs by the caller's uid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gandiva_slurm.model.errors import GandivaError, SlurmBusy, SlurmRefused, SlurmUnreachable

A = TypeVar("A")
B = TypeVar("B")

#: What Slurm's commands see besides the daemon's own environment. SLURM_BITSTR_LEN=0 keeps them from
#: cutting the task list of a job array after 64 characters; compact JSON is two thirds as long (23.11 on).
ENVIRONMENT = {
    "LC_ALL": "C",
    "SLURM_TIME_FORMAT": "standard",
    "SLURM_BITSTR_LEN": "0",
    "SLURM_JSON": "compact",
}
#: Variables that would change what the commands print.
UNWANTED_PREFIXES = ("SQUEUE_", "SINFO_", "SLURM_CLUSTERS")
#: Most commands running at once; slurmctld serves them one lock at a time anyway.
MAX_CONCURRENT = 8

#: Slurm's sentences (slurm_errno.c, 22.05 .. 26.05) that mean: nobody answered.
UNREACHABLE = (
    "Unable to contact slurm controller",
    "Unexpected message received",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Connection timed out",
    "in standby mode",
    "Communication connection failure",
    "Communication shutdown failure",
    "Message receive failure",
    "Message send failure",
)
#: What is ended is waited for so long: one that hangs in the kernel ends when that lets it.
END_S = 5.0
#: Slurm's sentences that mean: the same call may be granted a moment later.
_BUSY = ("try again", "Resource temporarily unavailable", "Transport endpoint", "back off")


@dataclass(frozen=True)
class Answer:
    """What a command said; `err` is one line."""

    rc: int
    out: str
    err: str


class Commands:
    """Runs Slurm's commands, behind `prefix` where the cluster lies in other namespaces (gandiva mini)."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = tuple(prefix)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def run(self, argv: Sequence[str], timeout_s: float) -> Answer:
        """Run one command to its end; SlurmUnreachable when it is missing or takes longer than this."""
        async with self._slots:
            process = await self.open(argv, stdin=asyncio.subprocess.DEVNULL)
            return await _finish(process, argv, timeout_s)

    async def open(self, argv: Sequence[str], stdin: int) -> asyncio.subprocess.Process:
        """Start a process in a group of its own and return it; SlurmUnreachable when it cannot be started."""
        try:
            return await asyncio.create_subprocess_exec(
                *self._prefix,
                *argv,
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(os.environ),
                start_new_session=True,
            )
        except OSError as err:
            text = f"{argv[0]}: {err.strerror}; are Slurm's commands on the PATH of this daemon?"
            raise SlurmUnreachable(text) from err

    async def output(self, argv: Sequence[str], timeout_s: float) -> str:
        """Run one command and return what it printed; a failure raises what `complaint` makes of it."""
        answer = await self.run(argv, timeout_s)
        if answer.rc != 0:
            raise complaint(argv, answer)
        return answer.out


async def together(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """Wait for both, also when one fails: no command outlives its call. Then raise the first failure."""
    one, other = await asyncio.gather(first, second, return_exceptions=True)
    if isinstance(one, BaseException):
        raise one
    if isinstance(other, BaseException):
        raise other
    return one, other


def environment(base: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's commands: the daemon's own, less what would change their output."""
    kept = {key: value for key, value in base.items() if not key.startswith(UNWANTED_PREFIXES)}
    return kept | ENVIRONMENT


def complaint(argv: Sequence[str], answer: Answer) -> GandivaError:
    """Return the error for a command that failed: who was asked, and Slurm's own sentence."""
    sentence = answer.err or one_line(answer.out) or f"exit code {answer.rc} and no word"
    return error_of(" ".join(argv[:3]), sentence)


def error_of(asked: str, sentence: str) -> GandivaError:
    """Return the error that Slurm's own sentence means."""
    text = f"{asked}: {sentence}"
    if any(words in sentence for words in UNREACHABLE):
        return SlurmUnreachable(text)
    if any(words in sentence for words in _BUSY):
        return SlurmBusy(text)
    return SlurmRefused(text)


def one_line(text: str) -> str:
    """Return text on one line and printable, without the names Slurm's commands put in front."""
    lines = (line.strip().removeprefix("scontrol: error: ") for line in text.splitlines())
    return "".join(char for char in "; ".join(filter(None, lines)) if char.isprintable())


async def _finish(process: asyncio.subprocess.Process, argv: Sequence[str], timeout_s: float) -> Answer:
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except BaseException as error:
        await end(process, process.stdout, process.stderr)
        if isinstance(error, TimeoutError):
            text = f"{' '.join(argv[:3])}: no answer within {timeout_s:g} s; is slurmctld up? (scontrol ping)"
            raise SlurmUnreachable(text) from error
        raise
    return Answer(process.returncode or 0, _text(out), one_line(_text(err)))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


async def end(process: asyncio.subprocess.Process, *streams: asyncio.StreamReader | None) -> None:
    """End a process that leads its group, and its children, now; wait for that, within END_S.

    `streams`: what nobody else reads of it. What is still in them is thrown away, for asyncio tells of no end
    before all has been read, and reads no more than a reader takes.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await asyncio.gather(*(drain(stream) for stream in streams if stream is not None))
            await process.wait()


async def drain(stream: asyncio.StreamReader) -> None:
    """Read a stream to its end, and keep nothing."""
    while await stream.read(1 << 16):
        pass
