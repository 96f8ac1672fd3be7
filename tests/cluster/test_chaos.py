"""kill -9 of our daemons and of slurmctld in mid-everything, by a seed: no job is lost, none charged twice.

More trainings than there are slots, so that jobs are parked, saved, requeued, moved and started all the time;
GPUs are shared by pairs, and now and then another policy takes over.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, mended, own_cluster, wait_for
from tests.records import holds_of
from tests.slow import soak

TRAINING = Path(__file__).parents[1] / "node/scripts/attached.py"
NODES, USERS = ("n1", "n2"), ("user1", "user2", "user3")
QUANTUM_S, MOVE_S = 0.5, 0.2
#: Trainings on two GPUs of four slots each, one of them with one or two GPUs; and how often something dies.
JOBS, KILLS = 10, 8
#: What a kill waits for, by the states of `gandiva queue`; "": nothing.
MOMENTS = ("CHECKPOINTING", "REQUEUED", "STARTING", "HELD", "SUSPENDED", "")
VICTIMS = ("gandivactld", "gandivad:n1", "gandivad:n2", "slurmctld", "reload")
#: How long one stays dead, at most; how long a kill waits for its moment.
DEAD_S, MOMENT_S = 4.0, 15.0
#: Of a job's GPU time: events are written a moment after a hold begins or ends.
NEAR_S = 0.2


@pytest.fixture
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one GPU, on which moves are cheap and pairs are tried."""
    settings: dict[str, Any] = {"moves": {"cost_s": MOVE_S}, "packing": {"enabled": True}}
    with own_cluster("chaos", "v100:2x1", QUANTUM_S, policy="gandiva_fair", **settings) as made:
        for user in USERS:
            made.path(f"/home/{user}", TRAINING.name).write_text(TRAINING.read_text())
        yield made


