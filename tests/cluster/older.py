"""An older release's daemons on a mini cluster: brought up with jobs running, killed, what they left copied.

    python -m tests.cluster.older DIRECTORY     # records DIRECTORY anew (tests/data/upgrade-e824e5a)

The Slurm, the plugin and the Lua module are those of this release (the last two have not changed since); the
daemons and the clients in the jobs are the older ones, taken from git's history.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from gandiva_slurm.mini import boot, conffiles, daemons, layout
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.daemons import Daemon
from gandiva_slurm.mini.site import Site
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes
from tests.cluster.fleet import Fleet, wait_for
from tests.records import holds_of

#: The last commit before a policy decided on clusters.
COMMIT = "e824e5ad7b67f615fd97a8fd3172afd5ef197ac7"
TRAINING = Path(__file__).parents[1] / "node/scripts/attached.py"
NODES, QUANTUM_S = "v100:2x1,k80:1x1", 0.5
#: Of its gandiva.yaml. Some keys have no effect any more, some mean something else; there is no policy.
MOVES = {
    "enabled": True, "min_run_s": 2, "per_hour": 20, "at_once": 2, "cost_s": 0, "deadline_s": 60,
    "balance_percent": 25, "faster_percent": 25,
}  # fmt: skip
PACKING = {"enabled": False, "trial_quanta": 3, "floor": 1.05, "retry_s": 3600}
ENDLESS = 10**9
#: Its modules by the name of the daemon's command.
MODULES = {"gandivactld": "gandiva_slurm.controller.main", "gandivad": "gandiva_slurm.node.main"}
#: Slurm's own words on a job.
SQUEUE = ("job_id", "state", "node", "user", "restart")


def unpack(into: Path) -> None:
    """Write the older package; it must be in git's history."""
    words = ["git", "-C", str(layout.CLONE), "archive", COMMIT, "gandiva_slurm"]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode == 0, f"{COMMIT} is not in this clone's history: {done.stderr.decode()}"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(into)


def older_daemons(tree: Path) -> Any:
    """Return what stands in for `daemons._gandiva`: the same commands, run from the older package."""
    plain = daemons._gandiva

    def of(spec: MiniSpec, site: Site) -> list[Daemon]:
        return [replace(each, argv=_older(tree, site, each.argv)) for each in plain(spec, site)]

    return of


def _older(tree: Path, site: Site, argv: tuple[str, ...]) -> tuple[str, ...]:
    program, *words = argv
    python = ("env", f"PYTHONPATH={tree}", f"{site.programs}/python", "-m", MODULES[Path(program).name])
    return (*python, *words)


@contextmanager
def older_cluster(name: str) -> Iterator[MiniCluster]:
    """A cluster on which the older daemons run; those started later are today's."""
    cluster = MiniCluster.up(MiniSpec(f"{name}-{os.getpid()}", parse_nodes(NODES), QUANTUM_S, daemons=False))
    try:
        tree = cluster.at.root / "older"
        unpack(tree)
        text = conffiles.gandiva_yaml(cluster.spec, cluster.site) | {"moves": MOVES, "packing": PACKING}
        del text["policy"], text["isolation"], text["node"]["gpu_files"]
        (cluster.at.etc / "gandiva.yaml").write_text(yaml.safe_dump(text, sort_keys=False))
        with mock.patch.object(daemons, "_gandiva", older_daemons(tree)):
            boot.start_gandiva(cluster, lambda text: None)
        for user in ("user1", "user2"):
            cluster.path(f"/home/{user}", TRAINING.name).write_text(TRAINING.read_text())
        yield cluster
    finally:
        cluster.down()


