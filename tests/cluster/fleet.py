"""Submit, watch and judge jobs on a mini cluster with its daemons; every wait has a deadline."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from gandiva_slurm.cli.json_shapes import PRINTED
from gandiva_slurm.engine import invariants
from gandiva_slurm.mini import conffiles, daemons, probe
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.site import Site
from gandiva_slurm.mini.spec import USERS, MiniSpec, parse_nodes
from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.slurm.run import UNREACHABLE
from tests import patience
from tests.records import Held, holds_of, open_grants, read_lines

TRAIN = "python -m gandiva_slurm.mini.workloads.train"
#: A job with a client and without PyTorch: it starts at once and takes next to no CPU. It notes its steps.
LIGHT = """
import os, sys, time
import gandiva_slurm as gandiva
while not os.path.exists(sys.argv[2]):
    with open(sys.argv[1], "a") as steps:
        print(time.monotonic_ns(), file=steps)
    time.sleep(0.005)
    gandiva.step()
"""
#: torch alone takes seconds to import while four ranks share two cores.
START_S = 60.0
#: When jobs died with their node, by cluster and job: a cluster's event logs are those of all its tests.
_LOST: dict[tuple[str, int], int] = {}
#: How long a wait sleeps at least between two looks.
POLL_S = 0.1
#: What a command says whose daemon has not answered in the seconds that it gives it.
BUSY = ("(timed out)", "ask again", "has not kept this within")
#: Times of gandiva.yaml after which what is late is given up: a slow machine has more.
LATE = {
    "node": ("client_wait_s", "park_deadline_s"),
    "controller": ("start_deadline_s",),
    "moves": ("deadline_s",),
}


def wait_for(holds: Callable[[], Any], what: str | Callable[[], str], deadline_s: float = 30.0) -> Any:
    """Return the first true answer of `holds()`; fail at the deadline with what was waited for.

    A machine may get busy after the wait has begun: the deadline goes with the slowest it was meanwhile.
    """
    from_s = began_s = time.monotonic()
    end_s, is_last = patience.deadline(deadline_s), False
    while not (answer := _answer_of(holds)):
        now_s = time.monotonic()
        end_s = max(end_s, from_s + deadline_s * patience.slowness())
        assert not is_last, f"not within {deadline_s:g} s: {what() if callable(what) else what}"
        is_last = now_s >= end_s
        time.sleep(probe.pause_s(now_s - began_s, POLL_S))
        began_s = time.monotonic()
    return answer


def _answer_of(holds: Callable[[], Any]) -> Any:
    """What it says; False where it asked Slurm, which has no processor for ten seconds on a busy machine."""
    try:
        return holds()
    except GandivaError as err:
        if not any(words in str(err) for words in UNREACHABLE):
            raise
        return False


def said(mini: MiniCluster, *words: str, user: str | None = None) -> str:
    """What a `gandiva` command prints, which must succeed."""
    done = asked(mini, *words, user=user)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def asked(mini: MiniCluster, *words: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
    """How a `gandiva` command ended, which may fail.

    Its daemon is given some seconds; where the host is too busy for it, one asks again.
    """
    end_s = patience.deadline(180)
    while True:
        done = mini.exec(["gandiva", *words], user=user, check=False)
        told = done.stderr + (done.stdout if done.returncode else "")  # `check` tells of it as what it found
        if not any(word in told for word in BUSY) or time.monotonic() >= end_s:
            return done
        time.sleep(POLL_S)


def window_of(
    is_fair: Callable[[tuple[int, int]], bool], least_s: float, most_s: float, begin_ns: int = 0
) -> tuple[int, int]:
    """Let time go by, and return a window of time.monotonic_ns() for shares to be judged; it may have begun.

    It takes `least_s` more, and again while it is not fair, until `most_s` are over: what one late park costs
    shows in a short window, and is paid back; what a scheduler does wrong stays. It is judged at these
    moments alone, lest it be fair by chance at one of many.
    """
    begin_ns, due_s = begin_ns or time.monotonic_ns(), time.monotonic() + least_s
    end_s = patience.deadline(most_s)
    while True:
        wait_for(lambda due_s=due_s: time.monotonic() >= due_s, "the window to go by", least_s + 5)
        window_ns = (begin_ns, time.monotonic_ns())
        if is_fair(window_ns) or time.monotonic() >= end_s:
            return window_ns
        due_s += least_s


class Fleet:
    """A mini cluster as its users and its administrator see it."""

    def __init__(self, mini: MiniCluster) -> None:
        self.mini = mini
        self.jobs: list[int] = []

    def submit(self, user: str, lines: str, *flags: str, gpus: int = 1) -> int:
        """Submit a batch script as `user` on the partition `gandiva`; returns the job id."""
        script = f"#!/bin/bash\n{lines}\n"
        told = self.mini.exec(
            ["sbatch", "--parsable", "-p", "gandiva", f"--gres=gpu:{gpus}", "--mem=1000", *flags],
            user=user,
            input=script,
        )
        self.jobs.append(int(told.stdout.split(";")[0]))
        return self.jobs[-1]

    def train(self, user: str, name: str, *flags: str, gpus: int = 1) -> int:
        """Submit a light job that takes steps until `stop(name)`."""
        script = f"exec python - ~/{name}.0.steps ~/{name}.stop <<'END'{LIGHT}END"
        return self.submit(user, script, *flags, gpus=gpus)

    def stop(self, user: str, name: str) -> None:
        """Let a training job end after its step."""
        self.home(user, f"{name}.stop").touch()

    def home(self, user: str, *parts: str) -> Path:
        """A file in a user's home, as this host sees it."""
        return self.mini.path(f"/home/{user}", *parts)

    def steps(self, user: str, name: str) -> int:
        """How many steps a training job has logged (it writes them in small groups)."""
        path = self.home(user, f"{name}.0.steps")
        return sum(1 for _ in path.open()) if path.exists() else 0

    def are_there(self, jobs: Collection[int]) -> bool:
        """True when each of these lives on its nodes, on its GPUs or parked."""
        states = {row["job_id"]: row["state"] for row in self.ask("queue")["jobs"]}
        return all(states.get(number) in ("RUNNING", "SUSPENDED") for number in jobs)

    def wait_moves_by(self, job_id: int, how: str) -> None:
        """Wait until `gandiva queue` says that a job moves so; its node looks now and then."""
        rows: list[dict[str, Any]] = []

        def is_told() -> bool:
            rows[:] = [row for row in self.ask("queue")["jobs"] if row["job_id"] == job_id]
            return [row["moves_by"] for row in rows] == [how]

        wait_for(is_told, lambda: f"job {job_id} to move by {how}: {rows}")

    def slurm_state(self, job_id: int) -> str:
        """Slurm's word for a job; UNHEARD where it gives none."""
        words = ["squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%T"]
        done = self.mini.exec(words, check=False)
        if "timed out" in done.stderr:  # slurmctld had no processor for ten seconds
            done = self.mini.exec(words, check=False)
        is_gone = done.returncode == 0 or "Invalid job id" in done.stderr
        return done.stdout.strip() or ("GONE" if is_gone else "UNHEARD")

    def ask(self, *words: str) -> Any:
        """What a `gandiva … --json` command tells root, held to its published shape."""
        told = json.loads(said(self.mini, *words, "--json"))
        option = next((word for word in words if word in ("--if", "--new")), "")
        PRINTED[f"{words[0]} {option}".rstrip()].model_validate(told)
        return told

    def accounts(self) -> list[dict[str, Any]]:
        """All jobs of the accounts, of before midnight too."""
        return list(self.ask("acct", "-a", "-S", "now-1day")["jobs"])

    def events(self, node: str = "n1") -> list[dict[str, Any]]:
        """The node's event log, oldest first."""
        path = self.mini.path("spool", "gandivad", node, "events.jsonl")
        return read_lines(path)

    def holders(self, node: str) -> Collection[Any]:
        """What holds GPUs of the node now, by its own event log."""
        return open_grants(self.events(node))

    def count(self, event: str, job_id: int, node: str = "n1") -> int:
        """How often this happened to a job."""
        return sum(1 for line in self.events(node) if line["event"] == event and line.get("job") == job_id)

    def wait_running(self, job_id: int, deadline_s: float = START_S) -> None:
        """Wait until Slurm runs the job."""
        wait_for(
            lambda: self.slurm_state(job_id) == "RUNNING",
            lambda: f"job {job_id} to run: {self.ask('why', str(job_id))}",
            deadline_s,
        )

    def wait_ended(self, job_id: int, *want: str, deadline_s: float = START_S) -> str:
        """Wait until Slurm has finished with the job; its last word must be one of `want`, when given."""
        state = wait_for(
            lambda: (
                (s := self.slurm_state(job_id))
                in {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "GONE"}
                and s
            ),
            f"job {job_id} to end",
            deadline_s,
        )
        assert not want or state in want, f"job {job_id} ended {state}\n{self.told_of(job_id)}"
        return str(state)

    def told_of(self, job_id: int) -> str:
        """Slurm's record of a job, its last words and those of the daemons about it."""
        record = self.mini.exec(["scontrol", "-o", "show", "job", str(job_id)], check=False).stdout
        path = next((word[7:] for word in record.split() if word.startswith("StdOut=")), "/dev/null")
        tail = self.mini.exec(["tail", "-n", "20", path], check=False).stdout
        logs = [*self.mini.at.log.glob("gandiva*.log"), self.mini.log("slurmctld")]
        texts = [(log.name, log.read_text(errors="replace")) for log in logs]
        lines = [f"{name}: {line}" for name, text in texts for line in text.splitlines()]
        return "\n".join([record, tail, *[line for line in lines if str(job_id) in line][-60:]])

    def parks(self, node: str = "n1") -> Counter[int]:
        """How often each job was parked on the node."""
        return Counter(line["job"] for line in self.events(node) if line["event"] == "parked")

    def wait_suspends(
        self, jobs: int | Collection[int], more: int, node: str = "n1", deadline_s: float = START_S
    ) -> None:
        """Wait until the job, or each of these, has been parked `more` times from now on."""
        begin, every = self.parks(node), [jobs] if isinstance(jobs, int) else jobs
        wait_for(
            lambda: (now := self.parks(node)) and all(now[job] >= begin[job] + more for job in every),
            f"{more} parks of {every}",
            deadline_s * len(every),
        )

    def strays(self) -> list[str]:
        """Command lines of processes of the users that still live inside."""
        found = []
        for pid in self.mini.processes():
            if probe.start_ticks(pid) is None:
                continue
            try:
                uid, command = os.stat(f"/proc/{pid}").st_uid, Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if uid in USERS.values():
                found.append(f"{pid} {command.decode(errors='replace')}")
        return found

    def start_dead(self) -> None:
        """Start every daemon that a test left dead, and wait until Slurm answers."""
        for daemon in daemons.table(self.mini.spec, self.mini.site):
            if self.mini.daemon_pid(daemon) is None:
                self.mini.start_daemon(daemon)
        wait_for(lambda: self.mini.exec(["squeue", "-h"], check=False).returncode == 0, "Slurm to answer")

    def finish(self) -> None:
        """End every job of this fleet; nothing of them may be left, on the nodes or in the books."""
        live = [str(job) for job in self.jobs if self.slurm_state(job) != "GONE"]
        cancel = ["scancel", *live]
        if live and self.mini.exec(cancel, check=False).returncode != 0:  # not heard, or one has just ended
            self.mini.exec(cancel, check=False)
        wait_for(lambda: not self.strays(), lambda: f"stray processes to end: {self.strays()}", 30)
        for node in self.mini.spec.nodes:
            wait_for(
                lambda node=node: not self.holders(node.name), f"{node.name} to release every GPU", 20
            )
        # What ends still is a place taken, for those of the next test.
        end_s = patience.deadline(10)
        while self.jobs and self._are_ending() and time.monotonic() < end_s:
            time.sleep(POLL_S)
        self.check_books()
        self.jobs.clear()

    def _are_ending(self) -> bool:
        told = self.mini.exec(["squeue", "-h", "-t", "CG,R", "-o", "%A"], check=False).stdout
        return not {str(job) for job in self.jobs}.isdisjoint(told.split())

    def note_lost(self, jobs: Iterable[int]) -> None:
        """These have died with their node now: its gandivad tells of their end when it comes back."""
        _LOST.update({(self.mini.spec.name, job): time.monotonic_ns() for job in jobs})

    def _cut(self, hold: Held) -> Held:
        lost_ns = _LOST.get((self.mini.spec.name, hold.job_id), 0)
        return replace(hold, t1_ns=min(hold.t1_ns, lost_ns)) if hold.t0_ns < lost_ns else hold

    def check_books(self) -> None:
        """The invariants that the nodes' own event logs can show."""
        held = {node.name: holds_of(self.events(node.name)) for node in self.mini.spec.nodes}
        held = {node: [self._cut(hold) for hold in holds] for node, holds in held.items()}
        found = [line for holds in held.values() for line in invariants.no_gpu_held_twice(holds)]
        found += invariants.one_incarnation_at_a_time(held)
        assert not found, found


