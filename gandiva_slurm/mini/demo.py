"""`gandiva mini demo` and `acceptance`: the main job, on a real Slurm, with the accounts to prove it.

Three users with equal tickets share four fake GPUs: user1 has one 2-GPU job, user2 four 1-GPU jobs, and user3
joins with a 4-GPU gang. All train with PyTorch on the CPU. Then everything they left behind is checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gandiva_slurm.mini import demo_busy, demo_checks, demo_screen, demo_slicing, demo_verdict, demo_watch
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_alone import Alone, Reference, start_inside
from gandiva_slurm.mini.demo_busy import Usage
from gandiva_slurm.mini.demo_checks import NS_PER_S, JobRecord
from gandiva_slurm.mini.demo_guard import MARK, cluster_names
from gandiva_slurm.mini.demo_jobs import (
    FIRST_JOBS,
    LATE_JOB,
    STOP_FILE,
    DemoJob,
    home_of,
    read_losses,
    script_of,
    submit,
)
from gandiva_slurm.mini.demo_left import left_behind, marks_of
from gandiva_slurm.mini.demo_live import Watcher
from gandiva_slurm.mini.demo_plan import Plan
from gandiva_slurm.mini.demo_screen import Screen
from gandiva_slurm.mini.demo_verdict import GPUS, Around, Recorded
from gandiva_slurm.mini.spec import USERS, MiniSpec, parse_nodes

NODES = f"v100:1x{GPUS}"
QUANTUM_S = 0.5
#: A rank that is frozen while its gang loads PyTorch is parked off a boundary; that takes minutes on a busy
#: machine.
CLIENT_WAIT_S = 600.0
JOBS = (*FIRST_JOBS, LATE_JOB)
#: user3's gang cannot be parked while its ranks load PyTorch, and owes the others what it held by then. On a
#: slow machine the phase is longer, so that it can be given back: this many times the start.
STARTS = 3.5
#: How often the phase is made longer at most, by how many seconds, and how far off a user's share must be for
#: it: a bit less than the limit, for what is held at the end counts until it is released.
EXTENSIONS, EXTENSION_S, EXTEND_ABOVE = 2, 12.0, 0.8 * demo_checks.SHARE_TOLERANCE
#: Deadlines on a quiet machine, many times what it takes; a slow one gets as many times more as it is slower.
STEPS_WITHIN_S = 300.0
DEADLINE_S = 120.0
SHOW_EVERY_S = 0.5
#: So many times shorter they are once one has passed.
LATE = 10
#: Every user has the same.
TICKETS = dict.fromkeys(USERS, 100)


@dataclass
class Stage:
    """Where a demonstration plays: one cluster, seen through its files, and the screen."""

    plan: Plan
    screen: Screen
    cluster: MiniCluster
    watcher: Watcher
    ids: dict[str, int] = field(default_factory=dict)
    extended: int = 0
    #: a file for a picture of the screen
    picture: Path | None = None
    #: something that was waited for did not come: it is in the verdict, and the rest is waited for less long
    is_late: bool = False
    shown_s: float = 0.0

    def submit(self, job: DemoJob) -> int:
        """Submit a job, and watch it from now on."""
        job_id = self.ids[job.name] = submit(self.cluster, job)
        self.watcher.jobs[job_id] = job
        return job_id

    def show(self) -> None:
        """Bring the screen up to date, now and then."""
        if time.monotonic() >= self.shown_s + SHOW_EVERY_S:
            self.shown_s = time.monotonic()
            self.screen.show(self.watcher.picture(TICKETS))

    def wait(self, is_so: Any, within_s: float) -> bool:
        """True once `is_so`; False when that takes longer, on a machine as slow as this one was so far."""
        ends_s = time.monotonic() + within_s * self.screen.left.slowness() / (LATE if self.is_late else 1)
        while not is_so():
            if time.monotonic() > ends_s:
                self.is_late = True
                return False
            self.show()
            time.sleep(demo_watch.POLL_S)
        return True

    def wait_until(self, moment_ns: float) -> None:
        """Show how things stand until this moment, unix nanoseconds."""
        while time.time_ns() < moment_ns:
            self.show()
            time.sleep(demo_watch.POLL_S)


@dataclass
class Tally:
    """What the clusters of a demonstration used of the machine, and what they left behind."""

    usage: Usage = field(default_factory=Usage)
    left: list[str] = field(default_factory=list)


@contextlib.contextmanager
def brought_up(spec: MiniSpec, screen: Screen, tally: Tally, keep: bool = False) -> Iterator[MiniCluster]:
    """A cluster that goes down at the end, unless it is kept; what it used and left is added to the tally."""
    before = demo_busy.usage()
    cluster = MiniCluster.up(spec, screen.say)
    try:
        (cluster.at.root / MARK).touch()
        marks = marks_of(cluster)
        yield cluster
        tally.usage += demo_busy.usage(cluster.pids.values()) - before
        if keep:
            (cluster.at.root / MARK).unlink()
    except BaseException:
        cluster.down()
        raise
    if not keep:
        cluster.down()
        tally.left += left_behind(marks)


def run(
    spec: MiniSpec, plan: Plan, screen: Screen, keep: bool, picture: Path | None = None
) -> dict[str, Any]:
    """Run it; returns the report, whose `ok` says whether every check that was judged held."""
    began_s, tally, ratio = time.monotonic(), Tally(), None
    with screen:
        screen.begin("a private Slurm comes up")
        with brought_up(spec, screen, tally, keep) as cluster:
            stage = Stage(plan, screen, cluster, Watcher(cluster, GPUS), picture=picture)
            recorded = _main_job(stage)
        if plan.measures_slicing:
            screen.begin("what slicing costs")
            sliced = dataclasses.replace(
                spec, name=cluster_names(spec.name)[1], nodes=parse_nodes("v100:1x1"),
                quantum_s=demo_slicing.QUANTUM_S,
            )  # fmt: skip
            with brought_up(sliced, screen, tally) as cluster:
                ratio = demo_slicing.measure(cluster, screen.say).ratio
    around = Around(tally.usage, None if keep else tally.left, ratio)
    report = demo_verdict.report_of(recorded, plan, around)
    report |= {"backend": spec.backend, "quantum_s": spec.quantum_s, "kept": keep}
    report |= {"wall_s": round(time.monotonic() - began_s, 1)}
    for line in demo_verdict.lines_of(report, tally.usage):
        screen.say(line)
    return report


def _main_job(stage: Stage) -> Recorded:
    plan, screen = stage.plan, stage.screen
    # slurmctld starts nothing in its first seconds. An ordinary job, in a partition that is not Gandiva's,
    # shows when it does, and that it does.
    stage.cluster.exec(["sbatch", "--partition=plain", "--output=/dev/null", "--wrap=true"], user="user3")
    demo_watch.wait_for(
        lambda: not stage.cluster.exec(["squeue", "-h"]).stdout.strip(), "a job to run", DEADLINE_S
    )
    screen.begin("user1 and user2 start")
    first = [stage.submit(job) for job in FIRST_JOBS]
    stage.wait(lambda: stage.watcher.have_steps(dict.fromkeys(first, 1)), DEADLINE_S)
    screen.begin("user1 and user2 train")
    stage.wait_until(time.time_ns() + plan.alone_s * NS_PER_S)
    screen.begin("user3's gang starts")
    began_ns = _start_gang(stage)
    alone: Alone | None = None
    try:
        if plan.losses:
            alone = _start_alone(stage, {job.name: plan.compared(job.gpus) for job in JOBS})
        window_ns = _contend(stage, began_ns)
        screen.begin("the jobs end")
        stage.cluster.exec(["touch", STOP_FILE])
        _wait_until_empty(stage)
        jobs = _records(stage, asked := demo_watch.ask(stage.cluster, "acct", "share", "holds"))
        screen.begin("the same scripts alone")
        if alone is None:
            alone = _start_alone(stage, {job.name: job.step_count for job in jobs})
        alone.hurry()
        if not stage.wait(alone.has_ended, STEPS_WITHIN_S):
            screen.say("the runs alone did not end")
    finally:
        if alone is not None:
            alone.stop()
    jobs = [dataclasses.replace(job, reference=read_losses(_alone_at(stage, job), job.gpus)) for job in jobs]
    return Recorded(
        jobs, asked[2], demo_watch.events(stage.cluster), window_ns,
        {row["user"]: row["tickets"] for row in asked[1]["users"]},
        stage.cluster.exec(["sinfo", "-V"]).stdout.strip(), demo_watch.pyslurm_version(stage.cluster),
        stage.extended,
    )  # fmt: skip


def _start_gang(stage: Stage) -> int:
    """Submit user3's gang; returns when it got its GPUs, once it can be parked. Shares count from there."""
    gang = stage.submit(LATE_JOB)
    found: list[int] = []

    def holds() -> bool:
        stage.watcher.look()
        began_ns = stage.watcher.began_ns(gang)
        found[:] = [] if began_ns is None else [began_ns]
        return bool(found) or gang in stage.watcher.ended

    stage.wait(holds, DEADLINE_S)
    stage.watcher.since_ns = found[0] if found else time.time_ns()
    # It trains, or took so long to load PyTorch that it was parked meanwhile, which ends what it owes.
    stage.wait(lambda: gang in stage.watcher.parks or stage.watcher.have_steps({gang: 1}), DEADLINE_S)
    return stage.watcher.since_ns


