"""Has other processes answer `--if` and `--new` of `gandiva when`: a user may not read what they read.

`--if` is answered by a child with a bound on its time, one at a time; `--new`, for which somebody waits at
sbatch, by `gandiva forecast` at its socket, and by such a child where that does not run. gandivactld waits
beside all else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from gandiva_slurm.controller.foretold import SOCKET_NAME
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.wish import Wish, parse_new
from gandiva_slurm.slurm.run import end

#: How long an answer may take, and how much of it is read.
DEADLINE_S, MOST_BYTES = 9.0, 1 << 20
#: The same of one of a job that is not submitted yet: sbatch does not wait as long.
NEW_S = 2.0
#: So many questions of a user's wait for each other; one more is refused.
MOST_NEW = 4
#: What stands for the number of a job that is not submitted yet.
NEW = "new"
#: The command, by this very Python.
COMMAND = (sys.executable, "-c", "from gandiva_slurm.cli.main import main; main()")


class WhatIf:
    """Asks what would be, by this gandiva.yaml and its state_dir."""

    def __init__(self, file: Path, folder: Path, command: tuple[str, ...] = COMMAND) -> None:
        self._words = (*command, "-f", str(file), "forecast", "--if")
        self._socket = folder / SOCKET_NAME
        self._is_asked = False
        #: the turns of users who ask of jobs that are not submitted yet, and how many questions want one
        self._turns: dict[int, tuple[asyncio.Lock, int]] = {}

    async def ask(self, wish: Wish) -> dict[str, Any]:
        """Return what is foretold of a job as it is and as it is wished; GandivaError: nothing is."""
        return await self._by_child(str(wish.job_id), f"{wish.what}={wish.value}")

    async def ask_new(self, text: str, uid: int, partition: str) -> dict[str, Any]:
        """Return what is foretold of a job of this user's that is not submitted yet; UsageError: of none.

        One of a user's at a time, lest one who asks without end keep others from their answers.
        """
        told: dict[str, Any] = {**parse_new(text), "uid": uid, "partition": partition}
        async with self._turn_of(uid):
            try:
                return await self._by_socket(told)
            except (FileNotFoundError, ConnectionRefusedError):
                return await self._by_child(NEW, json.dumps(told))

    @contextlib.asynccontextmanager
    async def _turn_of(self, uid: int) -> AsyncIterator[None]:
        turn, wanted = self._turns.get(uid, (asyncio.Lock(), 0))
        if wanted == MOST_NEW:
            why = f"{MOST_NEW} other --new of yours wait for their answers"
            raise GandivaError(f"{why}; ask again in a moment")
        self._turns[uid] = turn, wanted + 1
        try:
            async with turn:
                yield
        finally:
            _, wanted = self._turns.pop(uid)
            if wanted > 1:
                self._turns[uid] = turn, wanted - 1

    async def _by_socket(self, told: Mapping[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(NEW_S):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=MOST_BYTES)
                try:
                    writer.write(json.dumps(told).encode() + b"\n")
                    return _read(await reader.readline())
                finally:
                    writer.close()
        except TimeoutError as err:
            raise GandivaError(f"no answer within {NEW_S:g} s: its host is busy; ask again") from err
        except (ConnectionResetError, BrokenPipeError, ValueError) as err:
            raise GandivaError("no answer of `gandiva forecast`; ask again") from err

    async def _by_child(self, job_id: str, wish: str) -> dict[str, Any]:
        """Have a child of gandivactld's answer; GandivaError where one is at work already."""
        if self._is_asked:
            raise GandivaError("another --if is being answered; ask again in ten seconds")
        self._is_asked = True
        try:
            return await self._of_child(job_id, wish)
        finally:
            self._is_asked = False

    async def _of_child(self, job_id: str, wish: str) -> dict[str, Any]:
        pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        words = (*self._words, job_id, wish)
        child = await asyncio.create_subprocess_exec(
            *words, stdin=none, stdout=pipe, stderr=none, start_new_session=True
        )
        assert child.stdout is not None
        try:
            async with asyncio.timeout(DEADLINE_S):
                text = await child.stdout.read(MOST_BYTES)
                while more := await child.stdout.read(MOST_BYTES):
                    text += more
                    if len(text) > MOST_BYTES:
                        raise GandivaError("the answer is too long")
                await child.wait()
            return _read(text)
        except TimeoutError as err:
            raise GandivaError(f"no answer within {DEADLINE_S:g} s: its host is busy; ask again") from err
        finally:
            await end(child, child.stdout)


def _read(text: bytes) -> dict[str, Any]:
    """Read an answer; GandivaError is what it says is wrong, or that it is none."""
    try:
        told = dict(json.loads(text))
    except (TypeError, ValueError, RecursionError) as err:
        raise GandivaError("no answer: see `gandiva forecast --once` on gandivactld's host") from err
    if "error" in told:
        raise GandivaError(str(told["error"]))
    return told
