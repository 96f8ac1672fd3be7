"""A node that is cut off: what Slurm may have started elsewhere stands still until that is known (ADR 0048).

Slurm sets a node down that it does not hear for SlurmdTimeout and may start its jobs elsewhere; two
incarnations of one job must not work at once. Where the site asks for it (`isolation: SECONDS`), jobs that
may be requeued are frozen when for so long neither slurmctld nor gandivactld was heard, nor word of them
through another gandivad. They go on when Slurm shows them here, and end when it does not. What cannot be
asked counts as there: a node on which `scontrol` cannot be run is not taken for cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable

from gandiva_slurm.logs import Trouble
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import halting
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.peers import Peers
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.watch import Watcher
from gandiva_slurm.slicing import lease
from gandiva_slurm.slurm.port import SlurmPort
from gandiva_slurm.wire.peer import PeerAnswer

#: Seconds between two questions to slurmctld and other nodes while this node is not heard, and what divides
#: them where a job works on a word of theirs.
LOOK_S, AS_OFTEN = 5.0, 5
#: Where all is well it is tried this often whether slurmctld could be asked, for `gandiva check`.
PROBE_NS = 60_000_000_000
#: Looks without a word (at most a third of the silence) after which a node asks around.
QUIET_LOOKS = 3
#: Slurm keeps a requeued job back for AuthInfo=cred_expire and a second: 11 s at the least (ADR 0003).
KEPT_BACK_NS = 10_000_000_000
#: How exactly a job's time ends; and how long a daemon that starts may ask before it lets one end.
_WATCH_S, _START_S = 0.1, 3.0
#: Looks at Slurm in the time for which a job may work on its word; and how lately a node must have heard
#: Slurm to be asked to look there for this one, in ms.
LOOKS, _HEARS_MS = 3, 5_000
_MS = 1_000_000

log = logging.getLogger(__name__)


class Isolation:
    """Finds out whether this node is heard, and halts jobs where it is not."""

    def __init__(
        self, node: Node, slicer: Slicer, watcher: Watcher, slurm: SlurmPort, look_s: float = LOOK_S
    ) -> None:
        self._node = node
        self._slicer = slicer
        self._watcher = watcher
        self._slurm = slurm
        self._look_s = look_s
        silence_ns = node.settings.isolation_ns
        self.bounds = lease.Bounds(silence_ns, min(KEPT_BACK_NS, silence_ns))
        self._unasked = Trouble(log, "Slurm cannot be asked whether it hears this node", "Slurm can be asked")
        self._shown_ns = 0
        #: slurmctld answered here when it was asked last
        self._is_up = False
        self._is_asked = False
        self._probed_ns = -PROBE_NS
        self._has_asked = asyncio.Event()

    def look_soon(self) -> None:
        """Another node wants to know whom this one hears."""
        self._is_asked = True

    async def ask_for_ever(self, peers: Peers) -> None:
        """Ask around while this node is not heard."""
        while True:
            is_asked, self._is_asked = self._is_asked, False
            if is_asked or any(self._is_quiet(resident) for resident in self._concerned()):
                await self._ask(peers)
            elif self.bounds.silence and self._node.clock.mono() - self._probed_ns >= PROBE_NS:
                await self._ping()
            self._has_asked.set()
            await asyncio.sleep(self._pause_s())

    async def watch_for_ever(self) -> None:
        """Halt each job when its time is over, and let it go on when it may."""
        if not self.bounds.silence:
            await asyncio.Event().wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                await self._has_asked.wait()
        while True:
            self.watch()
            await asyncio.sleep(_WATCH_S)

    def watch(self) -> None:
        """Look at each job's time."""
        now = self._node.clock.mono()
        for resident in self._concerned():
            told = self._told(resident)
            may_work = lease.may_work(told, self.bounds, now)
            if not may_work and not resident.halted_ns:
                why = f"Slurm has not heard this node for {(now - told.heard) // 1_000_000_000} s"
                halting.halt(self._node, self._slicer, resident, why)
            elif may_work and resident.halted_ns:
                halting.go_on(self._node, self._slicer, resident)

    async def _ask(self, peers: Peers) -> None:
        node, begin = self._node, self._node.clock.mono()
        # While slurmctld answers here nobody else is asked; else both at once: words do not hold for long.
        others = _nobody() if self._is_up else peers.ask_all()
        self._is_up, answers = await asyncio.gather(self._ask_slurm(), others)
        for answer in answers:
            for job_id, restart in answer.newer:
                self._end_older(JobKey(job_id, restart), f"{answer.node} knows {job_id}.{restart}")
        if self._is_up:
            return
        if peers.are_all and len(answers) == len(peers.named):
            self._stand_together(max([node.voice_ns, *(begin - a.silent_ms * _MS for a in answers)]), begin)
        hearing = sorted((answer.silent_ms, answer.node) for answer in answers)
        if hearing and hearing[0][0] < _HEARS_MS:
            await self._look_through(peers, hearing[0][1], begin)

    async def _ask_slurm(self) -> bool:
        """True when a slurmctld answers here; note whether it hears this node."""
        node, begin = self._node, self._node.clock.mono()
        is_up = await self._ping()
        if is_up is None:
            self._renew([resident for resident in self._concerned() if not resident.halted_ns], begin)
            return False
        if not is_up:
            return False
        node.voice_ns = node.clock.mono()
        try:
            is_heard = await self._slurm.hears(node.settings.node)
        except GandivaError as err:
            log.debug("slurmctld: %s", err)
            return False
        if is_heard:
            working = [resident for resident in self._concerned() if not resident.halted_ns]
            heard = [r for r in working if lease.was_not_given_up(r.words.heard_ns, self.bounds, begin)]
            self._renew(heard, begin)
        await self._look(begin, is_heard)
        return True

    async def _ping(self) -> bool | None:
        """True when slurmctld answers, False when it does not, None where that cannot be found out."""
        node, self._probed_ns = self._node, self._node.clock.mono()
        is_up = await self._slurm.ping()
        node.unasked = "scontrol ping has no answer" if is_up is None else ""
        if is_up is None:
            self._unasked.begins(f"{node.unasked}; it is taken to be heard")
        else:
            self._unasked.ends()
        return is_up

    async def _look(self, begin: int, is_heard: bool) -> None:
        """Where Slurm does not hear this node, or did not for a while, see what it shows here."""
        is_known = all(resident.words.heard_ns >= begin for resident in self._concerned())
        if is_known or not self._may_look(begin):
            return
        try:
            self._take(await self._slurm.shown(self._node.settings.node), begin, "Slurm")
        except GandivaError as err:
            log.debug("slurmctld: %s", err)
            return
        if is_heard:
            self._renew(self._concerned(), begin)

    def _renew(self, residents: Iterable[Resident], begin: int) -> None:
        for resident in residents:
            resident.words.heard_ns = max(resident.words.heard_ns, begin)

    def _stand_together(self, last_heard: int, begin: int) -> None:
        """All other nodes have answered, and begin nothing newer for a while."""
        for resident in self._concerned():
            if not resident.halted_ns and lease.is_nobodys(resident.words.heard_ns, self.bounds, last_heard):
                resident.words.together_ns = begin

    async def _look_through(self, peers: Peers, name: str, begin: int) -> None:
        if not self._may_look(begin):
            return
        answer = await peers.look_through(name)
        if answer is not None and answer.shown is not None:
            self._take({JobKey(*row) for row in answer.shown}, begin, f"Slurm, asked by {name},")

    def _may_look(self, begin: int) -> bool:
        if begin - self._shown_ns < self.bounds.kept_back // LOOKS:
            return False
        self._shown_ns = begin
        return True

    def _take(self, shown: Collection[JobKey], begin: int, source: str) -> None:
        """Take Slurm's word on which incarnations are on this node."""
        for resident in self._concerned():
            if resident.key in shown:
                resident.words.shown_ns = max(resident.words.shown_ns, begin)
            elif resident.registered_ns < begin:
                self._watcher.abandon(resident, f"{source} does not show it on this node any more")

    def _end_older(self, newest: JobKey, why: str) -> None:
        self._node.know(newest)
        for resident in self._concerned():
            if resident.key.job_id == newest.job_id and resident.key < newest:
                self._watcher.abandon(resident, why)

    def _concerned(self) -> list[Resident]:
        """Jobs that Slurm may start elsewhere, of which something is here; none if nobody asked for it."""
        if not self.bounds.silence:
            return []
        residents = [r for r in self._node.residents.values() if r.is_requeueable and not r.is_ending]
        return [r for r in residents if r.part is None or r.part.has_processes]

    def _told(self, resident: Resident) -> lease.Told:
        words = resident.words
        return lease.Told(words.heard_ns, words.together_ns, words.shown_ns)

    def _is_quiet(self, resident: Resident) -> bool:
        """True when it was not said of late that Slurm hears the node and shows this job here.

        While gandivactld is heard it says all that is known of the jobs in its plan.
        """
        node, now = self._node, self._node.clock.mono()
        quiet_ns = min(round(QUIET_LOOKS * self._look_s * 1e9), self.bounds.silence // 3)
        is_told = resident.is_planned and not resident.halted_ns and now - node.contact_ns < quiet_ns
        return not is_told and now - resident.words.heard_ns >= quiet_ns

    def _pause_s(self) -> float:
        """Shorter while a job works on a word that does not hold for long."""
        now, bounds = self._node.clock.mono(), self.bounds
        works = [resident for resident in self._concerned() if not resident.halted_ns]
        is_near = any(now >= r.words.heard_ns + bounds.silence - bounds.kept_back for r in works)
        is_near = is_near and any(map(self._is_quiet, works))
        return self._look_s / AS_OFTEN if is_near else self._look_s


async def _nobody() -> list[PeerAnswer]:
    return []
