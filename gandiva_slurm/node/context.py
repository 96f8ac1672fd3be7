"""What the parts of gandivad share: its settings, its clock, its books, and the jobs that live here."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.span import HeldTime
from gandiva_slurm.node import cgroups
from gandiva_slurm.node.clock import Clock, host_boot
from gandiva_slurm.node.devices import Devices
from gandiva_slurm.node.events import EventLog
from gandiva_slurm.node.freezer import Freezer
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.ledger import Ledger
from gandiva_slurm.node.nvml import Library
from gandiva_slurm.node.saved import state_of
from gandiva_slurm.node.settings import NodeSettings
from gandiva_slurm.node.store import StateFile
from gandiva_slurm.slicing.local import LocalStride
from gandiva_slurm.wire.messages import NodePlan

#: How often the state file is brought to the disk, at most.
SYNC_S = 5.0

log = logging.getLogger(__name__)


class Stranger(NamedTuple):
    """A process on a GPU that was not given to its job (0: it is in none), and the bytes it has there."""

    gpu: int
    pid: int
    job_id: int
    memory: int


class Final(NamedTuple):
    """How an incarnation stood at its end: as `Resident.stand`, and when that was, in unix time."""

    begun: int
    reached: int
    at_ns: int


@dataclass
class Led:
    """The turn of the controller's policy that this node goes by. Times are monotonic, in ns."""

    #: (epoch, when it was made); the first is of no plan
    turn: tuple[int, int] = (0, 0)
    #: when it is over; None: when there is another
    end_ns: int | None = None
    #: a turn that was over while no next one had come in time
    missed: tuple[int, int] | None = None
    #: until when the node goes by its own stride for that, whatever comes
    alone_until_ns: int = 0


