"""Nobody works without paying under a Slurm that has its jobs in control groups, of version 1 or 2.

The ways to cheat of tests/node, each a job of one user on a mini cluster, beside as many honest jobs.
`make attacks` has them work for a minute.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.spec import CGROUPS, CGROUPS_VARIABLE
from tests.cluster.fleet import Fleet, mended, own_cluster, wait_for
from tests.node.test_attacks import EXTRA, QUANTUM_S, TICK_S, WAYS, WINDOW_S, signals_of
from tests.records import Held, holds_of
from tests.slow import slow

SCRIPTS = Path(__file__).parents[1] / "node/scripts"
HONEST, HOSTILE = "user1", "user3"
NODES = ("n1", "n2")
#: A start takes Slurm a while, and there are two for each way.
START_S = 180.0

pytestmark = slow("30 s a cluster; tests/node has the same ways on a gandivad without Slurm")


class Duels:
    """All ways at once, each a job, and an honest job for each."""

    def __init__(self, fleet: Fleet, stack: ExitStack) -> None:
        self.fleet, self.begin_ns, self.end_ns = fleet, 0, 0
        self.cheats = {way: self.cheat(way) for way in WAYS}
        self.honest = [fleet.train(HONEST, f"honest{way}") for way in WAYS]
        wait_for(lambda: all(self.ticks(job) for job in self.cheats.values()), "all cheats", START_S)
        wait_for(lambda: all(fleet.steps(HONEST, f"honest{way}") for way in WAYS), "the honest", START_S)
        for way in WAYS:
            words = [str(int(number)) for number in signals_of(way)]
            if words:
                self.beside(stack, "python", "pester.py", f"{way}.mark", *words)
        step = ["srun", "--jobid", str(self.cheats["second_step"]), "--overlap", "--mem=0", "-n1"]
        self.beside(stack, *step, "python", "cheat.py", "work_on")
        self.window()

    def cheat(self, way: str) -> int:
        name = {"second_step": "idle", "continued": "no_client"}.get(way, way)
        return self.fleet.submit(HOSTILE, f"export OUT=~\nexec python cheat.py {name} {way}.mark")

    def beside(self, stack: ExitStack, *words: str) -> None:
        """Have a command of the hostile user run outside its jobs, as from a login."""
        process = self.fleet.mini.popen(["env", "OUT=/home/" + HOSTILE, *words], user=HOSTILE)
        stack.callback(process.wait)
        stack.callback(process.kill)

    def window(self) -> None:
        """The time in which what is worked is compared with what is charged."""
        self.begin_ns = time.monotonic_ns()
        end_s = time.monotonic() + WINDOW_S
        wait_for(lambda: time.monotonic() >= end_s, "the window to go by", WINDOW_S + 5)
        self.end_ns = time.monotonic_ns()

    def ticks(self, job: int) -> list[int]:
        path = self.fleet.home(HOSTILE, f"work.{job}")
        data = path.read_bytes() if path.exists() else b""
        return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - 7, 8)]

    def worked_s(self, job: int) -> float:
        return TICK_S * sum(self.begin_ns <= at < self.end_ns for at in self.ticks(job))

    def charged_s(self, holds: list[Held], jobs: set[int]) -> float:
        mine = (hold for hold in holds if hold.job_id in jobs)
        return sum(self.within_s(hold.t0_ns, hold.t1_ns) for hold in mine)

    def awake_s(self, job: int) -> float:
        """How long it was awake for signals in its parks, which is charged as well."""
        lines = [line for node in NODES for line in self.fleet.events(node) if line.get("job") == job]
        ends = [line["mono_ns"] for line in lines if line["event"] in ("asleep", "grant")] + [self.end_ns]
        begins = [line["mono_ns"] for line in lines if line["event"] == "woken"]
        begins = [at for at in begins if at <= self.end_ns]
        return sum(self.within_s(at, min(end for end in ends if end >= at)) for at in begins)

    def within_s(self, begin_ns: int, end_ns: int) -> float:
        return max(0, min(end_ns, self.end_ns) - max(begin_ns, self.begin_ns)) / 1e9


@pytest.fixture(scope="module", params=CGROUPS)
def cluster(slurm_here: None, request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    """Two nodes of eight GPUs, whose Slurm has each job in control groups of this version."""
    node = {"client_wait_s": 2, "park_deadline_s": 30}
    with (
        mock.patch.dict(os.environ, {CGROUPS_VARIABLE: request.param}),
        own_cluster("attacks", "v100:2x8", QUANTUM_S, node=node) as made,
    ):
        for script in SCRIPTS.glob("*.py"):
            made.path(f"/home/{HOSTILE}", script.name).write_text(script.read_text())
        yield made


def test_what_is_worked_is_charged_and_the_honest_have_their_share(cluster: MiniCluster) -> None:
    kind = cluster.spec.cgroups
    with mended(Fleet(cluster)) as fleet:
        with ExitStack() as stack:
            duels = Duels(fleet, stack)
        holds = [hold for node in NODES for hold in holds_of(fleet.events(node), time.monotonic_ns())]
        window_s = (duels.end_ns - duels.begin_ns) / 1e9
        told = {
            way: (duels.worked_s(job), duels.charged_s(holds, {job}) + duels.awake_s(job))
            for way, job in duels.cheats.items()
        }
        honest_s = duels.charged_s(holds, set(duels.honest))
        print(f"\n{kind}: in {window_s:.1f} s the honest held {honest_s:.1f} GPU-seconds; worked, charged:")
        print("\n".join(f"  {way} {worked:.1f} {charged:.1f}" for way, (worked, charged) in told.items()))
        over = {way: pair for way, pair in told.items() if pair[0] > pair[1] * EXTRA + QUANTUM_S / 2}
        assert not over
        assert honest_s >= 0.95 * window_s * len(WAYS) / 2 - QUANTUM_S * len(WAYS) / 2
