"""Nobody works without paying for it: ways to cheat, each beside an honest job on a GPU of its own.

All of them run at once on one gandivad. Work is noted 10 ms at a time; charged is what the node reports.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from gandiva_slurm.wire.messages import PlannedJob
from tests import patience
from tests.node.harness import HERE, TICKET, NodeHarness, uid_of
from tests.skips import NO_ROOT
from tests.slow import long_form, soaked

CHEAT = str(HERE / "scripts/cheat.py")
WAYS = (
    "child",
    "own_session",
    "double_fork",
    "clean_environment",
    "escape",
    "traced",
    "second_step",
    "continued",
    "parked_and_trains",
    "group_lie",
    "never_at_a_boundary",
    "slow_at_first",
    "steps_lie",
    "late_hello",
    "no_client",
    "handlers",
)
#: What was started with an empty environment and has no parent left is of no job that could be told.
WAYS_BY_STOPS = tuple(way for way in WAYS if way != "clean_environment")
#: Those that have to do with the stops themselves; others are tried in `make soak`, too.
ABOUT_STOPS = ("child", "traced", "continued", "no_client", "handlers")
#: How long work is compared with what was charged; `make attacks` takes 60 s.
WINDOW_S = float(os.environ.get("GANDIVA_ATTACK_S", "10"))
QUANTUM_S = 0.5
#: A tick of work may end just behind its turn; a turn at each end of the window may be half in it.
TICK_S = 0.01
EXTRA = 1.05
#: What a neighbour may lack: a turn, or a stall of the machine in it, for which it is paid back later.
VICTIM_SLACK_S = max(QUANTUM_S, 1.5)
#: Users that only these tests have.
FIRST_UID = 61100


@dataclass
class Duel:
    """A cheat and its honest neighbour on one GPU."""

    way: str
    gpu: int

    @property
    def cheat(self) -> int:
        return 100 + self.gpu

    @property
    def victim(self) -> int:
        return 200 + self.gpu


def planned(job_id: int, gpu: int) -> PlannedJob:
    uid = FIRST_UID + job_id if uid_of("user1") else 0
    return PlannedJob(job_id, 0, f"u{job_id}", uid, (gpu,), 100 * TICKET, job_id * 10**9)


def ticks(node: NodeHarness, job_id: int) -> list[int]:
    """When work was done, monotonic ns."""
    data = (node.out / f"work.{job_id}").read_bytes()
    return [int.from_bytes(data[at : at + 8], sys.byteorder) for at in range(0, len(data) - 7, 8)]


@dataclass
class Outcome:
    """What came of it within the window: seconds."""

    worked: float
    charged: float
    victim: float
    window: float


class Helper:
    """A process of the cheat's user outside the job, as from a login: it sends signals to the job's own."""

    def __init__(self, node: NodeHarness, duel: Duel, numbers: tuple[int, ...]) -> None:
        script, sent = str(HERE / "scripts/pester.py"), [str(int(number)) for number in numbers]
        argv = [sys.executable, script, f"{duel.way}.mark", *sent]
        uid = planned(duel.cheat, duel.gpu).uid
        self.process = subprocess.Popen(argv, user=uid or None, cwd=node.out)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Outcome]]:
    """What came of each way where jobs are frozen by their control groups."""
    yield fought(WAYS)


@pytest.fixture(scope="module")
def outcomes_by_stops(request: pytest.FixtureRequest) -> Iterator[dict[str, Outcome]]:
    """The same where no group can be frozen, and processes are sent SIGSTOP: the ways that are asked for."""
    name = test_nor_does_it_where_no_group_can_be_frozen.__name__
    asked = [item.callspec.params["way"] for item in request.session.items if item.name.startswith(name)]
    yield fought(asked, is_without_groups=True)


def fought(ways: Sequence[str], **settings: object) -> dict[str, Outcome]:
    """Have all cheats at once, each beside its neighbour."""
    if os.geteuid() != 0:
        pytest.skip(NO_ROOT)
    duels = [Duel(way, gpu) for gpu, way in enumerate(ways)]
    settings |= {"client_wait_ns": 1_000_000_000, "park_deadline_ns": 600_000_000_000}
    with NodeHarness(gpus=len(duels), quantum_s=QUANTUM_S, **settings) as node, ExitStack() as stack:
        node.plan(*[planned(job, duel.gpu) for duel in duels for job in (duel.cheat, duel.victim)])
        for duel in duels:
            start(node, duel)
        node.wait(lambda: all(node.resident(duel.victim).steps for duel in duels))
        node.wait(lambda: all(ticks(node, duel.cheat) for duel in duels))
        for duel in duels:
            if signals_of(duel.way):
                stack.callback(Helper(node, duel, signals_of(duel.way)).end)
        return fight(node, duels)


def signals_of(way: str) -> tuple[int, ...]:
    return {
        "continued": (signal.SIGCONT,),
        "handlers": (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP),
    }.get(way, ())


def start(node: NodeHarness, duel: Duel) -> None:
    way = {"second_step": "idle", "continued": "no_client"}.get(duel.way, duel.way)
    node.start_job(duel.cheat, [CHEAT, way, f"{duel.way}.mark"])
    node.start_job(duel.victim, [str(HERE / "scripts/loop.py"), "20"])


def fight(node: NodeHarness, duels: list[Duel]) -> dict[str, Outcome]:
    """Let them run for the window, and read what came of it."""
    for duel in duels:
        if duel.way == "second_step":
            node.start_job(duel.cheat, [CHEAT, "work_on"], step="0")
    begin = {job: charged(node, job) for duel in duels for job in (duel.cheat, duel.victim)}
    begin_ns = time.monotonic_ns()
    end_s = time.monotonic() + WINDOW_S * min(3, patience.slowness())
    while time.monotonic() < end_s:
        time.sleep(0.1)  # the window itself: how long cheats have to get ahead
    end_ns = time.monotonic_ns()
    end = {job: charged(node, job) for job in begin}
    found = {}
    for duel in duels:
        worked = TICK_S * sum(begin_ns <= when < end_ns for when in ticks(node, duel.cheat))
        found[duel.way] = Outcome(
            worked,
            end[duel.cheat] - begin[duel.cheat],
            end[duel.victim] - begin[duel.victim],
            (end_ns - begin_ns) / 1e9,
        )
        print(duel.way, found[duel.way])
    return found


def charged(node: NodeHarness, job_id: int) -> float:
    return node.resident(job_id).gpu_ns / 1e9


def check(found: Outcome) -> None:
    """What is worked is charged, and the honest neighbour has its share."""
    assert found.worked <= found.charged * EXTRA + QUANTUM_S / 2, found
    assert found.victim >= 0.95 * found.window / 2 - VICTIM_SLACK_S, found


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_cheat_gains_anything(outcomes: dict[str, Outcome], way: str) -> None:
    check(outcomes[way])


@pytest.mark.parametrize(
    "way",
    [
        long_form(way, why="35 s; the same with groups, which nodes have as a rule, stays")
        if way in ABOUT_STOPS
        else soaked(way, why="one more way, which has nothing to do with how it is stopped")
        for way in WAYS_BY_STOPS
    ],
)
def test_nor_does_it_where_no_group_can_be_frozen(outcomes_by_stops: dict[str, Outcome], way: str) -> None:
    check(outcomes_by_stops[way])