class Node:
    """The state of one node; one thread changes it."""

    def __init__(self, settings: NodeSettings) -> None:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.store = StateFile(settings.state_dir / "state.json")
        self.saved = self.store.load()
        self.is_same_boot = self.saved is not None and self.saved["host_boot"] == host_boot()
        #: the store of images of a former gandivad, where this one has none: until those are put away
        is_off = self.saved is not None and self.is_same_boot and settings.image_dir is None
        self.former_images: str = self.saved.get("image_dir", "") if self.saved and is_off else ""
        name = self.saved.get("freezer") if self.saved and self.is_same_boot else None
        #: what freezes the jobs that hold no GPU
        self.freezer = Freezer(settings.hierarchy, name or f"{settings.node}-{secrets.token_hex(4)}")
        #: what closes other jobs' GPUs to them
        self.devices = Devices(settings.gpu_files, cgroups.hierarchy("devices"), self.freezer.name)
        self.clock = Clock(self.saved["offset_ns"] if self.saved and self.is_same_boot else None)
        self.events = EventLog(settings.state_dir / "events.jsonl", settings.node, self.clock)
        self.ledger = Ledger(settings.state_dir / "holds.jsonl", f"{host_boot()[:8]}-{secrets.token_hex(4)}")
        #: by whom images are begun and used: this node, and this run of its gandivad
        self.images_by = f"{settings.node}@{secrets.token_hex(4)}"
        self.local = LocalStride(0, settings.quantum_ns)
        self.plan: NodePlan | None = None
        #: monotonic time the last plan was taken; the daemon's own start counts as contact
        self.contact_ns = self.clock.mono()
        #: gandivactld or slurmctld was heard here last
        self.voice_ns = self.contact_ns
        #: by job id, an incarnation that another node works on: until when no newer one begins here
        self.promised: dict[int, tuple[int, int]] = self._promised_before()
        #: the controller's turn as it was heard of last
        self.led = Led()
        self.residents: dict[JobKey, Resident] = {}
        #: the highest restart count known of each job id
        self.newest: dict[int, int] = {}
        #: incarnations that ended here, and when that was reported first (monotonic, in ns; 0: not yet)
        self.ended: dict[JobKey, int] = {}
        #: how these stood at their end; where that is not known, nothing
        self.finals: dict[JobKey, Final] = {}
        #: how long spans wait for a round of the controller, 0 before its first
        self.lease_ns = 0
        #: what they had held, and the monotonic time of their end: spans are charged by it elsewhere
        self.past: dict[JobKey, tuple[HeldTime, int]] = {}
        #: NVML, where there is one and it has been loaded
        self.nvml: Library | None = None
        self.strangers: tuple[Stranger, ...] = ()
        #: incarnations of which this node has whole images that others may fetch
        self.images: set[JobKey] = set()
        #: why slurmctld cannot be asked from here; "": it can, or there is no need to
        self.unasked = ""
        #: a job waits for what NVML sees of those that are parked on its GPUs
        self.look_soon = asyncio.Event()
        self._sync: asyncio.TimerHandle | None = None

    def _promised_before(self) -> dict[int, tuple[int, int]]:
        rows = self.saved.get("promised", []) if self.saved is not None and self.is_same_boot else []
        return {job_id: (restart, until_ns) for job_id, restart, until_ns in rows}

    @property
    def gpus(self) -> int:
        """GPUs of this node by the plan; none before the first."""
        return self.local.gpus

    def card_bytes(self, gpu: int) -> int:
        """Return how much memory a GPU has, as the site says, else NVML; 0: not known."""
        if self.settings.card_bytes:
            return self.settings.card_bytes
        cards = self.nvml.cards() if self.nvml is not None else ()
        return cards[gpu] if gpu < len(cards) else 0

    def holders(self) -> list[Resident]:
        """Return the jobs that hold their GPUs."""
        return [resident for resident in self.residents.values() if resident.holds]

    def is_free(self, gpus: Iterable[int], key: JobKey | None = None) -> bool:
        """True when nobody but its mate holds any of these, and none is kept clear for another span."""
        mate = self.local.mate_of(key) if key is not None else None
        held = {gpu for resident in self.holders() if resident.key != mate for gpu in resident.gpus}
        others = [resident for resident in self.residents.values() if resident.key != key]
        kept = {gpu for r in others if not r.holds and r.part and r.part.is_clear for gpu in r.gpus}
        return (held | kept).isdisjoint(gpus)

    def welcome(self, resident: Resident) -> None:
        """Take in a job. A Slurm that lost its state numbers jobs anew: what had this number is forgotten."""
        self.residents[resident.key] = resident
        self.ended.pop(resident.key, None)
        self.finals.pop(resident.key, None)
        self.past.pop(resident.key, None)

    def set_gangs(self) -> None:
        """Tell the stride who lives here now."""
        self.local.set_gangs([resident.as_gang() for resident in self.residents.values()])

    def know(self, key: JobKey) -> None:
        """Remember the newest incarnation of a job."""
        self.newest[key.job_id] = max(self.newest.get(key.job_id, 0), key.restart)

    def is_stale(self, key: JobKey) -> bool:
        """True when a newer incarnation of this job is known, or this one was fenced."""
        fenced = self.plan is not None and tuple(key) in self.plan.fence
        return fenced or self.newest.get(key.job_id, 0) > key.restart

    def save(self) -> None:
        """Write the state before it is acted upon; the disk's own cache follows a little later."""
        self.store.save(state_of(self))
        if self._sync is None:
            loop = asyncio.get_running_loop()
            self._sync = loop.call_later(SYNC_S, self._start_sync, loop)

    def note(self, event: str, resident: Resident, mono_ns: int | None = None, **fields: Any) -> None:
        """Write an event of a job."""
        self.events.write(
            event, resident.key, mono_ns, gpus=list(resident.gpus), user=resident.user, **fields
        )

    def _start_sync(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sync = None
        loop.run_in_executor(None, self.store.sync, self.ledger.path)
