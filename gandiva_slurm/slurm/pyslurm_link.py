"""The way to pyslurm: a worker process with a deadline on each call (`pyslurm_worker.py` tells why)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.slurm.run import Commands, drain, end, error_of, one_line

WORKER = Path(__file__).with_name("pyslurm_worker.py")
#: Lines of a worker's standard error that are kept: its last words.
LAST_WORDS = 5
#: What the worker said before it died is waited for so long.
WORDS_S = 1.0


class Worker:
    """One worker process, started at the first call, ended when a call is late or is given up.

    Calls come one at a time: a second one waits, within its own deadline.
    """

    #: -P: else the worker's own directory, with names such as `run` and `options`, came first.
    argv: tuple[str, ...] = (sys.executable, "-P", str(WORKER))

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        self._listener: asyncio.Task[None] | None = None

    async def call(self, name: str, *arguments: Any, timeout_s: float) -> Any:
        """Return pyslurm's answer; SlurmRefused has Slurm's word, SlurmUnreachable: late or broken."""
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                answer = await self.ask(name, arguments)
        except TimeoutError as err:
            text = f"pyslurm {name}: no answer within {timeout_s:g} s; is slurmctld up? (scontrol ping)"
            raise SlurmUnreachable(text) from err
        if "refused" in answer:
            raise error_of(f"pyslurm {name}", answer["refused"])
        if "fault" in answer:
            raise SlurmUnreachable(f"pyslurm {answer['fault']}; {CURE}")
        return answer["value"]

    async def close(self) -> None:
        """End the worker, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            await end(process, process.stdout)
        if self._listener is not None:
            await asyncio.wait({self._listener}, timeout=WORDS_S)
            self._listener.cancel()

    async def ask(self, name: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Return the worker's answer as it came; SlurmUnreachable when it died over it."""
        try:
            process = await self._started()
            body = json.dumps([name, arguments]).encode()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(len(body).to_bytes(4, "big") + body)
            await process.stdin.drain()
            head = await process.stdout.readexactly(4)
            answer: dict[str, Any] = json.loads(await process.stdout.readexactly(int.from_bytes(head, "big")))
            return answer
        except (EOFError, ConnectionError) as err:
            raise SlurmUnreachable(f"pyslurm {name}: {await self._obituary()}; {CURE}") from err
        except BaseException:
            # Late, or given up: its answer would be taken for the next question's.
            await asyncio.shield(self.close())
            raise

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await self._commands.open(self.argv, stdin=asyncio.subprocess.PIPE)
            self._words.clear()
            self._listener = asyncio.create_task(self._listen(self._process))
        return self._process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with contextlib.suppress(ValueError):  # a line without end
            async for line in process.stderr:
                self._words.append(one_line(line.decode("utf-8", "replace")))
        await drain(process.stderr)

    async def _obituary(self) -> str:
        process, self._process = self._process, None
        assert process is not None
        await end(process, process.stdout)
        rc = process.returncode or 0
        if self._listener is not None:
            await asyncio.wait({self._listener}, timeout=WORDS_S)
        ended = f"was killed by signal {-rc}" if rc < 0 else f"ended with exit code {rc}"
        said = "; ".join(filter(None, self._words))
        return f"its process {ended}" + (f" and said: {said}" if said else "")


#: What to do when pyslurm itself is at fault.
CURE = (
    "is it built for this Slurm (docs/pyslurm.md)? `slurm: {backend: commands}` in gandiva.yaml does without"
)
