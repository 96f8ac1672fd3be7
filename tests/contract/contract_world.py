"""The two worlds the contract is tried in: recorded answers behind a fake Slurm, and a live mini cluster.

A test speaks only to its `World`: it acts as users and root, breaks daemons, and holds the port under test.
In the live world everything happens; with GANDIVA_RECORD=1 it is also written on a tape, one directory a
test. In the recorded world the same test runs against that tape.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.model.errors import SlurmUnreachable
from gandiva_slurm.model.snapshot import SlurmJob, Snapshot
from gandiva_slurm.node import procs
from gandiva_slurm.slurm.commands import CommandsPort, Timeouts
from gandiva_slurm.slurm.pyslurm_link import WORKER, Worker
from gandiva_slurm.slurm.pyslurm_port import PyslurmPort
from gandiva_slurm.slurm.run import Answer, Commands
from tests import patience
from tests.skips import NO_PYSLURM

PARTITIONS = ["gandiva"]
#: How long something awaited may take in the live world.
DEADLINE_S = 60.0
#: Answers longer than this lie in a file of their own.
MAX_INLINE = 2000
#: How the port asks squeue about some jobs.
ASKED_JOBS = "--jobs="
RECORD = (
    'gandiva:{"v":1,"tickets":200,"priority":50,"class":"guaranteed","vc":"","types":"v100,p100","cell":"any",'
    '"elastic":"","pack":"auto","migrate":"auto","hook":"auto","gpus":%d,"type":"v100","user_hold":false}'
)


class World(Protocol):
    """What a contract test acts on."""

    port: CommandsPort
    commands: Commands
    is_live: bool
    address: str  # n1's

    async def run(self, *argv: str, user: str = "user1", check: bool = True) -> str:
        """Run a command as a user and return what it printed; with `check`, it must succeed."""

    def kill(self, daemon: str) -> None:
        """Kill a daemon of Slurm."""

    def mend(self, daemon: str) -> None:
        """Start it again."""

    async def until(self, true: Callable[[Snapshot], bool]) -> Snapshot:
        """Take snapshots until this holds, and return the one in which it does."""

    async def has_begun(self, job_id: int) -> None:
        """Wait until a job's script ignores SIGTERM: Slurm says that it runs before it does."""

    async def close(self) -> None:
        """End the port's own processes."""


async def submit(world: World, *argv: str, gpus: int = 1, script: str = "sleep 600") -> int:
    """Submit a held job of user1 with a Gandiva record, as job_submit.lua leaves it; return its id."""
    common = ("-H", "--parsable", "-p", "gandiva", "-o", "/dev/null", "--chdir=/home/user1")
    job_id = int(await world.run("sbatch", *common, *argv, "--wrap", script))
    await world.run(
        "scontrol", "update", f"JobId={job_id}", f"AdminComment=other:text {RECORD % gpus}", user="root"
    )
    return job_id


def job(snapshot: Snapshot, job_id: int) -> SlurmJob:
    """Return the job of this id."""
    return {job.job_id: job for job in snapshot.jobs}[job_id]


def tasks(snapshot: Snapshot, array_job_id: int) -> dict[int, SlurmJob]:
    """Return the tasks of an array that have a record of their own."""
    found = (job for job in snapshot.jobs if job.array_job_id == array_job_id)
    return {job.array_task_id: job for job in found if job.array_task_id is not None}


