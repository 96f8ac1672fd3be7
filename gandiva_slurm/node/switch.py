"""Changing hands: carries out the orders to park, freeze, grant and resume, and watches until they are done.

Orders return at once; while any is under way all pages concerned are read every millisecond or so, and
otherwise nothing runs here. Who is to hold what is decided in `slicer`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RESUMING, RUNNING, SUSPENDED, SUSPENDING
from gandiva_slurm.node import behind, leaving, packs, procs, returning
from gandiva_slurm.node.away import Mover
from gandiva_slurm.node.charging import charge, charge_awake, look_at_refusal
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import PATIENCE, PAUSE_QUANTA, Resident
from gandiva_slurm.node.orders import order_run
from gandiva_slurm.node.parkfacts import last_error, park_facts
from gandiva_slurm.node.part import IN, notice
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.slicing.refusal import Refusal

MS = 1_000_000
#: How often pages are read while something moves: at first, after 0.2 s, after 2 s. (epoll counts in ms.)
_PACE = ((200 * MS, 0.0005), (2000 * MS, 0.002))
_SLOW_PACE_S = 0.01
#: A process that has been sent SIGSTOP and does not show it by then sits in the kernel and runs no code of
#: its own.
_STOP_NS = 2000 * MS

log = logging.getLogger(__name__)


class Switcher:
    """Moves gangs between RUNNING and SUSPENDED; `on_change` is called later, when one has arrived."""

    def __init__(self, node: Node, on_change: Callable[[], None]) -> None:
        self._node = node
        self._on_change = on_change
        self._mover = Mover(node)
        self._moving: dict[JobKey, Resident] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Watch what moves, for ever."""
        while True:
            if not self._moving:
                self._wake.clear()
                await self._wake.wait()
            for resident in list(self._moving.values()):
                self._tick(resident)
            await asyncio.sleep(self._pace_s())

    def park(self, resident: Resident) -> None:
        """Order a gang to give its GPUs back: at a boundary, or frozen whole when it comes to none."""
        node, now = self._node, self._node.clock.mono()
        if resident.is_to_freeze():
            self.freeze(resident)
            return
        leaving.order_tier(resident, leaving.is_out(node, resident), behind.is_due(node, resident, now))
        step_ms = self.begin(resident, now)
        wake_by_ns = now + node.settings.max_park_ns
        margins = [group.order_park(now, wake_by_ns) for group in resident.sets]
        node.note("park", resident, now, how="park", world=resident.world, step_ms=step_ms, margin=margins)
        self.follow(resident)

    def freeze(self, resident: Resident, at_once: bool = False) -> None:
        """Stop a gang that holds its GPUs where it is, and let it give them back so.

        `at_once`: without the driver, which might take its memory off the GPU first.
        """
        now = self._node.clock.mono()
        resident.leave.is_saving = resident.is_writing = False
        step_ms = self.begin(resident, now)
        self._node.note("park", resident, now, how="freeze", world=resident.world, step_ms=step_ms, margin=[])
        is_taken = not at_once and self._mover.takes(resident, is_parkable=False)
        resident.away.is_before_freeze = is_taken
        if resident.away.is_before_freeze:
            self.follow(resident)
        else:
            self._stop_where_it_is(resident, now)

    def _stop_where_it_is(self, resident: Resident, now: int) -> None:
        """Orders are taken back first: no rank is left holding for one that was stopped before it came."""
        resident.away.is_before_freeze = False
        for group in resident.sets:
            order_run(group, now, True)
        if resident.refusal.failures and resident.has_client():
            resident.refusal.freeze(now)
        resident.is_refusing = False
        self.stop_processes(resident)
        self.follow(resident)

    def begin(self, resident: Resident, now: int) -> float:
        """Write into the books that a gang is told to park; return its mean step so far, ms."""
        self._node.ledger.order_park(resident.key, self._node.clock.real(now))
        resident.state, resident.ordered_ns = SUSPENDING, now
        if resident.part is not None:
            resident.part.asked_ns = now
        if resident.overrun_from_ns is None:
            resident.overrun_from_ns = now
        resident.look_at_rate(now)
        packs.measure(self._node, now)
        return _ms(_step_ns(resident))

    def grant(self, resident: Resident) -> None:
        """Write into the books that a gang has its GPUs; `go` follows when the books are saved."""
        node, now = self._node, self._node.clock.mono()
        charge_awake(node, resident, now)
        resident.awake_until_ns = 0
        returning.begin(resident)
        node.ledger.begin(resident.key, resident.user, resident.gpus, node.clock.real(now))
        resident.counts.parked_ns += now - resident.since_ns
        resident.state, resident.since_ns, resident.ordered_ns = RESUMING, now, now
        resident.has_begun = True
        resident.charged_ns, resident.overrun_from_ns = now, None
        node.note("grant", resident, now)
        packs.join(node, resident, now)

    def go(self, resident: Resident) -> None:
        """Let a gang that was granted its GPUs run: its order first, so that no old one acts."""
        node, now = self._node, self._node.clock.mono()
        was_stopped = len(resident.stopped)
        if resident.away.is_out:
            # The driver works in the job's own threads; its orders follow when its memory is back.
            self.thaw(resident)
            self.follow(resident)
            return
        for group in resident.sets:
            order_run(group, now, resident.is_frozen)
        self.thaw(resident)
        node.note("resume", resident, now, world=resident.world, thawed=was_stopped)
        self._tick_resuming(resident, now)
        # Where it trains already, those that wait for that are told at the next tick.
        self.follow(resident)

    def stop_processes(self, resident: Resident, only: Iterable[ProcId] | None = None) -> None:
        """Freeze a job that does not hold its GPUs whole, or stop those that have just come to it.

        SIGSTOP is for these, and for a job without a control group: 5,000 processes take seconds.
        """
        if only is None:
            if not resident.is_frozen:
                resident.is_unasked = not resident.has_client()
            resident.is_frozen, resident.stopped_ns = True, self._node.clock.mono()
        resident.stopped |= set(only or ())
        # The guard reads the state file: what is stopped must be there first.
        self._node.save()
        if only is None and not resident.is_trusted and self._node.freezer.shut(resident):
            ours, before = set[ProcId](), set[ProcId]()
        else:
            ours, before = resident.processes.stop(only)
        resident.left_stopped |= before - resident.stopped
        resident.stopped |= ours
        self._node.note("freeze", resident, processes=len(ours), whole=only is None)
        self._node.save()

    def shut(self, resident: Resident) -> None:
        """Freeze all of a job that holds no GPU: its parked ranks, and whatever else it has started.

        Where it has no control group its processes are sent SIGSTOP.
        """
        charge_awake(self._node, resident, self._node.clock.mono())
        resident.awake_until_ns = 0
        runs_on = resident.is_trusted or resident.image.is_in_hand
        if not runs_on and not self._node.freezer.shut(resident) and not resident.is_frozen:
            self.stop_processes(resident, [proc.id for proc in resident.processes.members()])

    def keep_still(self, resident: Resident) -> None:
        """Stop what runs of a job that is halted, whatever has continued or started it."""
        freezer = self._node.freezer
        if freezer.groups(resident):
            if not freezer.stands_still(resident):
                freezer.shut(resident)
            return
        running = [proc.id for proc in resident.processes.members() if not proc.is_stopped]
        if running:
            self.stop_processes(resident, running)

    def wake(self, resident: Resident) -> None:
        """Let a job run that holds no GPU: its ranks stay parked, its handlers of signals have their time."""
        for proc in resident.stopped:
            procs.send(proc, signal.SIGCONT)
        self._node.freezer.open(resident)

    def thaw(self, resident: Resident) -> None:
        """SIGCONT what we have stopped, and let its group run."""
        if not resident.stopped and not resident.is_frozen and not resident.is_shut:
            return
        self.wake(resident)
        self._node.note("thaw", resident, processes=len(resident.stopped))
        resident.stopped, resident.left_stopped, resident.is_frozen = set(), set(), False
        if resident.refusal.is_frozen:
            resident.refusal.thaw(self._node.clock.mono())
            resident.pause_quanta = 0

    def forget(self, resident: Resident) -> None:
        """It moves no more, or is gone."""
        self._moving.pop(resident.key, None)

    def follow(self, resident: Resident) -> None:
        """Watch it until it has arrived."""
        self._moving[resident.key] = resident
        self._wake.set()

    def _pace_s(self) -> float:
        now = self._node.clock.mono()
        newest = max((resident.ordered_ns for resident in self._moving.values()), default=now)
        return next((pace_s for age_ns, pace_s in _PACE if now - newest < age_ns), _SLOW_PACE_S)

    def _tick(self, resident: Resident) -> None:
        now = self._node.clock.mono()
        if resident.is_ending:
            self.forget(resident)
        elif resident.state == SUSPENDING:
            self._tick_suspending(resident, now)
        elif resident.state == RESUMING:
            self._tick_resuming(resident, now)
        notice(resident, now)
        if resident.state not in (SUSPENDING, RESUMING):
            self.forget(resident)
            self._on_change()

    def _tick_suspending(self, resident: Resident, now: int) -> None:
        if resident.part is not None and resident.part.is_released and not resident.halted_ns:
            return
        if resident.is_frozen:
            return self._tick_freezing(resident, now)
        if resident.away.is_before_freeze:
            if not self._mover.takes(resident, is_parkable=False):
                self._stop_where_it_is(resident, now)
            return
        phases = self._advance(resident, now)
        if not phases:
            self._give_up(resident, now, "its ranks are gone")
        elif all(phase == "parked" for phase in phases):
            self._arrived(resident, now)
        elif "running" in phases or "resuming" in phases:
            self._give_up(resident, now, last_error(resident))
        elif leaving.is_late(self._node, resident, now):
            self._out_of_time(resident, now)

    def _tick_freezing(self, resident: Resident, now: int) -> None:
        found = [] if resident.is_shut else [procs.read_proc(proc.pid) for proc in resident.stopped]
        runs = [
            proc for proc in found if proc is not None and proc.id in resident.stopped and not proc.is_stopped
        ]
        is_still = self._node.freezer.stands_still(resident) if resident.is_shut else not runs
        if is_still or now - resident.stopped_ns > _STOP_NS:
            self._arrived(resident, now)

    def _tick_resuming(self, resident: Resident, now: int) -> None:
        if resident.away.is_out:
            if not self._mover.brings(resident):
                resident.ordered_ns = now
                self.go(resident)
            return
        phases = self._advance(resident, now)
        why = returning.failure(resident)
        if why:
            returning.fail(self._node, resident, why, now)
            self.freeze(resident, at_once=True)
            return
        is_late = now - resident.ordered_ns > returning.longest_ns(self._node, resident)
        if is_late:
            # It has had its GPUs for long: what its pages say (or a rank that is kept from writing them) must
            # not pin them to it. It is asked to park like any other; who still saves itself finds the order.
            for group in resident.sets:
                order_run(group, now, True)
                group.gang = None
        if is_late or all(phase == "running" for phase in phases):
            self._running(resident, now)

    def _advance(self, resident: Resident, now: int) -> list[str]:
        """Let each gang's coordinator look at its pages; return the phases of those that have a live rank."""
        phases = []
        for group in resident.sets:
            if not any(group.alive()):
                continue
            gang = group.form()
            if gang.phase not in ("running", "parked"):
                group.apply(gang.tick(group.views(), group.alive(), now))
            phases.append(gang.phase)
        return phases

    def _arrived(self, resident: Resident, now: int) -> None:
        """All here have released. A part of a span keeps its GPUs until all parts have, or it is halted."""
        if resident.part is None or resident.halted_ns:
            is_parked = not resident.is_frozen and not resident.leave.is_saving
            if not (is_parked and self._mover.takes(resident, is_parkable=True)):
                self.give_on(resident)
            return
        resident.part.is_released = True
        self._node.note("released", resident, now, frozen=resident.is_frozen)

    def give_on(self, resident: Resident) -> None:
        """The last rank has released: the GPUs are free from the moment that was seen, not from before."""
        node, counts, now = self._node, resident.counts, self._node.clock.mono()
        fields = park_facts(resident)
        counts.suspends += 1
        counts.reaims += fields["reaims"]
        counts.off_boundary += fields["off_boundary"]
        if not resident.refusal.is_frozen:
            resident.refusal = Refusal()
        park_ns = now - (resident.part.asked_ns if resident.part else resident.ordered_ns)
        node.note("parked", resident, now, **fields, park_ms=_ms(park_ns))
        self.release(resident, now)
        resident.state, resident.since_ns = SUSPENDED, now
        if not behind.begins(node, resident, park_ns, self.shut):
            self.shut(resident)
        leaving.arrive(node, resident, park_ns)
        if resident.part is not None:
            resident.part.leave()

    def release(self, resident: Resident, now: int) -> None:
        """Charge a hold to its end and close it."""
        node, free_ns = self._node, returning.forgive(resident, now)
        charge(node, resident, now)
        packs.leave(node, resident, now)
        hold = node.ledger.end(resident.key, node.clock.real(now - free_ns))
        node.note(
            "release",
            resident,
            now,
            hold=hold.seq,
            held_ms=_ms(hold.t1_ns - hold.t0_ns),
            over_ms=_ms(hold.park_ns),
        )

    def _running(self, resident: Resident, now: int) -> None:
        resident.forget_dead()
        returning.succeed(resident)
        resident.state = RUNNING
        if self._node.ledger.open[resident.key].parked_at_ns:
            # It was told to park and could not: it never gave its GPUs back.
            self._node.ledger.cancel_park(resident.key)
        else:
            resident.since_ns = now
        for group in resident.sets:
            group.set_mark(now)
        resident.look_at_rate(now, is_first=True)
        self._node.note("running", resident, now, resume_ms=_ms(now - resident.ordered_ns))

    def call_back(self, resident: Resident, why: str) -> None:
        """Let a part of a span that was told to park, or has parked, go on: its GPUs were not given on."""
        now = self._node.clock.mono()
        self._count_failure(resident, now, why)
        self._keep(resident, now)
        self.go(resident)
        self._on_change()

    def _give_up(self, resident: Resident, now: int, why: str) -> None:
        """It keeps its GPUs, is charged, and is asked again later; or others have borne that for too long."""
        self._count_failure(resident, now, why)
        if resident.is_refusing and resident.has_client():
            self._stop_where_it_is(resident, now)
            return
        self._keep(resident, now)
        for group in resident.sets:
            order_run(group, now, False)
        self._on_change()

    def _count_failure(self, resident: Resident, now: int, why: str) -> None:
        if leaving.take_failure(self._node, resident, why):
            return
        counts = resident.counts
        counts.failed_parks += 1
        counts.reaims += sum(group.new_reaims() for group in resident.sets)
        charge(self._node, resident, now)
        resident.refusal.fail(why, now)
        look_at_refusal(self._node, resident, now)
        # For the parts of a span it is the controller that has patience.
        is_patient = resident.part is not None or resident.refusal.failures < PATIENCE
        resident.pause_quanta = 1 if is_patient else PAUSE_QUANTA
        self._node.note("unparkable", resident, now, why=why, after_ms=_ms(now - resident.ordered_ns))

    def _keep(self, resident: Resident, now: int) -> None:
        """Its GPUs stay with it."""
        resident.state, resident.ordered_ns = RESUMING, now
        if resident.part is not None:
            resident.part.wish, resident.part.is_released = IN, False

    def _out_of_time(self, resident: Resident, now: int) -> None:
        """Its mini-batch does not end: a lone rank can be frozen in the middle of it, a gang cannot."""
        if resident.is_solo and not resident.leave.is_saving:
            self.stop_processes(resident)
        else:
            self._give_up(resident, now, "no boundary of all its ranks within park_deadline_s")


def _step_ns(resident: Resident) -> int:
    return max((group.step_ns() for group in resident.sets), default=0)


def _ms(ns: int) -> float:
    return round(ns / MS, 3)