AnyFleet = TypeVar("AnyFleet", bound=Fleet)


@contextmanager
def own_cluster(
    name: str, nodes: str, quantum_s: float, *, spec: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[MiniCluster]:
    """A cluster of one module's own, taken down at its end.

    `spec`: what else it is to be (MiniSpec); `settings`: of gandiva.yaml, by part. What these leave as it is
    of `LATE`, and how long a move may take, go with the machine's speed.
    """
    plain, slowness = conffiles.gandiva_yaml, patience.slowness()

    def with_settings(spec: MiniSpec, site: Site) -> dict[str, Any]:
        text = plain(spec, site)
        parts = {part: values for part, values in settings.items() if isinstance(values, dict)}
        made = text | settings | {part: text.get(part, {}) | values for part, values in parts.items()}
        for part, keys in LATE.items():
            named = parts.get(part, {}) if part != "moves" else {}
            own = {key: made[part][key] for key in keys if key in made.get(part, {}) and key not in named}
            made |= {part: made.get(part, {}) | {key: value * slowness for key, value in own.items()}}
        return made

    wanted = MiniSpec(f"{name}-{os.getpid()}", parse_nodes(nodes), quantum_s, **(spec or {}))
    with mock.patch.object(conffiles, "gandiva_yaml", with_settings):
        cluster = MiniCluster.up(wanted)
    try:
        yield cluster
    finally:
        cluster.down()


def forecast(fleet: Fleet) -> None:
    """Have a forecast made, by the user that gandivactld is."""
    words = ["gandiva", "forecast", "--once"]

    def is_made() -> bool:
        return fleet.mini.exec(words, user="slurm", check=False).returncode == 0

    wait_for(is_made, "a forecast to be made", 120)


def changed_ns(file: Path) -> int:
    """When a file was written, unix time; 0 where there is none, as while slurmctld puts a new one there."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def set_slurm(mini: MiniCluster, **values: object) -> None:
    """Give keys of slurm.conf other values, and have Slurm's daemons take them."""
    conf = mini.at.etc / "slurm.conf"
    kept = [line for line in conf.read_text().splitlines() if line.partition("=")[0] not in values]
    text = "\n".join([*kept, *(f"{key}={value}" for key, value in values.items()), ""])
    new, was = conf.with_name("slurm.conf.new"), conf.stat()
    new.write_text(text)  # commands read it all the time
    new.chmod(was.st_mode & 0o777)
    os.chown(new, was.st_uid, was.st_gid)
    os.replace(new, conf)
    # slurmctld of 23.11 and later starts anew before it answers.
    words = ["scontrol", "reconfigure"]
    wait_for(lambda: mini.exec(words, check=False).returncode == 0, "Slurm to take its settings", 60)


def set_down(mini: MiniCluster, node: str) -> None:
    """Have Slurm give up a node whose slurmd was killed: what that sent last may set it up once more."""

    def is_down() -> bool:
        mini.exec(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"], check=False)
        time.sleep(1)  # for what slurmd sent last to come; there is no sign of it
        return "down" in mini.exec(["sinfo", "-h", "-n", node, "-o", "%T"], check=False).stdout

    wait_for(is_down, f"{node} to be down", 60)


@contextmanager
def mended(fleet: AnyFleet) -> Iterator[AnyFleet]:
    """The fleet for one test: at its end all daemons run, every job has ended and the books are whole."""
    yield fleet
    fleet.start_dead()
    fleet.finish()
