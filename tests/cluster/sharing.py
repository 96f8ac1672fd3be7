"""Jobs that share GPUs for the tests of test_sharing.py, and what the nodes' logs say they got."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from gandiva_slurm.mini import demo_holds
from gandiva_slurm.mini.demo_jobs import DemoJob
from tests.cluster.fleet import Fleet

#: Of the tree gold 2, silver 1, research 1.
TICKETS = {"user1": 250, "user2": 50, "user3": 100}
#: The window lasts until a part misses by 5 % at most, and some minutes at most: where a machine stalled just
#: before its end, 10 % are taken. What a scheduler does wrong misses by 30 % and more.
PARTS, NEARLY = (
    {user: pytest.approx(tickets / 400, rel=rel) for user, tickets in TICKETS.items()} for rel in (0.05, 0.10)
)
THRICE = pytest.approx(3, rel=0.12)

#: They mostly wait, as for a GPU: a turn has some ten steps.
WAIT_MS = 50
PAIR = DemoJob("pair", "user1", 2, "mlp", 21, launcher="torchrun", wait_ms=WAIT_MS)
LEFT = DemoJob("left", "user2", 1, "mlp", 22, wait_ms=WAIT_MS)
RIGHT = DemoJob("right", "user2", 1, "lstm", 23, boundary="hook", wait_ms=WAIT_MS)
TRAINING = (PAIR, LEFT, RIGHT)
#: user, job, account, --gandiva-tickets: light jobs that share one GPU.
WEIGHTED = (
    ("user3", "heavy", "silver", 300),
    ("user3", "slight", "silver", 100),
    ("user1", "other", "gold", 100),
)

#: A job with a client and without PyTorch: it starts at once and takes next to no CPU. It counts in a file.
LIGHT = """
import os, sys, time
import gandiva_slurm as gandiva
while not os.path.exists(sys.argv[2]):
    with open(sys.argv[1], "a") as out:
        out.write(".")
    time.sleep(0.005)
    gandiva.step()
"""


@dataclass
class Run:
    """What runs, and the window in which it was measured."""

    fleet: Fleet
    training: Mapping[str, int]
    light: Mapping[str, int]
    window_ns: tuple[int, int] = (0, 0)

    def held_ns(self, node: str, window_ns: tuple[int, int]) -> dict[int, int]:
        """GPU time of each job on a node, by the node's own event log."""
        found: dict[int, int] = {}
        for _, _, job, (began, ended) in demo_holds.holds_in_events(self.fleet.events(node)):
            span = min(ended, window_ns[1]) - max(began, window_ns[0])
            found[job] = found.get(job, 0) + max(0, span)
        return found

    def user_parts(self, window_ns: tuple[int, int] | None = None) -> dict[str, float]:
        """Each user's part of the GPU time that was held in the whole cluster."""
        window = window_ns or self.window_ns
        held = {node: self.held_ns(node, window) for node in ("n1", "n2")}
        parts: dict[str, float] = {}
        for user, job in [
            *((job.user, self.training[job.name]) for job in TRAINING),
            *((user, self.light[name]) for user, name, *_ in WEIGHTED),
        ]:
            parts[user] = parts.get(user, 0.0) + sum(jobs.get(job, 0) for jobs in held.values())
        total = sum(parts.values()) or 1
        return {user: span / total for user, span in parts.items()}

    def tickets_ratio(self, window_ns: tuple[int, int] | None = None) -> float:
        """How many times slight's GPU time heavy had, of the same user, on the same GPU."""
        held = self.held_ns("n2", window_ns or self.window_ns)
        return held.get(self.light["heavy"], 0) / (held.get(self.light["slight"], 0) or 1)

    def is_fair(self, window_ns: tuple[int, int]) -> bool:
        """True when all users, and the jobs of one, had what they are to have."""
        return self.user_parts(window_ns) == PARTS and self.tickets_ratio(window_ns) == THRICE


def light(fleet: Fleet, user: str, name: str, *flags: str) -> int:
    """Submit a light job on the one k80."""
    fleet.home(user, "light.py").write_text(LIGHT)
    return fleet.submit(user, f"exec python light.py {name}.count {name}.stop", "--gandiva-gpu-types=k80",
                        f"--job-name={name}", *flags)


def counted(fleet: Fleet, user: str, name: str) -> int:
    """How far a counting job has come."""
    path = fleet.home(user, f"{name}.count")
    return path.stat().st_size if path.exists() else 0