def _contend(stage: Stage, began_ns: int) -> tuple[int, int]:
    """The contended phase: as long as planned, a little longer for the shares; returns when it was.

    The jobs train on after it until there are losses enough.
    """
    plan, watcher = stage.plan, stage.watcher
    start_s = (time.time_ns() - began_ns) / NS_PER_S
    length_s = max(plan.contended_s, STARTS * start_s)
    stage.screen.begin("three users contend", (length_s - start_s) / stage.screen.left.slowness())
    stage.wait_until(began_ns + 0.7 * length_s * NS_PER_S)
    if stage.picture is not None and stage.screen.picture is not None:
        demo_screen.save_picture(
            stage.picture, stage.screen.picture, stage.screen.phase, stage.screen.left.seconds()
        )
    stage.wait_until(began_ns + length_s * NS_PER_S)
    while stage.extended < EXTENSIONS and not _are_fair(watcher.users(TICKETS)):
        stage.extended += 1
        stage.screen.say(f"the shares are not yet those due: {EXTENSION_S:.0f} s more")
        stage.wait_until(time.time_ns() + EXTENSION_S * NS_PER_S)
    ended_ns = time.time_ns()
    wanted = {job_id: plan.compared(job.gpus) for job_id, job in watcher.jobs.items()}
    if not watcher.have_steps(wanted):
        stage.screen.say("the jobs go on until each has trained the steps that are to be compared")
        stage.wait(lambda: watcher.have_steps(wanted), STEPS_WITHIN_S)
    return began_ns, ended_ns


