"""Jobs that share GPUs for the tests of test_sharing.py, and what the nodes' logs say they got."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from gandiva_slurm.mini import demo_holds
from gandiva_slurm.mini.demo_jobs import DemoJob
from tests.cluster.fleet import Fleet

#: What counts as the last seconds; a quantum or two are a tenth of them.
RECENT_NS, RECENT_TOLERANCE = 6 * 10**9, 0.08

PAIR = DemoJob("pair", "user1", 2, "mlp", 21, launcher="torchrun")
LEFT = DemoJob("left", "user2", 1, "mlp", 22)
RIGHT = DemoJob("right", "user2", 1, "lstm", 23, boundary="hook")
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

    def is_settled(self) -> bool:
        """True when in the last seconds neither user of n1 was paying the other back."""
        now_ns = time.monotonic_ns()
        return abs(self.gang_part((now_ns - RECENT_NS, now_ns)) - 0.5) < RECENT_TOLERANCE


def light(fleet: Fleet, user: str, name: str, *flags: str) -> int:
    """Submit a light job on the one k80."""
    fleet.home(user, "light.py").write_text(LIGHT)
    return fleet.submit(user, f"exec python light.py {name}.count {name}.stop", "--gandiva-gpu-types=k80",
                        f"--job-name={name}", *flags)


def counted(fleet: Fleet, user: str, name: str) -> int:
    """How far a counting job has come."""
    path = fleet.home(user, f"{name}.count")
    return path.stat().st_size if path.exists() else 0
