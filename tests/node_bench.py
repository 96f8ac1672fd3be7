"""A node whose jobs have no processes, on a clock moved by hand."""

import itertools
from pathlib import Path
from typing import Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node.clock import Clock
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.jobs import Resident
from gandiva_slurm.node.members import JobProcesses
from gandiva_slurm.node.planning import Planning
from gandiva_slurm.node.settings import NodeSettings
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.watch import Watcher
from tests.records import read_lines

QUANTUM_NS = 1_000_000_000
TICKET = 1_000_000


class HandClock(Clock):
    """Stands still until it is moved."""

    def __init__(self):
        super().__init__(10**18)
        self.now_ns = 10**12

    def mono(self):
        return self.now_ns

    def correct(self):
        pass


class NoProcesses(JobProcesses):
    """There are none."""

    def members(self, table=None):
        return []


class Bench:
    """A node without processes: jobs have no client, and are frozen as soon as they are asked."""

    def __init__(self, directory: Path, gpus: int, client_wait_ns: int = 0) -> None:
        directory.mkdir(exist_ok=True)
        self.node = Node(
            NodeSettings(
                node="n1",
                host="",
                port=0,
                socket=directory / "sock",
                state_dir=directory,
                obeyed_uids=frozenset({0}),
                quantum_ns=QUANTUM_NS,
                client_wait_ns=client_wait_ns,
            )
        )
        self.clock = self.node.clock = HandClock()
        self.node.save = lambda: None
        self.node.local.gpus = gpus
        self.slicer = Slicer(self.node)
        self.watcher = Watcher(self.node, self.slicer)
        self.planning = Planning(self.node, self.slicer, self.watcher)

    def add(
        self, job_id: int, user: str, gpus: tuple[int, ...], tickets: int = 100 * TICKET, **more: Any
    ) -> Resident:
        key = JobKey(job_id, 0)
        resident = Resident(
            key=key,
            user=user,
            gpus=gpus,
            tickets=tickets,
            submitted_ns=job_id,
            processes=NoProcesses(key, 0, "n1", set(), set()),
            registered_real_ns=self.clock.real(),
            since_ns=self.clock.mono(),
            **more,
        )
        self.node.residents[key] = resident
        self.node.set_gangs()
        self.slicer.fill()
        self.settle()
        return resident

    def remove(self, resident: Resident) -> None:
        if resident.holds:
            self.slicer.switcher.release(resident, self.clock.mono())
        self.slicer.switcher.forget(resident)
        del self.node.residents[resident.key]
        self.node.set_gangs()
        self.slicer.fill()
        self.settle()

    def settle(self) -> None:
        """Let all that moves arrive."""
        switcher = self.slicer.switcher
        for _ in range(20):
            for resident in list(switcher._moving.values()):
                switcher._tick(resident)
        held = list(itertools.chain.from_iterable(r.gpus for r in self.node.holders()))
        assert len(held) == len(set(held)), "a GPU is held twice"

    def quantum(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.now_ns += QUANTUM_NS
            self.slicer.quantum()
            self.settle()

    def holders(self) -> set[int]:
        return {resident.key.job_id for resident in self.node.holders()}

    def events(self) -> list[dict[str, Any]]:
        """The node's event log."""
        return read_lines(self.node.settings.state_dir / "events.jsonl")

    def held_s(self, user: str) -> float:
        holds = [hold for hold in self.node.ledger.report(self.clock.real()) if hold.user == user]
        return sum((hold.t1_ns - hold.t0_ns) * len(hold.gpus) for hold in holds) / 1e9
