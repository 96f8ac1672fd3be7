"""What the tests of living with Slurm share: submit in any form, ask why, be Slurm's administrator."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, asked, own_cluster, wait_for

QUANTUM_S = 0.3


class Living:
    """A mini cluster with its daemons, seen by users and by the administrator of Slurm."""

    def __init__(self, cluster: MiniCluster) -> None:
        self.cluster = cluster
        self.fleet = Fleet(cluster)

    def admin(self, *words: str) -> str:
        """Run a command as root; it must succeed."""
        return self.cluster.exec(list(words)).stdout

    def user(self, *words: str, user: str = "user1", **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a command as a user; it may fail."""
        return self.cluster.exec(list(words), user=user, check=False, **how)

    def submit(self, *flags: str, user: str = "user1", script: str = "exec sleep 300") -> int:
        """Submit a batch script for one GPU; returns the job id."""
        return self.fleet.submit(user, script, *flags)

    def show(self, job: int) -> dict[str, str]:
        """Slurm's own words on a job."""
        told = self.admin("scontrol", "show", "job", "-o", str(job))
        words = (word.partition("=") for word in told.split())
        return {name: value for name, _, value in words}

    def why(self, job: int) -> dict[str, Any]:
        """What `gandiva why` tells; nothing while Gandiva does not know the job."""
        told = asked(self.cluster, "why", str(job), "--json")
        found: dict[str, Any] = json.loads(told.stdout) if told.returncode == 0 else {"code": ""}
        return found

    def wait_why(self, job: int, code: str, deadline_s: float = 30.0) -> dict[str, Any]:
        """Wait for this reason; it comes with a sentence and with what will change it."""
        def holds() -> dict[str, Any] | None:
            told = self.why(job)
            return told if told["code"] == code else None

        told: dict[str, Any] = wait_for(holds, f"job {job} to wait because of {code}", deadline_s)
        assert told["sentence"] and told["next"], told
        return told

    def cancel(self, *jobs: int) -> None:
        """End jobs."""
        self.admin("scancel", *map(str, jobs))
        for job in jobs:
            self.fleet.wait_ended(job, "CANCELLED", "COMPLETED")

    def finish(self) -> None:
        """End what is left and check the books."""
        self.fleet.finish()


@contextmanager
def living(name: str, nodes: str) -> Iterator[Living]:
    """A cluster of one module's own, taken down at its end."""
    with own_cluster(name, nodes, QUANTUM_S) as cluster:
        yield Living(cluster)
