"""Jobs that share GPUs for the tests of test_sharing.py, and what the nodes' logs say they got."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from gandiva_slurm.mini import demo_holds
from gandiva_slurm.mini.demo_jobs import DemoJob
from tests.cluster.fleet import Fleet

#: A user's part may miss by 5 %; of a small part, one quantum of the window is more than that.
HALF = pytest.approx(0.5, rel=0.05)
WEIGHTED_PARTS = (pytest.approx(2 / 3, rel=0.05), pytest.approx(1 / 3, rel=0.05), pytest.approx(3, rel=0.12))

PAIR = DemoJob("pair", "user1", 2, "mlp", 21, launcher="torchrun", wait_ms=10)
LEFT = DemoJob("left", "user2", 1, "mlp", 22, wait_ms=10)
RIGHT = DemoJob("right", "user2", 1, "lstm", 23, boundary="hook", wait_ms=10)
TRAINING = (PAIR, LEFT, RIGHT)
#: user, job, account, --gandiva-tickets: light jobs that share one GPU.
WEIGHTED = (
    ("user1", "heavy", "gold", 300),
    ("user1", "slight", "gold", 100),
    ("user3", "other", "silver", 100),
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

    def parts(self, node: str, window_ns: tuple[int, int] | None = None) -> dict[int, float]:
        """Each job's part of the GPU time that was held on a node."""
        held = self.held_ns(node, window_ns or self.window_ns)
        total = sum(held.values()) or 1
        return {job: span / total for job, span in held.items()}

    def gang_part(self, window_ns: tuple[int, int] | None = None) -> float:
        """What the gang's user has of n1; the rest is the other user's."""
        return self.parts("n1", window_ns).get(self.training["pair"], 0.0)

    def weighted_parts(self, window_ns: tuple[int, int] | None = None) -> tuple[float, float, float]:
        """Of n2: the gold user's part, the silver user's, and how many times slight's heavy had."""
        parts = self.parts("n2", window_ns)
        heavy, slight, other = (parts.get(self.light[name], 0.0) for name in ("heavy", "slight", "other"))
        return heavy + slight, other, heavy / (slight or 1.0)

    def is_fair(self, window_ns: tuple[int, int]) -> bool:
        """True when both nodes' users had what they are to have."""
        return self.gang_part(window_ns) == HALF and self.weighted_parts(window_ns) == WEIGHTED_PARTS


def light(fleet: Fleet, user: str, name: str, *flags: str) -> int:
    """Submit a light job on the one k80."""
    fleet.home(user, "light.py").write_text(LIGHT)
    return fleet.submit(user, f"exec python light.py {name}.count {name}.stop", "--gandiva-gpu-types=k80",
                        f"--job-name={name}", *flags)


def counted(fleet: Fleet, user: str, name: str) -> int:
    """How far a counting job has come."""
    path = fleet.home(user, f"{name}.count")
    return path.stat().st_size if path.exists() else 0