class Tape:
    """Everything asked and answered in one test, in order."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def add(self, who: str, argv: Sequence[str], answer: Answer) -> None:
        entry = {"who": who, "argv": list(argv), "rc": answer.rc, "out": answer.out, "err": answer.err}
        self.entries.append(entry)

    def save(self, home: Path, scrub: Callable[[str], str]) -> None:
        """Write the tape; a long answer into a file of its own."""
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for number, entry in enumerate(self.entries):
            entry["out"], entry["err"] = scrub(entry["out"]), scrub(entry["err"])
            if len(entry["out"]) > MAX_INLINE:
                entry["out_file"] = (
                    f"{number:02}-{entry['argv'][0]}.{'json' if '--json' in str(entry['argv']) else 'txt'}"
                )
                (home / entry["out_file"]).write_text(entry["out"])
                entry["out"] = ""
        (home / "tape.json").write_text(json.dumps(self.entries, indent=1) + "\n")


class RecordingCommands(Commands):
    """Runs the commands for real and keeps what was said."""

    def __init__(self, prefix: Sequence[str], tape: Tape) -> None:
        super().__init__(prefix)
        self._tape = tape

    async def run(self, argv: Sequence[str], timeout_s: float) -> Answer:
        answer = await super().run(argv, timeout_s)
        self._tape.add("port", argv, answer)
        return answer


#: What Python says of itself inside: where our package lies, and whether it has pyslurm.
LOOK = (
    "import gandiva_slurm.slurm, importlib.util as u;"
    "print(gandiva_slurm.slurm.__path__[0], u.find_spec('pyslurm') is not None)"
)


def worker_argv(cluster: MiniCluster) -> tuple[str, ...]:
    """Return the words that start a worker inside; the test is skipped where Python has no pyslurm there."""
    python = str(cluster.site.programs / "python")
    directory, has_pyslurm = cluster.exec([python, "-c", LOOK]).stdout.split()
    if has_pyslurm != "True":
        pytest.skip(NO_PYSLURM)
    return (python, "-P", f"{directory}/{WORKER.name}")


class RecordingWorker(Worker):
    """Asks pyslurm for real and keeps what it answered."""

    tape: Tape

    async def ask(self, name: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
        answer = await super().ask(name, arguments)
        said = Answer(0, json.dumps(answer, separators=(",", ":")), "")
        self.tape.add("pyslurm", [name, *map(json.dumps, arguments)], said)
        return answer


def pyslurm_port(
    commands: Commands, timeouts: Timeouts, argv: tuple[str, ...] = Worker.argv, tape: Tape | None = None
) -> PyslurmPort:
    """Return the back end of pyslurm with its workers started so."""

    def recorder(commands: Commands) -> Worker:
        worker = RecordingWorker(commands)
        worker.argv, worker.tape = argv, tape or Tape()
        return worker

    return PyslurmPort(PARTITIONS, timeouts, commands, make_worker=recorder)


class LiveWorld:
    """A mini cluster without our daemons; the port runs in it as slurm, as gandivactld does."""

    is_live = True

    def __init__(self, cluster: MiniCluster, back_end: str) -> None:
        self.cluster = cluster
        self.tape = Tape()
        prefix = cluster.command(["placeholder"], "slurm", "cd / && ")[:-1]
        self.commands = RecordingCommands(prefix, self.tape)
        self.port: CommandsPort = CommandsPort(PARTITIONS, Timeouts(30, 30, 30), self.commands)
        if back_end == "pyslurm":
            self.port = pyslurm_port(self.commands, Timeouts(30, 30, 30), worker_argv(cluster), self.tape)
        self.address = cluster.site.nodes["n1"].ip
        self.first_job = int(
            re.findall(r"NEXT_JOB_ID *= *(\d+)", cluster.exec(["scontrol", "show", "config"]).stdout)[0]
        )

    async def run(self, *argv: str, user: str = "user1", check: bool = True) -> str:
        done = await asyncio.to_thread(self.cluster.exec, argv, user=user, check=check)
        self.tape.add(user, argv, Answer(done.returncode, done.stdout, done.stderr))
        return done.stdout

    def kill(self, daemon: str) -> None:
        self.cluster.kill(daemon)

    def mend(self, daemon: str) -> None:
        self.cluster.start_daemon(daemon)

    async def until(self, true: Callable[[Snapshot], bool]) -> Snapshot:
        end_s = patience.deadline(DEADLINE_S)
        while True:
            length = len(self.tape.entries)
            try:
                snapshot = await self.port.snapshot(False)
                if true(snapshot):
                    return snapshot
                assert time.monotonic() < end_s, f"not seen within {DEADLINE_S:g} s; last: {snapshot}"
            except SlurmUnreachable:
                assert time.monotonic() < end_s, f"slurmctld away for more than {DEADLINE_S:g} s"
            # What was asked once only must stay.
            self.tape.entries[length:] = [
                entry for entry in self.tape.entries[length:] if entry["argv"][-1] == "--version"
            ]
            await asyncio.sleep(0.1)

    async def has_begun(self, job_id: int) -> None:
        end_s = patience.deadline(DEADLINE_S)
        while not any(self._ignores_term(job_id, int(pid)) for pid in os.listdir("/proc") if pid.isdigit()):
            assert time.monotonic() < end_s, f"job {job_id} has not begun within {DEADLINE_S:g} s"
            await asyncio.sleep(0.1)

    def _ignores_term(self, job_id: int, pid: int) -> bool:
        words = procs.read_text(pid, "environ").split("\0")
        ignored = re.search(r"^SigIgn:\s*(\w+)$", procs.read_text(pid, "status"), re.MULTILINE)
        is_there = ignored is not None and int(ignored[1], 16) >> (signal.SIGTERM - 1) & 1
        if not is_there or f"SLURM_JOB_ID={job_id}" not in words:
            return False
        with contextlib.suppress(OSError):  # other tests' clusters number their jobs, too
            ours = {os.readlink(f"/proc/{of}/ns/ipc") for of in self.cluster.pids.values()}
            return os.readlink(f"/proc/{pid}/ns/ipc") in ours
        return False

    async def close(self) -> None:
        await self.port.close()

    def save(self, home: Path) -> None:
        """Write what happened, with the jobs of this test only and nothing of this machine."""
        kept = [entry for entry in self.tape.entries if self._forget_others(entry)]
        self.tape.entries[:] = kept
        self.tape.save(home, self._scrub)

    def _forget_others(self, entry: dict[str, Any]) -> bool:
        """Take the jobs of other tests out of a question about some jobs; False when none is left."""
        for place, word in enumerate(entry["argv"]):
            if word.startswith(ASKED_JOBS):
                ours = [
                    number for number in word[len(ASKED_JOBS) :].split(",") if int(number) >= self.first_job
                ]
                entry["argv"][place] = ASKED_JOBS + ",".join(ours)
                lines = [line.split() for line in entry["out"].splitlines()]
                entry["out"] = "".join(" ".join(line) + "\n" for line in lines if line[0] in ours)
                return bool(ours)
        return True

    def _is_ours(self, job: Mapping[str, Any]) -> bool:
        return bool(job["job_id" if "job_id" in job else "id"] >= self.first_job)

    def _scrub(self, text: str) -> str:
        if text.startswith("{"):
            answer = json.loads(text)
            table = answer.get("value") if isinstance(answer.get("value"), dict) else answer
            if table.get("jobs"):
                table["jobs"] = [job for job in table["jobs"] if self._is_ours(job)]
            answer.pop("meta", None)
            text = json.dumps(answer, separators=(",", ":"))
        text = text.replace(str(self.cluster.at.root), "/run/gandiva-mini/contract")
        return re.sub(r'"operating_system":"[^"]*"', '"operating_system":"Linux"', text)


class RecordedWorld:
    """The fake Slurm on PATH; what users did is on the tape too."""

    is_live = False
    address = "10.99.0.1"

    def __init__(self, home: Path, back_end: str) -> None:
        self.commands = Commands()
        self.port: CommandsPort = CommandsPort(PARTITIONS, Timeouts(30, 30, 30), self.commands)
        if back_end == "pyslurm":
            self.port = pyslurm_port(self.commands, Timeouts(30, 30, 30))
        entries = json.loads((home / "tape.json").read_text())
        self._said = [entry for entry in entries if entry["who"] not in ("port", "pyslurm")]

    async def run(self, *argv: str, user: str = "user1", check: bool = True) -> str:
        assert self._said, f"not on the tape: {argv}; record it anew"
        entry = self._said.pop(0)
        assert (entry["who"], entry["argv"]) == (user, list(argv)), (
            "the tape is of another test; record it anew"
        )
        return str(entry["out"])

    def kill(self, daemon: str) -> None:
        """On the tape, Slurm's silence is recorded."""

    def mend(self, daemon: str) -> None:
        """On the tape, Slurm's return is recorded."""

    async def close(self) -> None:
        await self.port.close()

    async def has_begun(self, job_id: int) -> None:
        pass

    async def until(self, true: Callable[[Snapshot], bool]) -> Snapshot:
        snapshot = await self.port.snapshot(False)
        assert true(snapshot), snapshot
        return snapshot


def install_fake(home: Path, directory: Path) -> dict[str, str]:
    """Put the fake and one tape into a directory; return the environment variables that make it Slurm."""
    shutil.copytree(home, directory / "tape")
    (directory / "tape/claims").mkdir()
    (directory / "bin").mkdir()
    fake = Path(__file__).with_name("fake_slurm.py").read_text()
    for name in ("squeue", "sinfo", "scontrol", "sacctmgr"):
        program = directory / "bin" / name
        program.write_text(f"#!{sys.executable} -SE\n{fake}")
        program.chmod(0o755)
    shutil.copy(Path(__file__).with_name("fake_slurm.py"), directory / "fake_slurm.py")
    shutil.copy(Path(__file__).with_name("fake_pyslurm.py"), directory / "pyslurm.py")
    return {
        "PATH": f"{directory / 'bin'}:/usr/bin:/bin",
        "FAKE_SLURM": str(directory / "tape"),
        "PYTHONPATH": str(directory),
    }
