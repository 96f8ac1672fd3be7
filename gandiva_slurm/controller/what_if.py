"""Has a child answer the `--if` of `gandiva when`, for a user may not read what it is answered from.

One at a time, in a process of its own with a bound on its time: gandivactld waits for it beside all else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.wish import NEW_ID, Wish, parse_new

#: How long an answer may take, and how much of it is read.
DEADLINE_S, MOST_BYTES = 9.0, 1 << 20
#: The command, by this very Python.
#: What stands for the number of a job that is not submitted yet.
NEW = "new"
COMMAND = (sys.executable, "-c", "from gandiva_slurm.cli.main import main; main()")


class WhatIf:
    """Asks a forecast with a wish (its `--if`), of this gandiva.yaml."""

    def __init__(self, file: Path, command: tuple[str, ...] = COMMAND) -> None:
        self._words = (*command, "-f", str(file), "forecast", "--if")
        #: whether one is worked out: of a job there is, and of one that is not submitted yet
        self._is_asked = {False: False, True: False}

    async def ask(self, wish: Wish) -> dict[str, Any]:
        """Return what is foretold of a job as it is and as it is wished; GandivaError: nothing is."""
        is_new = wish.what == NEW
        if self._is_asked[is_new]:
            what = "--new" if is_new else "--if"
            raise GandivaError(f"another {what} is being answered; ask again in ten seconds")
        self._is_asked[is_new] = True
        try:
            if is_new:
                return await self._answer(NEW, wish.value)
            return await self._answer(str(wish.job_id), f"{wish.what}={wish.value}")
        finally:
            self._is_asked[is_new] = False

    async def ask_new(self, text: str, uid: int, partition: str) -> dict[str, Any]:
        """Return what is foretold of a job of this user's that is not submitted yet; UsageError: of none."""
        told = {**parse_new(text), "uid": uid, "partition": partition}
        return await self.ask(Wish(NEW_ID, NEW, json.dumps(told)))

    async def _answer(self, job_id: str, wish: str) -> dict[str, Any]:
        pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        words = (*self._words, job_id, wish)
        child = await asyncio.create_subprocess_exec(*words, stdin=none, stdout=pipe, stderr=none)
        assert child.stdout is not None
        try:
            async with asyncio.timeout(DEADLINE_S):
                text = await child.stdout.read(MOST_BYTES)
                while more := await child.stdout.read(MOST_BYTES):
                    text += more
                    if len(text) > MOST_BYTES:
                        raise GandivaError("the answer is too long")
                await child.wait()
            told = dict(json.loads(text))
        except TimeoutError as err:
            raise GandivaError(f"no answer within {DEADLINE_S:g} s: its host is busy; ask again") from err
        except (TypeError, ValueError, RecursionError) as err:
            raise GandivaError("no answer: see `gandiva forecast --once` on gandivactld's host") from err
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        if "error" in told:
            raise GandivaError(str(told["error"]))
        return told
