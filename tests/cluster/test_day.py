"""A day in twenty minutes: honest users and a hostile one, while daemons are killed twice a minute.

The hostile user's jobs work whenever they can, by their ranks and beside them; whatever the ways, what is
done outside of its own holds is next to nothing, and the others' trainings lose nothing. `GANDIVA_DAY_S` is
how long it lasts, `GANDIVA_DAY_SEED` what is drawn by.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, mended, own_cluster, wait_for
from tests.cluster.test_chaos import MOVE_S, NODES, QUANTUM_S, TRAINING, Chaos
from tests.records import Held, holds_of

DAY_S = float(os.environ.get("GANDIVA_DAY_S", "1200"))
SEED = int(os.environ.get("GANDIVA_DAY_SEED", "1"))
HONEST, HOSTILE = ("user1", "user2"), "user3"
CHEAT = TRAINING.with_name("cheat.py")
#: Trainings of the honest; jobs of the hostile user at a time, each by the next of these ways.
TRAININGS, CHEATS = 6, 4
WAYS = (
    "child", "double_fork", "parked_and_trains", "steps_lie",
    "own_session", "never_at_a_boundary", "no_client", "clean_environment",
)  # fmt: skip
#: A kill falls due this often; the hostile user exchanges a job for the next way at each second one.
KILL_S = 24.0
#: Without its gandivad a node's guard thaws what was frozen, and a new one needs a while to freeze it again.
BACK_S = 10.0
#: A tick of work may end just behind its turn; and what is done outside turns is this part of all at most.
TICK_S, EXTRA = 0.01, 0.05
#: A frozen job breathes, 10 ms each 5 s (node/rest.py): a tick or two of those that it has lived for.
BREATH = 2 * TICK_S / 5
#: The part of an even share of GPU time that each user has at the least; kills in mid-move cost some.
LEAST_SHARE = 0.6


@pytest.fixture
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one GPU, on which moves are cheap."""
    settings: dict[str, Any] = {"moves": {"cost_s": MOVE_S}, "packing": {"enabled": True}}
    with own_cluster("day", "v100:2x1", QUANTUM_S, policy="gandiva_fair", **settings) as made:
        for user in (*HONEST, HOSTILE):
            for script in (TRAINING, CHEAT):
                made.path(f"/home/{user}", script.name).write_text(script.read_text())
        yield made


class Day(Chaos):
    """Chaos beside which a user cheats."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        super().__init__(fleet, seed, HONEST, TRAININGS)
        self.cheats: dict[int, str] = {}
        self.live: list[int] = []
        #: by node: from when to when it had no gandivad, or a new one
        self.away: dict[str, list[tuple[int, int]]] = {node: [] for node in NODES}
        self.struck: list[tuple[int, str]] = []
        for _ in range(CHEATS):
            self.cheat()

    def cheat(self) -> None:
        """The next way to work without paying."""
        way = WAYS[len(self.cheats) % len(WAYS)]
        lines = f"export OUT=~\nexec python {CHEAT.name} {way}"
        self.live.append(self.submit(HOSTILE, lines))
        self.cheats[self.live[-1]] = way

    def exchange(self) -> None:
        """The oldest of its jobs ends."""
        self.fleet.mini.exec(["scancel", str(self.live.pop(0))], user=HOSTILE, check=False)
        self.cheat()

    def kill(self, victim: str) -> None:
        """Note for how long a node was without its gandivad."""
        begin_ns = time.monotonic_ns()
        self.struck.append((begin_ns, victim))
        super().kill(victim)
        if victim.startswith("gandivad:"):
            span = (begin_ns, time.monotonic_ns() + round(BACK_S * 1e9))
            self.away[victim.partition(":")[2]].append(span)

    def ticks(self, job: int) -> list[int]:
        """When a cheat has worked, monotonic ns, ten milliseconds each."""
        path = self.fleet.home(HOSTILE, f"work.{job}")
        data = path.read_bytes() if path.exists() else b""
        return [at for (at,) in struct.iter_unpack("=Q", data[: len(data) // 8 * 8])]

    def outside(self, job: int, holds: list[tuple[str, Held]]) -> list[int]:
        """When a cheat has worked outside its holds while its nodes had their gandivads."""
        mine = [(node, hold) for node, hold in holds if hold.job_id == job]
        spans = [(hold.t0_ns, hold.t1_ns + round(2 * TICK_S * 1e9)) for _, hold in mine]
        spans += [span for node in {node for node, _ in mine} for span in self.away[node]]
        return [at for at in self.ticks(job) if not any(begin <= at <= end for begin, end in spans)]

    def lived_s(self, job: int) -> float:
        """How long it was there, from its first work to its last."""
        ticks = self.ticks(job)
        return (ticks[-1] - ticks[0]) / 1e9 if ticks else 0.0

    def when(self, job: int, holds: list[tuple[str, Held]]) -> list[str]:
        """The beginnings of such times: how long after the last kill, and where between its holds."""
        found, last_ns = [], 0
        mine = sorted((hold.t0_ns, hold.t1_ns) for _, hold in holds if hold.job_id == job)
        for at in self.outside(job, holds):
            if at - last_ns > 1e9:
                struck = [(at - when, victim) for when, victim in self.struck if when <= at][-1:]
                ended = [at - end for _, end in mine if end <= at][-1:]
                begins = [begin - at for begin, _ in mine if begin > at][:1]
                found.append(f"struck {struck}, ended {ended}, begins {begins} ns")
            last_ns = at
        return found


def test_a_day_of_the_honest_and_the_hostile(cluster: MiniCluster) -> None:
    with mended(Fleet(cluster)) as fleet:
        day = Day(fleet, SEED)
        wait_for(lambda: sum(bool(day.lines(job)) for job in day.jobs) >= 2, "some to train", 120)
        end_s, due_s = time.monotonic() + DAY_S, time.monotonic()
        while time.monotonic() < end_s:
            wait_for(lambda due_s=due_s: time.monotonic() >= due_s, "the next kill to fall due", 2 * KILL_S)
            due_s += KILL_S
            day.strike()
            if len(day.done) % 2 == 0:
                day.exchange()
        fleet.mini.exec(["scancel", *map(str, day.live)], user=HOSTILE, check=False)
        day.end()
        fleet.finish()
        day.check_books()
        holds = [(node, hold) for node in NODES for hold in holds_of(fleet.events(node))]
        work = {
            job: (len(day.ticks(job)) * TICK_S, len(day.outside(job, holds)) * TICK_S) for job in day.cheats
        }
        charged = day.charged_s()
        held = dict.fromkeys((*HONEST, HOSTILE), 0.0)
        for job, seconds in charged.items():
            held[day.jobs.get(job, HOSTILE)] += seconds
        told = {f"{job} {way}": work[job] for job, way in day.cheats.items()}
        when = {job: day.when(job, holds) for job, (_, unpaid) in work.items() if unpaid > 0.1}
        print(f"\n{len(day.done)} strikes, held {held}, worked and unpaid {told}, {when}")
        for job, (worked, unpaid) in work.items():
            most = EXTRA * max(worked, 10 * QUANTUM_S) + BREATH * day.lived_s(job)
            assert unpaid <= most, (job, day.cheats[job], told, when, day.done)
        assert min(held[user] for user in HONEST) >= LEAST_SHARE * sum(held.values()) / len(held), held
