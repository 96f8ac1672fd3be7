"""Memory that the driver keeps for a job (tier `driver`): it is asked to take it, and to bring it back.

The calls are made by a program of their own (`driver_checkpoint`). Nothing here waits: the switcher asks
again until the answer is there. A job is away from before the driver is asked until it is known to be back.
"""

from __future__ import annotations

import logging
import subprocess
from typing import Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import driver_checkpoint, tiers
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import MOST_FAILURES, Resident
from gandiva_slurm.node.procs import ProcId

#: Past this the driver hangs: the job is treated as if it had been refused, and is not asked of it again.
HANG_NS = 120_000_000_000
#: A job that cannot be brought back is tried again so often.
AGAIN_NS = 1_000_000_000

log = logging.getLogger(__name__)


class Mover:
    """Asks the driver, for all jobs of a node."""

    def __init__(self, node: Node) -> None:
        """Probe the driver where the site wants it."""
        self._node = node
        self._calls: dict[JobKey, tuple[str, subprocess.Popen[str]]] = {}
        is_wanted = node.settings.driver_checkpoint
        self._probe = driver_checkpoint.start("probe", {}) if is_wanted else None
        self._why_not = "" if is_wanted else "node.driver_checkpoint is off"

    def why_not(self) -> str:
        """Say why the driver cannot be used on this node, "" where it can."""
        if self._probe is None:
            return self._why_not
        said = driver_checkpoint.answer(self._probe)
        if said is None:
            return "it has not been found out yet whether this node's driver can"
        self._probe, self._why_not = None, said["why"]
        self._node.events.write("driver", why=self._why_not)
        if self._why_not:
            log.warning("node.driver_checkpoint is on, and the driver cannot do it here: %s", self._why_not)
        return self._why_not

    def takes(self, resident: Resident, is_parkable: bool) -> bool:
        """Let the driver take a job's memory if that is its tier; True while it is at it."""
        away, now = resident.away, self._node.clock.mono()
        if resident.key not in self._calls:
            return away.asked_ns != resident.ordered_ns and self._ask(resident, is_parkable)
        said = self._answer(resident)
        if said is not None:
            self._took(resident, said)
            return False
        if now - resident.ordered_ns <= HANG_NS:
            return True
        away.failures, away.why = MOST_FAILURES, f"it has not returned within {HANG_NS // 10**9} s"
        self._node.note("driver_hangs", resident, now)
        return False

    def brings(self, resident: Resident) -> bool:
        """Let the driver bring a job's memory back; True while it is away."""
        away, now = resident.away, self._node.clock.mono()
        if not away.is_out:
            return False
        if resident.key not in self._calls:
            if now >= away.again_ns:
                self._start("back", resident, {"procs": away.procs, "bytes": away.bytes})
            return True
        is_back = self._calls[resident.key][0] == "back"
        said = self._answer(resident)
        if said is None:
            return True
        if not is_back:
            self._took(resident, said)
            return away.is_out
        away.is_out, away.why, away.again_ns = said["is_out"], said["why"], now + AGAIN_NS
        self._node.note("driver_back", resident, now, why=away.why, is_out=away.is_out)
        self._node.save()
        return away.is_out

    def _ask(self, resident: Resident, is_parkable: bool) -> bool:
        away = resident.away
        away.asked_ns = resident.ordered_ns
        facts = self._facts(resident, is_parkable)
        why = tiers.why_not_driver(facts)
        if why:
            if not away.failed:
                is_missed = self._node.settings.driver_checkpoint and not facts.has_moved
                away.why = why if is_missed else ""
            return False
        members = [proc.id for proc in resident.processes.members()]
        if not members:
            return False
        away.is_out, away.procs, away.bytes = True, members, {}
        # Whoever comes after this daemon finds there what may be away.
        self._node.save()
        self._start("out", resident, {"procs": members, "cgroups": sorted(resident.processes.cgroups)})
        return True

    def _facts(self, resident: Resident, is_parkable: bool) -> tiers.Facts:
        tasks = sum(len(tasks) for tasks in resident.tasks.values())
        return tiers.Facts(
            is_parkable=is_parkable,
            has_ranks=bool(resident.sets),
            processes=resident.world or tasks or 1,
            is_whole=resident.part is None,
            held=tiers.held_bytes(resident),
            driver=self.why_not(),
            failed=resident.away.failed,
        )

    def _took(self, resident: Resident, said: dict[str, Any]) -> None:
        away, why = resident.away, said["why"]
        away.is_out = said["is_out"]
        if "procs" in said:
            away.procs, away.bytes = [ProcId(*proc) for proc in said["procs"]], said["bytes"]
        if not away.failed:  # else it comes late
            # What could not be undone is not risked again.
            away.failures = MOST_FAILURES if why and away.is_out else away.failures + 1 if why else 0
            away.why = why
        self._node.note("driver_out", resident, why=why, is_out=away.is_out, bytes=sum(away.bytes.values()))
        self._node.save()

    def _start(self, what: str, resident: Resident, task: dict[str, Any]) -> None:
        # Nobody asks for the answers of jobs that have ended.
        self._calls = {key: call for key, call in self._calls.items() if key in self._node.residents}
        self._calls[resident.key] = (what, driver_checkpoint.start(what, task))

    def _answer(self, resident: Resident) -> dict[str, Any] | None:
        said = driver_checkpoint.answer(self._calls[resident.key][1])
        if said is not None:
            del self._calls[resident.key]
        return said
