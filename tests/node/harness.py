"""A node without Slurm: gandivad's own code, training under a stand-in slurmstepd, plans by hand.

    with NodeHarness(gpus=2, quantum_s=0.3) as node:
        node.plan(a_planned_job(7, "user1", (0,)))
        node.start_job(7, script=[...])
        node.wait(lambda: node.resident(7).state == "RUNNING")

Needs root (tasks run as another user, and only root reads their pages back) and perl.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import procs
from gandiva_slurm.wire import http
from gandiva_slurm.wire.messages import NodePlan, NodeReport, PlannedJob, Resident, decode_report, encode
from tests import patience
from tests.controller.plain_signer import PlainSigner
from tests.ports import free_port
from tests.records import read_lines

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
#: One ticket in the parts that plans use.
TICKET = 1_000_000
#: Users of tests: numbers that nobody else has.
UIDS = {"user1": 61001, "user2": 61002, "user3": 61003}
#: A rank whose hello was lost says it again within 30 s.
DEADLINE_S = 100.0
WITHOUT_GROUPS = ["unshare", "-m", "sh", "-c", 'umount -l /sys/fs/cgroup; exec "$@"', "sh"]
#: A turn that is to end.
SHORT_S = 0.2
#: Names of this run alone: a gandivad takes in whatever process says that it is of its node's jobs.
NODES = (f"n{os.getpid()}a", f"n{os.getpid()}b")

T = TypeVar("T")


def a_planned_job(
    job_id: int, user: str, gpus: tuple[int, ...], restart: int = 0, tickets: int = 100 * TICKET
) -> PlannedJob:
    """A job in a plan; submitted in the order of ids."""
    return PlannedJob(job_id, restart, user, uid_of(user), gpus, tickets, job_id * 10**9, f"job{job_id}")


def uid_of(user: str) -> int:
    """The user's number; root's where others cannot read this clone or its Python."""
    return UIDS[user] if _readable_by_all(ROOT) and _readable_by_all(Path(sys.executable).resolve()) else 0


def _readable_by_all(path: Path) -> bool:
    return all(place.stat().st_mode & 0o005 == 0o005 for place in (path, *path.parents))


class NodeHarness:
    """One gandivad and the jobs of its node; leaves nothing behind."""

    def __init__(self, gpus: int = 1, quantum_s: float = 0.3, **settings: Any) -> None:
        self.gpus = gpus
        self.name = settings.pop("name", NODES[0])
        #: a node on which no control group can be frozen: its gandivad sees none mounted
        self._around = WITHOUT_GROUPS if settings.pop("is_without_groups", False) else []
        #: a program that its gandivad is started by, and its arguments
        self._around = settings.pop("around", self._around)
        self.base = Path(tempfile.mkdtemp(prefix="gandiva-node-"))
        self.base.chmod(0o755)
        self.out = self.base / "out"
        self.out.mkdir(mode=0o777)
        self.out.chmod(0o1777)
        self.state_dir = self.base / "state"
        self.slurm_up = self.base / "slurm-up"
        self.slurm_up.touch()
        self.daemon: subprocess.Popen[bytes] | None = None
        self.steps: dict[JobKey, list[subprocess.Popen[bytes]]] = {}
        self._planned: dict[JobKey, PlannedJob] = {}
        #: what else its plans say
        self.more_of_plan: dict[str, Any] = {}
        self._generation = 0
        self._epoch_ns = time.time_ns()
        self._acks: tuple[str, int] = ("", 0)
        self.quantum_ns = round(quantum_s * 1e9)
        self.settings: dict[str, Any] = {
            "node": self.name,
            "host": "127.0.0.1",
            "port": free_port(),
            "socket": str(self.base / "node.sock"),
            "state_dir": str(self.state_dir),
            "quantum_ns": self.quantum_ns,
            "slurm_up": str(self.slurm_up),
            "look_s": 5.0,
            **settings,
        }

    def __enter__(self) -> NodeHarness:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the daemon

    def start(self) -> None:
        """Start gandivad and wait until it answers."""
        self.spawn()
        self.wait(self._answers)

    def spawn(self) -> None:
        """Start gandivad."""
        conf = self.base / "settings.json"
        conf.write_text(json.dumps(self.settings))
        with open(self.base / "gandivad.log", "ab") as log:
            argv = [*self._around, sys.executable, str(HERE / "gandivad_plain.py"), str(conf)]
            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            self.daemon = subprocess.Popen(argv, cwd=ROOT, stderr=log, env=os.environ | {"PYTHONPATH": path})

    def kill9(self) -> None:
        """Kill gandivad as nothing can prepare for."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def stop(self) -> int:
        """Stop gandivad in order; return its exit code."""
        assert self.daemon is not None
        self.daemon.terminate()
        return self.daemon.wait(DEADLINE_S)

    def close(self) -> None:
        """End all jobs, the daemon and its guards, and remove the files."""
        for key in self.steps:
            self.kill_job(*key)
        with contextlib.suppress(AssertionError, TimeoutError, GandivaError):
            # A span's part is over when a plan says so.
            self.wait(lambda: not self.plan(forget=True).residents, 5)
        guards = [event["guard"] for event in self.events("start")] if self.state_dir.exists() else []
        if self.daemon is not None and self.daemon.poll() is None:
            self.stop()
        for pid in guards:
            words = procs.read_text(pid, "cmdline").split("\0")
            if "gandiva_slurm.node.guard" in words and str(self.state_dir) in words:  # not its number's next
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.base)

    # plans and reports

    def plan(
        self, *jobs: PlannedJob, fence: Sequence[tuple[int, int]] = (), forget: bool = False
    ) -> NodeReport:
        """Send a new plan with these jobs besides those planned before (`forget`: instead of them)."""
        self._planned = {} if forget else self._planned
        self._planned |= {job.key: job for job in jobs}
        self._generation += 1
        plan = NodePlan(
            node=self.name,
            epoch_ns=self._epoch_ns,
            generation=self._generation,
            quantum_ns=self.quantum_ns,
            gpus=self.gpus,
            jobs=tuple(self._planned.values()),
            fence=tuple(fence),
            ack_boot=self._acks[0],
            ack_seq=self._acks[1],
            **self.more_of_plan,
        )
        return self.send(plan)

    def send(self, plan: NodePlan) -> NodeReport:
        """Send this very plan."""
        return self._post("/v1/plan", encode(plan))

    def set_quantum(self, quantum_s: float) -> None:
        """Let turns take so long from now on."""
        self.quantum_ns = round(quantum_s * 1e9)
        self.plan()

    def give_turn(self, job_id: int, lasting_s: float = 3600) -> None:
        """End turns until this job has one, and let that last."""
        while True:
            # The turn under way is made short; the plan behind makes the ones to come long.
            self.set_quantum(SHORT_S)
            self.set_quantum(lasting_s)
            over_ns = self.report().now_ns + round(SHORT_S * 1e9)
            self.wait(lambda over_ns=over_ns: self.report().now_ns > over_ns)
            if self.wait(self._settled)[job_id] == "RUNNING":
                return

    def _settled(self) -> dict[int, str]:
        """States while nobody is on his way, else none."""
        states = self.states()
        return states if {*states.values()} <= {"RUNNING", "SUSPENDED"} else {}

    def report(self) -> NodeReport:
        """Ask for a report."""
        return self._post("/v1/report", b"{}")

    def acknowledge(self, report: NodeReport) -> None:
        """Let the next plan acknowledge the closed holds of this report."""
        closed = [hold.seq for hold in report.holds if hold.seq]
        self._acks = (report.boot, max(closed, default=self._acks[1]))

    def resident(self, job_id: int, restart: int = 0) -> Resident:
        """The job as its node reports it; KeyError when it is not there."""
        found = {(item.job_id, item.restart): item for item in self.report().residents}
        return found[(job_id, restart)]

    def stands_still(self, job_id: int, restart: int = 0) -> bool:
        """True when all processes below a job's slurmstepds are there and run nothing."""
        found = [pid for step in self.steps[JobKey(job_id, restart)] for pid in tree(step.pid)]
        return bool(found) and all(map(is_still, found))

    def states(self) -> dict[int, str]:
        """State by job id."""
        return {item.job_id: item.state for item in self.report().residents}

    def events(self, name: str = "", job_id: int = 0) -> list[dict[str, Any]]:
        """The event log, or what is in it of one name and one job."""
        events = read_lines(self.state_dir / "events.jsonl")
        return [e for e in events if name in ("", e["event"]) and job_id in (0, e.get("job"))]

    def log(self) -> str:
        """What gandivad has said."""
        return (self.base / "gandivad.log").read_text()

    # jobs

    def start_job(
        self, job_id: int, script: Sequence[str], restart: int = 0, step: str = "batch", **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a step of a job as Slurm would: a slurmstepd, and under it `tasks` tasks running the script.

        Options: tasks, slots ("0,1" or "-"), user (else the plan's), env, bind (False: no SPANK plugin).
        """
        key = JobKey(job_id, restart)
        uid = uid_of(options["user"]) if "user" in options else self._planned[key].uid
        program = [sys.executable, *script]
        if options.get("bind", True):
            task = [sys.executable, "-I", str(HERE / "task.py"), str(job_id), str(restart), step]
            program = [*task, options.get("slots", "-"), *program]
        argv = [
            "perl",
            str(HERE / "stepd.pl"),
            f"{job_id}.{step}",
            str(uid),
            str(options.get("tasks", 1)),
            *program,
        ]
        env = self._job_env(job_id, restart) | options.get("env", {})
        if not options.get("bind", True):
            del env["GANDIVA_ROOT_SOCKET"]
        with open(self.out / f"{key}.{step}.log", "ab") as log:
            process = subprocess.Popen(
                argv, stdout=log, stderr=log, env=env, cwd=self.out, start_new_session=True
            )
        self.steps.setdefault(key, []).append(process)
        return process

    def kill_job(self, job_id: int, restart: int = 0) -> None:
        """End a job as scancel does: continue its processes, kill them, and let its slurmstepds end."""
        for step in self.steps.get(JobKey(job_id, restart), []):
            if step.poll() is None:
                for pid in tree(step.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                step.wait(DEADLINE_S)

    def wait(self, condition: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
        """Wait until a condition is true; what it needs may be missing until then.

        A machine may get busy after the wait has begun: the deadline goes with the slowest it was meanwhile.
        """
        from_s, end_s = time.monotonic(), patience.deadline(deadline_s)
        while True:
            with contextlib.suppress(KeyError, IndexError, FileNotFoundError):
                result = condition()
                if result:
                    return result
            end_s = max(end_s, from_s + deadline_s * patience.slowness())
            if time.monotonic() > end_s:
                log = self.log()[-3000:]
                events = "\n".join(map(json.dumps, self.events()[-40:]))
                raise TimeoutError(
                    f"not within {deadline_s} s; states {self._try_states()}; gandivad says:\n{log}\n{events}"
                )
            time.sleep(0.02)

    def _try_states(self) -> object:
        try:
            return self.report().residents
        except Exception as err:
            return err

    def _answers(self) -> bool:
        assert self.daemon is not None
        assert self.daemon.poll() is None, self.log()
        try:
            return bool(self.report().node)
        except Exception:
            return False

    def _job_env(self, job_id: int, restart: int) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.out),
            "GANDIVA_SOCKET": self.settings["socket"],
            "GANDIVA_STEPD_SOCKET": str(self.base / self.name),
            "GANDIVA_ROOT_SOCKET": self.settings["socket"] + ".root",
            "SLURM_JOB_ID": str(job_id),
            "SLURM_RESTART_COUNT": str(restart),
            "OMP_NUM_THREADS": "1",
            "OUT": str(self.out),
        }

    async def post(self, path: str, payload: bytes, timeout_s: float = 30.0) -> bytes:
        """Send this to gandivad, return its answer."""
        url, limit_s = f"http://127.0.0.1:{self.settings['port']}{path}", timeout_s * patience.slowness()
        async with aiohttp.ClientSession() as session:
            return await http.post(session, url, PlainSigner(0), payload, limit_s, frozenset({0}))

    def _post(self, path: str, payload: bytes) -> NodeReport:
        return decode_report(asyncio.run(self.post(path, payload)))


def is_still(pid: int) -> bool:
    """True when a process runs nothing: it is stopped, or its control group is frozen."""
    from gandiva_slurm.node import cgroups, procs

    proc, root = procs.read_proc(pid), cgroups.hierarchy()
    (path,) = [line[3:] for line in procs.read_text(pid, "cgroup").splitlines() if line.startswith("0::")]
    return (proc is not None and proc.is_stopped) or cgroups.is_frozen(Path(f"{root}{path}"))


def tree(pid: int) -> list[int]:
    """All processes below this one."""
    from gandiva_slurm.node import procs

    return [proc.pid for proc in procs.descendants(procs.table(), [pid])]