class Chaos:
    """What is done to a cluster, by a seed."""

    def __init__(self, fleet: Fleet, seed: int, users: Sequence[str] = USERS, jobs: int = JOBS) -> None:
        """So many trainings of these users begin."""
        self.fleet, self.draw = fleet, random.Random(seed)
        self.jobs: dict[int, str] = {}
        self.done: list[str] = []
        self.submitted: Counter[int] = Counter()
        for n in range(jobs):
            user = users[n % len(users)]
            script = f"export OUT=~\nexec python {TRAINING.name} 30 {10**9}"
            self.jobs[self.submit(user, script)] = user

    def submit(self, user: str, script: str) -> int:
        """Submit a job; return its number."""
        job = self.fleet.submit(user, script, "--mem=100")
        self.submitted[job] += 1
        return job

    def lines(self, job: int) -> list[str]:
        """What a training has written."""
        path = self.fleet.home(self.jobs[job], f"loss.{job}")
        return path.read_text().splitlines() if path.exists() else []

    def states(self) -> set[str]:
        """The states that jobs are in."""
        told = self.fleet.mini.exec(["gandiva", "queue", "--json"], check=False)
        return {row["state"] for row in json.loads(told.stdout)["jobs"]} if told.returncode == 0 else set()

    def strike(self) -> None:
        """Wait for a moment, and kill something; it is started again a while later."""
        moment, victim = self.draw.choice(MOMENTS), self.draw.choice(VICTIMS)
        end_s = time.monotonic() + MOMENT_S
        wait_for(lambda: moment in {"", *self.states()} or time.monotonic() > end_s, moment, 2 * MOMENT_S)
        self.done.append(f"{victim} at {moment or 'any time'}")
        if victim == "reload":
            self.reload(self.draw.choice(("gandiva", "tiresias", "gandiva_fair")))
            return
        self.kill(victim)

    def kill(self, victim: str) -> None:
        """Kill a daemon, and start it again a while later."""
        self.fleet.mini.kill(victim)
        back_s = time.monotonic() + self.draw.uniform(0, DEAD_S)
        wait_for(lambda: time.monotonic() > back_s, "the outage to end", 2 * DEAD_S)
        self.fleet.start_dead()

    def reload(self, name: str) -> None:
        """Let another policy decide."""
        file = self.fleet.mini.at.etc / "gandiva.yaml"
        others = [line for line in file.read_text().splitlines() if not line.startswith("policy:")]
        file.write_text("\n".join([*others, f"policy: {name}", ""]))
        self.fleet.mini.kill("gandivactld", signal.SIGHUP)

    def end(self) -> None:
        """All jobs have a turn, in which they end; what they computed is what nobody touched would have."""
        self.reload("gandiva_fair")
        for job, user in self.jobs.items():
            self.fleet.home(user, f"stop.{job}").touch()
        for job in self.jobs:
            self.fleet.wait_ended(job, "COMPLETED", deadline_s=180)
            self.check_losses(job)

    def check_losses(self, job: int) -> None:
        """One after the other; slurmctld, killed, forgets what it did last, and may run a job again.

        Then the training goes on from what it saved, and computes the same again.
        """
        numbers, losses = [], [1]
        for line in self.lines(job):
            if line == "end":
                continue
            number, loss = map(int, line.split())
            while len(losses) <= number + 1:
                losses.append(losses[-1] * 48271 % 2147483647)
            assert loss == losses[number + 1], line
            numbers.append(number)
        again = [number for before, number in itertools.pairwise(numbers) if number != before + 1]
        forgets = any("slurmctld" in each for each in self.done)
        assert self.lines(job)[-1] == "end" and {*numbers} == {*range(len({*numbers}))}
        assert forgets or not again, f"job {job} went back to {again}: {self.done}"

    def held_s(self) -> dict[int, float]:
        """GPU time of each job, by the nodes' own event logs."""
        found: dict[int, float] = {}
        for hold in (hold for node in NODES for hold in holds_of(self.fleet.events(node))):
            part = 2 if hold.shared_with else 1
            seconds = (hold.t1_ns - hold.t0_ns) / 1e9 * len(hold.gpus) / part
            found[hold.job_id] = found.get(hold.job_id, 0.0) + seconds
        return found

    def charged_s(self) -> dict[int, float]:
        """The same, by the accounts, where each submission is one job; without those that had no turn.

        slurmctld, killed, may forget the newest submission and give its number to the next one.
        """
        found: dict[int, float] = {}
        rows = [row for row in self.fleet.accounts() if row["gpu_held_s"]]
        for row in rows:
            found[row["job_id"]] = found.get(row["job_id"], 0.0) + row["gpu_held_s"]
        again = Counter(row["job_id"] for row in rows) - self.submitted
        assert not again, [row for row in rows if row["job_id"] in again]
        return found

    def check_books(self) -> None:
        """The accounts are the nodes' own, the journal is decided again, and no invariant was broken."""
        wait_for(
            lambda: self.charged_s() == pytest.approx(self.held_s(), abs=NEAR_S),
            lambda: f"accounts {self.charged_s()} to be {self.held_s()}: {self.done}",
        )
        mini = self.fleet.mini
        path = str(mini.at.spool / "gandivactld/journal.sqlite")
        told = json.loads(mini.exec(["gandiva", "replay", path, "--json", "-"]).stdout)
        assert told["first"] is None and told["equal"], told
        log = mini.log("gandivactld").read_text(errors="replace")
        assert "invariant broken" not in log and "Traceback" not in log, log


@soak("100 s a seed; property/test_kills.py has kills on a small Slurm")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_dies_in_mid_everything_takes_no_job_along(cluster: MiniCluster, seed: int) -> None:
    with mended(Fleet(cluster)) as fleet:
        chaos = Chaos(fleet, seed)
        wait_for(lambda: sum(bool(chaos.lines(job)) for job in chaos.jobs) >= 4, "some to train", 120)
        for _ in range(KILLS):
            chaos.strike()
        chaos.end()
        fleet.finish()
        chaos.check_books()