class Jobs:
    """Trainings of two users, without PyTorch: one that was moved, some that share a GPU, one that waits."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.users: dict[int, str] = {}
        first = [self.train("user2", "v100") for _ in range(2)]
        for job in first:
            fleet.wait_running(job)
        first.append(self.train("user1", "v100"))
        self.wait_trains(first[-1])
        alone, free = wait_for(lambda: self._alone(first), "two of them to share a node")
        fleet.mini.exec(["scancel", str(alone)])
        del self.users[alone]
        shared = [job for job in first if job != alone]
        #: the one that was moved to the node where none lived any more
        self.moved: int = wait_for(
            lambda: next((job for job in shared if self.node(job) == free), 0), "a move", 60
        )
        self.sharing = [self.train(user, "k80") for user in ("user1", "user2", "user1")]
        for job in self.sharing:
            fleet.wait_running(job)
        #: the last slot is for a third user
        self.waiting = self.train("user2", "k80")
        for job in self.users.keys() - {self.waiting}:
            self.wait_trains(job)

    def _alone(self, jobs: list[int]) -> tuple[int, str] | None:
        """The one of three on two nodes that has a node to itself, and that node; None: one is on its way."""
        homes = {job: self.node(job) for job in jobs}
        found = [(job, home) for job, home in homes.items() if [*homes.values()].count(home) == 1]
        return found[0] if len(found) == 1 and all(homes.values()) else None

    def train(self, user: str, kind: str) -> int:
        """Submit a training whose client is the older one."""
        older = self.fleet.mini.at.root / "older"
        script = f"export OUT=~ PYTHONPATH={older}\nexec python {TRAINING.name} 20 {ENDLESS}"
        job = self.fleet.submit(user, script, f"--gandiva-gpu-types={kind}", "--gandiva-pack=never")
        self.users[job] = user
        return job

    def node(self, job: int) -> str:
        """Where Slurm has it."""
        return self.fleet.mini.exec(["squeue", "-h", "-j", str(job), "-o", "%N"]).stdout.strip()

    def lines(self, job: int) -> list[str]:
        """What it has written."""
        path = self.fleet.home(self.users[job], f"loss.{job}")
        return path.read_text().splitlines() if path.exists() else []

    def wait_trains(self, job: int, deadline_s: float = 60) -> None:
        """Wait until it has done some mini-batches more."""
        was = len(self.lines(job))
        wait_for(lambda: len(self.lines(job)) > was + 20, f"job {job} to train", deadline_s)

    def slurm(self) -> list[dict[str, Any]]:
        """Slurm's own words on all jobs that have not ended."""
        told = self.fleet.mini.exec(["squeue", "-h", "-a", "-o", "%i|%T|%N|%u|%r"]).stdout
        rows = [line.split("|") for line in told.splitlines()]
        return [
            {"job_id": int(job), "state": state, "node": node, "user": user, "restart": self._restarts(job)}
            for job, state, node, user, _ in rows
        ]

    def _restarts(self, job: str) -> int:
        told = self.fleet.mini.exec(["scontrol", "show", "job", job]).stdout
        return int(told.partition("Restarts=")[2].split()[0])


def kill_all(fleet: Fleet, jobs: Jobs) -> None:
    """kill -9 of our daemons; Slurm and the jobs go on. The ledger lacks what was held meanwhile."""
    fleet.mini.kill("gandivactld")
    fleet.wait_suspends(jobs.sharing[0], 2, "n3")
    for node in fleet.mini.spec.nodes:
        fleet.mini.kill(f"gandivad:{node.name}")


def held_s(fleet: Fleet) -> dict[int, float]:
    """GPU time of each job so far, by the nodes' own event logs; of holds that go on until the last event."""
    found: dict[int, float] = {}
    for node in fleet.mini.spec.nodes:
        events = fleet.events(node.name)
        for hold in holds_of(events, events[-1]["mono_ns"]):
            seconds = (hold.t1_ns - hold.t0_ns) / 1e9 * len(hold.gpus)
            found[hold.job_id] = found.get(hold.job_id, 0.0) + seconds
    return found


def copy_state(fleet: Fleet, jobs: Jobs, into: Path) -> None:
    """Copy what daemons that were killed left, and what is true of the jobs."""
    spool, books = fleet.mini.at.spool, into / "gandivactld"
    books.mkdir(parents=True)
    for path in spool.glob("gandivactld/*.sqlite"):  # each as one file
        with closing(sqlite3.connect(path)) as found, closing(sqlite3.connect(books / path.name)) as copy:
            found.backup(copy)
            copy.execute("pragma journal_mode=delete")
            copy.execute("vacuum")
    for node in fleet.mini.spec.nodes:
        kept = shutil.ignore_patterns("lock")
        shutil.copytree(spool / "gandivad" / node.name, into / "gandivad" / node.name, ignore=kept)
    shutil.copy(fleet.mini.at.etc / "gandiva.yaml", into)
    truth = {"slurm": jobs.slurm(), "held_s": held_s(fleet), "moved": jobs.moved, "waiting": jobs.waiting}
    (into / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def main(directory: str) -> None:
    """Record an older release's state."""
    with older_cluster("older") as cluster:
        fleet = Fleet(cluster)
        jobs = Jobs(fleet)
        kill_all(fleet, jobs)
        copy_state(fleet, jobs, Path(directory))


if __name__ == "__main__":
    main(sys.argv[1])
