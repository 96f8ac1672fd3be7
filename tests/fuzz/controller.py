"""Questions of users and reports of nodes, put to a whole gandivactld in this process, among fakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from gandiva_slurm.controller.api import Api
from gandiva_slurm.controller.privacy import read_rules
from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.wire.messages import encode
from tests.controller.fakes import World
from tests.fuzz.kit import Target, mutated, mutated_json
from tests.fuzz.messages import QUESTIONS

ROOT, USER = 0, 1001
#: What a link says of a node whose report was not refused by a sentence of ours.
_RAISED = re.compile(r"^\w*(Error|Exception|Interrupt): ")


def question(chance: random.Random) -> bytes:
    """What a user may ask, by whom first."""
    uid = b"%d\n" % chance.choice((ROOT, USER))
    if chance.random() < 0.2:
        return uid + mutated(json.dumps(chance.choice(QUESTIONS)).encode(), chance)
    return uid + mutated_json(chance.choice(QUESTIONS), chance)


class Asked:
    """A controller with two running jobs, one that waits, and a node whose reports lie."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory, {"n1": 2, "n2": 2})
        self.world.settings["silent_after_s"] = 3600.0
        self.case: bytes | None = None
        self.errors = 0

    async def start(self) -> None:
        """Bring the jobs up; from then on invariants are not asked: a node that lies breaks its own."""
        world, controller = self.world, await self.world.start()
        for _ in range(3):
            world.slurm.submit("user1")
        await world.until(lambda: all(world.lives(job_id) for job_id in world.live()))
        controller.invariants = lambda engine: ()
        node = world.fleet["n1"]
        truth = node.answer
        node.answer = lambda path, payload: truth(path, payload) if self.case is None else self.case  # type: ignore
        self.api = Api(controller, frozenset({ROOT}), lambda: read_rules(world.slurm))
        await self._cycle()

    async def ask(self, case: bytes) -> None:
        """One question; the answer is JSON that says what is wrong with it."""
        uid, _, payload = case.partition(b"\n")
        answer = json.loads(await self.api.answer(payload, int(uid)))
        if not answer["ok"]:
            assert answer["exit"] in (1, 2, 3) and answer["error"], answer
            raise PeerError(answer["error"])

    def report(self, chance: random.Random) -> bytes:
        """The lying node's report of now, changed."""
        return mutated_json(json.loads(encode(self.world.fleet["n1"]._report())), chance)

    async def tell(self, case: bytes) -> None:
        """One report, and the cycle that hears it; then the truth, which the next begins from."""
        link = self.world.controller.nodes["n1"]
        self.case = case
        await link._exchange()
        error = link.error
        self.case = None
        assert not _RAISED.match(error), error
        await self._cycle()
        if error:
            raise PeerError(error)

    async def _cycle(self) -> None:
        controller = self.world.controller
        wanted = controller.status.cycle + 2
        while controller.status.cycle < wanted:
            controller._news.set()
            await asyncio.sleep(0.001)
        errors, self.errors = controller.status.errors - self.errors, controller.status.errors
        assert not errors, controller.status.last_error


@contextlib.asynccontextmanager
async def _started(directory: Path) -> AsyncIterator[Asked]:
    asked = Asked(directory)
    try:
        await asked.start()
        yield asked
    finally:
        await asked.world.kill()
        asked.api._readers.shutdown()


@contextlib.contextmanager
def targets(directory: Path) -> Iterator[tuple[Target, ...]]:
    """Yield what takes questions and reports."""
    with asyncio.Runner() as runner:
        started: Any = _started(directory)
        asked = runner.run(started.__aenter__())
        try:
            yield (
                Target("question", question, lambda case: runner.run(asked.ask(case))),
                Target("told", asked.report, lambda case: runner.run(asked.tell(case))),
            )
        finally:
            runner.run(started.__aexit__(None, None, None))