def _are_fair(users: Mapping[str, Mapping[str, Any]]) -> bool:
    return all(abs(row["share"] / row["entitled"] - 1) <= EXTEND_ABOVE for row in users.values())


def _wait_until_empty(stage: Stage) -> None:
    """Return once Slurm has no job left and Gandiva knows it; a job that does not end is in the verdict."""
    cluster = stage.cluster
    ended = stage.wait(lambda: not cluster.exec(["squeue", "-h"]).stdout.strip(), DEADLINE_S)
    if ended:
        ended = stage.wait(
            lambda: all(row["state"] == "ENDED" for row in demo_watch.queue(cluster).values()), DEADLINE_S
        )
    if not ended:
        stage.screen.say("some jobs do not end")


def _records(stage: Stage, asked: Sequence[Any]) -> list[JobRecord]:
    """What is known of each job; one that the accounts do not have is LOST."""
    rows = {row["job_id"]: row for row in asked[0]}
    lost = {"state": "LOST", "suspends": 0, "start_latency_s": None}
    jobs = []
    for job in JOBS:
        job_id = stage.ids[job.name]
        made = demo_watch.record(stage.cluster, job, rows.get(job_id) or lost | {"job_id": job_id})
        jobs.append(dataclasses.replace(made, compared=stage.plan.compared(job.gpus)))
        if made.state != "COMPLETED":
            stage.screen.say(f"{job.name} ended {made.state}: {demo_watch.output_of(stage.cluster, job)}")
    return jobs


def _start_alone(stage: Stage, steps: Mapping[str, int]) -> Alone:
    """Start every script alone, for a number of steps."""
    wanted: Collection[DemoJob] = [job for job in JOBS if steps[job.name]]
    references = [Reference(job, steps[job.name], _alone_at(stage, job)) for job in wanted]
    # Beside the jobs as many ranks as they have; nothing else runs afterwards.
    at_once = GPUS if stage.plan.losses else os.cpu_count() or 1
    return Alone(references, at_once, start_inside(stage.cluster), stage.cluster.at.log / "alone.log")


def _alone_at(stage: Stage, job: DemoJob | JobRecord) -> Path:
    told = next(item for item in JOBS if item.name == job.name)
    return home_of(stage.cluster, told) / f"alone-{job.name}"


def banner() -> str:
    """What it is about, in a few lines."""
    return (
        f"a private Slurm with {GPUS} fake GPUs, quantum {QUANTUM_S:g} s; user1 submits\n"
        f"{script_of(FIRST_JOBS[0])}user2 four jobs of one GPU, and user3 later one gang of {LATE_JOB.gpus}"
    )
