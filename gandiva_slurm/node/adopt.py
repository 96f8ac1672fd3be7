"""Taking over: a gandivad that starts finds the jobs of the one before it, and disturbs none."""

from __future__ import annotations

import json
import logging
from typing import Any

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RESUMING, SUSPENDED
from gandiva_slurm.node import packs
from gandiva_slurm.node.context import Final, Node
from gandiva_slurm.node.halting import stand_still
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.pages import Page
from gandiva_slurm.node.part import IN
from gandiva_slurm.node.planning import Planning
from gandiva_slurm.node.procs import ProcId, clock_shift_ns
from gandiva_slurm.node.ranks import Rank, RankSet
from gandiva_slurm.node.saved import read_job, read_past
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.watch import Watcher, runs_unasked
from gandiva_slurm.slicing.local import LocalStride
from gandiva_slurm.wire import page as wire
from gandiva_slurm.wire.messages import decode_plan

log = logging.getLogger(__name__)


class Adoption:
    """Rebuilds a node from its state file, its ledger, its pages and /proc."""

    def __init__(self, node: Node, slicer: Slicer, watcher: Watcher, planning: Planning) -> None:
        self._node = node
        self._slicer = slicer
        self._watcher = watcher
        self._planning = planning

    def run(self) -> None:
        """Take over what there is; jobs that ended meanwhile end now, their holds are closed."""
        node, saved = self._node, self._node.saved
        node.freezer.sweep()
        node.devices.sweep()
        if saved is None:
            node.ledger.recover(node.clock.real())
            return
        node.ledger.restore(saved["ledger"], rebooted=not node.is_same_boot)
        if not node.is_same_boot:
            self._after_reboot(saved)
            return
        self._restore_stride(saved["local"])
        node.newest = {int(job_id): restart for job_id, restart in saved["newest"].items()}
        node.ended = {JobKey.parse(key): 0 for key in saved["ended"]}
        node.finals = {JobKey.parse(key): Final(*final) for key, *final in saved.get("finals", [])}
        node.lease_ns = saved.get("lease_ns", 0)
        node.past = read_past(saved.get("past", []))
        for row in saved["jobs"]:
            resident, groups = read_job(row, node.settings.node)
            node.residents[resident.key] = resident
            found = [self._group(resident, group) for group in groups]
            resident.sets = [group for group in found if group.ranks]
            resident.counts.trainings += len(groups) - len(resident.sets)  # how far these were is not known
        self._restore_plan(saved["plan"])
        node.set_gangs()
        packs.settle(node)
        for resident in list(node.residents.values()):
            self._take_over(resident)
        self._slicer.fill()
        node.save()

    def _restore_plan(self, data: dict[str, Any] | None) -> None:
        try:
            if data is not None:
                self._planning.restore(decode_plan(json.dumps(data).encode()))
        except PeerError as err:  # a gandivad of another version wrote it
            log.error("the plan of the last gandivad is not readable (%s); the next one is waited for", err)

    def _restore_stride(self, data: dict[str, Any]) -> None:
        try:
            self._node.local = LocalStride.from_json(data)
        except (KeyError, TypeError, ValueError) as err:
            log.error("the passes of the last gandivad are not readable (%s); all users begin anew", err)

    def _after_reboot(self, saved: dict[str, Any]) -> None:
        """The host was started again.

        Nothing of it lives, and it was last known to hold when this was saved.
        """
        node = self._node
        end_ns = saved["saved_mono_ns"] + saved["offset_ns"]
        for key in list(node.ledger.open):
            node.ledger.end(key, end_ns)
        node.ended = {JobKey.parse(row["key"]): 0 for row in saved["jobs"]}
        node.events.write("reboot", jobs=[row["key"] for row in saved["jobs"]])
        node.save()

    def _group(self, resident: Resident, row: dict[str, Any]) -> RankSet:
        is_part = resident.part is not None
        group = RankSet(row["world"], row["master"], mark=tuple(row["mark"]), is_part=is_part)
        for item in row["ranks"]:
            proc = ProcId(*item["proc"])
            has_images = self._node.settings.image_dir is not None
            shift_ns = clock_shift_ns(proc.pid) if has_images else 0
            page = Page.take_back(proc, item["remote_fd"], resident.key, shift_ns)
            if page is None:
                log.warning(
                    "job %s: rank %d (pid %d) is gone, or its page", resident.key, item["rank"], proc.pid
                )
                continue
            stepd = ProcId(*item["stepd"]) if item["stepd"] else None
            group.ranks[item["rank"]] = Rank(proc, item["rank"], page, stepd, item["remote_fd"])
        return group

    def _take_over(self, resident: Resident) -> None:
        node, now = self._node, self._node.clock.mono()
        holds = resident.key in node.ledger.open
        resident.state = RESUMING if holds else SUSPENDED
        is_by_signals = resident.is_frozen and not resident.is_shut
        node.freezer.adopt(resident)
        runs_unasked(resident)  # a guard may have let it go meanwhile
        if is_by_signals:
            resident.stopped |= resident.processes.stopped_by_us(resident.left_stopped)
        node.note("adopt", resident, now, holds=holds, frozen=resident.is_frozen, ranks=len(resident.ranks))
        for proc in [*resident.processes.stepds, *(rank.proc for rank in resident.ranks)]:
            self._watcher.watch(resident, proc)
        for tasks in resident.tasks.values():
            for proc in tasks:
                self._watcher.watch(resident, proc)
        if holds and resident.part is not None:
            # A part that was told to park, or has parked and not been freed, comes on again.
            resident.part.wish = IN
        if resident.halted_ns:
            stand_still(self._slicer, resident)
        elif holds:
            self._go_on(resident, now)
        elif (resident.stopped or resident.is_frozen) and not resident.image.is_in_hand:
            self._slicer.switcher.stop_processes(
                resident, None if resident.is_frozen else list(resident.stopped)
            )
        is_to_park = not holds and not resident.is_frozen and not resident.halted_ns
        if is_to_park and not self._is_parked(resident, now):
            self._slicer.take_back(resident)
        if resident.state == SUSPENDED and (resident.part is None or resident.is_shut):
            self._slicer.switcher.shut(resident)

    def _go_on(self, resident: Resident, now: int) -> None:
        """It held its GPUs and goes on holding them, whatever it was told last."""
        resident.ordered_ns = now
        self._node.ledger.cancel_park(resident.key)
        for group in resident.sets:
            if group.is_complete() or any(view[wire.W_STATE] != wire.RUN for view in group.views()):
                group.apply(group.form().adopt(group.views(), now))
        self._slicer.switcher.go(resident)

    def _is_parked(self, resident: Resident, now: int) -> bool:
        """True when every rank that is not stopped is parked; such gangs stay parked."""
        for group in resident.sets:
            if all(rank.proc in resident.stopped for rank in group.in_order()):
                continue
            group.form().adopt(group.views(), now)
            if group.form().phase != "parked":
                return False
        return True
