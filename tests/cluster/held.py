"""A mini cluster without Gandiva's daemons: what Slurm, the plugin and job_submit do by themselves."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gandiva_slurm.mini import probe
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.model.snapshot import JobOptions
from gandiva_slurm.slurm.options import read_options
from tests import patience
from tests.cluster.fleet import own_cluster

NODES = "v100:1x4,k80:1x2"
WAIT_S = 60.0
FINISHED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class HeldCluster:
    """Submits as user1; starts held jobs as gandivactld would."""

    def __init__(self, cluster: MiniCluster) -> None:
        self.cluster = cluster

    def user(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command as user1, with these variables set."""
        pairs = [f"{name}={value}" for name, value in environ.items()]
        return self.cluster.exec(["env", *pairs, *words], user="user1", check=False)

    def root(self, *words: str) -> str:
        """Run a command as root; it must succeed."""
        return self.cluster.exec(list(words)).stdout

    def sbatch(self, *words: str, script: str = "true", **environ: str) -> subprocess.CompletedProcess[str]:
        """Submit a script's text as user1."""
        path = self.home / "job.sh"
        path.write_text("#!/bin/bash\n" + script + "\n")
        path.chmod(0o755)
        return self.user("sbatch", "--parsable", "-o", "%j.out", *words, "job.sh", **environ)

    def submit(self, *words: str, script: str = "true", **environ: str) -> int:
        """The same, when it must be taken; returns the job's number."""
        done = self.sbatch(*words, script=script, **environ)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    @property
    def home(self) -> Path:
        """user1's home, as this host sees it."""
        return self.cluster.path("/home/user1")

    def jobs(self) -> set[str]:
        """Numbers of all jobs Slurm knows."""
        return set(self.root("squeue", "-h", "-t", "all", "-o", "%A").split())

    def show(self, job_id: int) -> dict[str, str]:
        """`scontrol show job`, by name."""
        told = self.root("scontrol", "show", "job", "-o", str(job_id))
        return {name: text.strip() for name, text in re.findall(r"(\w+)=(.*?)(?= \w+=|$)", told.strip())}

    def options(self, job_id: int) -> JobOptions | None:
        """What job_submit recorded."""
        return read_options(self.show(job_id).get("AdminComment", ""), job_id)

    def start(self, job_id: int, node: str = "n1") -> None:
        """Release a held job onto a node.

        A requeued job waits for another second: slurmd, which counts kills by seconds, would take it for the
        one it has just killed, and Slurm would call it failed.
        """
        begin = "now+2seconds" if self.show(job_id)["Restarts"] != "0" else "now"
        self.root("scontrol", "update", f"JobId={job_id}", f"ReqNodeList={node}", f"StartTime={begin}")
        self.root("scontrol", "release", str(job_id))

    def wait_state(self, job_id: int, *states: str) -> None:
        """Wait until Slurm shows the job in one of the states."""
        probe.wait_until(lambda: self.show(job_id)["JobState"] in states,
                         f"job {job_id} to be {' or '.join(states)}", WAIT_S * patience.slowness())

    def wait_queued(self, name: str) -> int:
        """Wait until a job of this name is in the queue; returns its number."""
        def queued() -> str:
            return self.root("squeue", "-h", "-n", name, "-o", "%A").strip()

        most_s = WAIT_S * patience.slowness()
        probe.wait_until(lambda: bool(queued()), f"job {name} to be in the queue", most_s)
        return int(queued())

    def run_plain(self, script: str, **environ: str) -> str:
        """Run an ordinary job, return what it wrote."""
        job_id = self.submit("-p", "plain", script=script, **environ)
        self.wait_state(job_id, *FINISHED)
        return (self.home / f"{job_id}.out").read_text()

    def run(self, job_id: int, node: str = "n1") -> str:
        """Start a held job, wait for its end, return what it wrote."""
        self.start(job_id, node)
        self.wait_state(job_id, *FINISHED)
        return (self.home / f"{job_id}.out").read_text()


@contextmanager
def held_cluster(name: str) -> Iterator[HeldCluster]:
    """A cluster of one module's own, taken down at its end."""
    with own_cluster(name, NODES, 1.0, spec={"daemons": False}) as cluster:
        yield HeldCluster(cluster)
