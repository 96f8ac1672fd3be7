"""Other gandivads: asked while this node hears neither gandivactld nor slurmctld, answered when they do not.

A node asks those that its plan names (`controller.peers.peers_of`), all at once, each with a deadline; one of
those that hear Slurm is then asked to look there on its behalf.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.node.context import Node
from gandiva_slurm.slurm.port import SlurmPort
from gandiva_slurm.wire import http
from gandiva_slurm.wire.auth import Signer
from gandiva_slurm.wire.messages import encode
from gandiva_slurm.wire.peer import PEER_PATH, PeerAnswer, PeerQuestion, decode_peer_answer, decode_question

#: How long another node may take to say what it knows, and how long to look at Slurm as well.
ASK_S, LOOK_S = 2.0, 5.0
#: The longest that a newer incarnation is held back for another node.
LONGEST_MS = 10_000
_MS = 1_000_000

log = logging.getLogger(__name__)


class Peers:
    """The way to the other gandivads of a node's plan."""

    def __init__(
        self, node: Node, signer: Signer, session: aiohttp.ClientSession, kept_back_ns: int
    ) -> None:
        """`kept_back_ns`: for how long a job may work on their word."""
        self._node = node
        self._works_ms = kept_back_ns // _MS
        self._signer = signer
        self._session = session

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """Those that the plan names: (node, host:port)."""
        return () if self._node.plan is None else self._node.plan.peers

    @property
    def are_all(self) -> bool:
        """True when there are no others."""
        return self._node.plan is not None and self._node.plan.are_all_peers

    async def ask_all(self) -> list[PeerAnswer]:
        """Ask each what it knows; return the answers of those that gave one."""
        told = await asyncio.gather(*(self._ask(*peer, asks_slurm=False) for peer in self.named))
        return [answer for answer in told if answer is not None]

    async def look_through(self, name: str) -> PeerAnswer | None:
        """Have this one look at Slurm; None when it did not answer in time."""
        return await self._ask(name, dict(self.named)[name], asks_slurm=True)

    async def _ask(self, name: str, address: str, asks_slurm: bool) -> PeerAnswer | None:
        node = self._node
        jobs = tuple((key.job_id, key.restart) for key in node.residents)
        payload = encode(PeerQuestion(node.settings.node, jobs, self._works_ms, asks_slurm))
        url, timeout_s = f"http://{address}{PEER_PATH}", LOOK_S if asks_slurm else ASK_S
        uids = node.settings.obeyed_uids
        try:
            body = await http.post(self._session, url, self._signer, payload, timeout_s, uids)
            answer = decode_peer_answer(body)
        except GandivaError as err:
            log.debug("node %s: %s", name, err)
            return None
        return answer if answer.node == name else None


class Helper:
    """Answers other nodes. `look` has this node find out soon whom it hears itself."""

    def __init__(self, node: Node, slurm: SlurmPort, look: Callable[[], None]) -> None:
        self._node = node
        self._slurm = slurm
        self._look = look
        self._looks = asyncio.Lock()

    async def answer(self, payload: bytes) -> bytes:
        """Say what this node knows of another's jobs, and what Slurm shows there if that was asked."""
        question, node = decode_question(payload), self._node
        self._look()
        shown = await self._shown(question.node) if question.asks_slurm else None
        older = [job_id for job_id, restart in question.jobs if self._is_newer(job_id, restart)]
        self._promise(question)
        silent_ms = (node.clock.mono() - node.voice_ns) // _MS
        newer = tuple((job_id, node.newest[job_id]) for job_id in older)
        return encode(PeerAnswer(node.settings.node, silent_ms, newer, shown))

    def _promise(self, question: PeerQuestion) -> None:
        """Begin nothing newer than what the other node works on for as long as it may go by this answer."""
        node, now = self._node, self._node.clock.mono()
        held_ms = max(0, min(question.works_ms, LONGEST_MS))
        node.promised = {job_id: promise for job_id, promise in node.promised.items() if promise[1] > now}
        for job_id, restart in question.jobs:
            if not self._is_newer(job_id, restart):
                node.promised[job_id] = (restart, now + held_ms * _MS)
        node.save()

    def _is_newer(self, job_id: int, restart: int) -> bool:
        return self._node.newest.get(job_id, restart) > restart

    async def _shown(self, name: str) -> tuple[tuple[int, int], ...] | None:
        """One look at a time: a crowd of nodes that are cut off is not to crowd slurmctld."""
        if self._looks.locked():
            return None
        async with self._looks:
            try:
                found = sorted(await self._slurm.shown(name))
                return tuple((key.job_id, key.restart) for key in found)
            except GandivaError as err:
                log.debug("Slurm was not asked for node %s: %s", name, err)
                return None
