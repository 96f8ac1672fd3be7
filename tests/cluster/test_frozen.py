"""A job that is parked is frozen: under whatever comes it ends, or goes on, as one that is not would."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from gandiva_slurm.mini import daemons
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.node import cgroups
from tests.cluster.fleet import Fleet, own_cluster, set_slurm, wait_for
from tests.slow import slow

#: Long enough for a test to do something while a job waits for its turn.
QUANTUM_S = 2.0
#: Saves itself when it is told to end, which takes a second: a frozen job would not get there.
SAVING = """
import os, signal, sys, time
import gandiva_slurm as gandiva
def save(number, frame):
    time.sleep(1)
    open(sys.argv[1], "a").write(f"{signal.Signals(number).name}\\n")
    if number == signal.SIGTERM:
        sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, save)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
    gandiva.step()
"""


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """One GPU, on which two jobs take turns of seconds."""
    with own_cluster("frozen", "v100:1x1", QUANTUM_S) as made:
        # Between SIGTERM and SIGKILL a busy machine has more to do than three seconds allow.
        set_slurm(made, KillWait=30)
        yield made


@pytest.fixture
def parked(fleet: Fleet, request: pytest.FixtureRequest) -> int:
    """A job of user1 that is parked and frozen, beside one of user2 that trains."""
    flags: list[str] = getattr(request, "param", [])
    script = f"exec python - ~/said ~/saving.stop <<'END'{SAVING}END"
    fleet.home("user1", "said").unlink(missing_ok=True)
    for user in ("user1", "user2"):
        for path in fleet.home(user).glob("*.stop"):
            path.unlink()
    job = fleet.submit("user1", script, *flags)
    other = fleet.train("user2", "other")
    fleet.wait_suspends((job, other), 1)
    wait_for(lambda: is_frozen(fleet, job), f"job {job} to be frozen")
    return job


def is_frozen(fleet: Fleet, job: int) -> bool:
    """True when the job's control group is, which has the same number in each cluster on this machine."""
    if fleet.mini.spec.cgroups:
        inside = fleet.mini.path("/sys/fs/cgroup")
        steps = list(inside.glob(f"**/job_{job}/step_*"))
        return any(map(cgroups.is_frozen, [*steps, *(step / "user" for step in steps)]))
    root = cgroups.hierarchy()
    assert root is not None, "no control groups can be frozen on this machine"
    mine = set(fleet.mini.processes())
    groups = (root / cgroups.OURS).glob(f"n1-*/job_{job}_*")
    return any(cgroups.is_frozen(group) and mine & set(cgroups.pids([group])) for group in groups)


def said(fleet: Fleet) -> list[str]:
    path = fleet.home("user1", "said")
    return path.read_text().splitlines() if path.exists() else []


def test_what_is_cancelled_may_save_itself(fleet: Fleet, parked: int) -> None:
    fleet.mini.exec(["scancel", str(parked)], user="user1")
    fleet.wait_ended(parked, "CANCELLED", "GONE")
    assert said(fleet) == ["SIGTERM"]


@slow("40 s; other ways that a frozen job is left or ended are in make test")
def test_a_signal_is_heard_and_the_job_goes_on(fleet: Fleet, parked: int) -> None:
    fleet.mini.exec(["scancel", "--batch", "--signal=USR1", str(parked)], user="user1")
    wait_for(lambda: said(fleet) == ["SIGUSR1"], "the signal to be heard", 20)
    fleet.wait_suspends(parked, 1)
    fleet.stop("user1", "saving")
    fleet.wait_ended(parked, "COMPLETED")


def test_what_cannot_be_caught_ends_it_at_once(fleet: Fleet, parked: int) -> None:
    fleet.mini.exec(["scancel", "--signal=KILL", "--full", str(parked)], user="user1")
    fleet.wait_ended(parked, "FAILED", "CANCELLED", "GONE")


@slow("15 s; other ways that a frozen job is left or ended are in make test")
def test_it_is_requeued(fleet: Fleet, parked: int) -> None:
    fleet.mini.exec(["scontrol", "requeue", str(parked)])
    wait_for(lambda: "SIGTERM" in said(fleet), "it to be told to end", 30)
    fleet.stop("user1", "saving")
    fleet.wait_ended(parked, "COMPLETED")


@slow("15 s; other ways that a frozen job is left or ended are in make test")
def test_its_node_is_drained(fleet: Fleet, parked: int) -> None:
    fleet.mini.exec(["scontrol", "update", "nodename=n1", "state=drain", "reason=test"])
    try:
        fleet.wait_suspends(parked, 1)
        fleet.stop("user1", "saving")
        fleet.wait_ended(parked, "COMPLETED")
    finally:
        fleet.mini.exec(["scontrol", "update", "nodename=n1", "state=resume"])


@slow("15 s; other ways that a frozen job is left or ended are in make test")
def test_slurmctld_is_started_again(fleet: Fleet, parked: int) -> None:
    # By SIGTERM: what one that is killed forgets is not asked here.
    fleet.mini.kill("slurmctld", signal.SIGTERM)
    fleet.start_dead()
    wait_for(lambda: fleet.count("thaw", parked), "its turn")
    fleet.stop("user1", "saving")
    fleet.wait_ended(parked, "COMPLETED")


def kill_while_frozen(fleet: Fleet, job: int) -> bool:
    """False where the job has its turn, or breathes, at that moment."""
    fleet.mini.kill("gandivad:n1", signal.SIGSTOP)
    is_still = is_frozen(fleet, job)
    fleet.mini.kill("gandivad:n1", signal.SIGKILL if is_still else signal.SIGCONT)
    return is_still


@slow("15 s; other ways that a frozen job is left or ended are in make test")
def test_gandivad_is_started_again(fleet: Fleet, parked: int) -> None:
    wait_for(lambda: kill_while_frozen(fleet, parked), "gandivad to be killed while it is frozen")
    assert is_frozen(fleet, parked)
    fleet.start_dead()
    fleet.wait_suspends(parked, 1)
    fleet.stop("user1", "saving")
    fleet.wait_ended(parked, "COMPLETED")


@slow("15 s; other ways that a frozen job is left or ended are in make test")
def test_its_node_is_restarted(fleet: Fleet, parked: int) -> None:
    """slurmd alone: its slurmstepds, and what they run, live on."""
    fleet.mini.kill("slurmd:n1")
    fleet.start_dead()
    fleet.wait_suspends(parked, 1)
    fleet.stop("user1", "saving")
    fleet.wait_ended(parked, "COMPLETED")


@slow("40 s; other ways that a frozen job is left or ended are in make test")
def test_its_node_is_cut_off_its_power(fleet: Fleet, parked: int) -> None:
    """Nothing that ran on it lives: what is frozen is requeued by Slurm as what is not, and begins anew."""
    mini = fleet.mini
    gone = ("slurmd:n1", "gandivad:n1")
    kept = {mini.daemon_pid(name) for name in daemons.table(mini.spec, mini.site) if name not in gone}
    # All at once: a slurmstepd that outlives its task by a moment tells slurmctld how that ended.
    lost = set(mini.processes()) - kept - {mini.init_pid}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in lost:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    if mini.spec.cgroups:  # with its power a node loses its control groups, and what of them was frozen
        for step in mini.path("/sys/fs/cgroup").glob("**/job_*/step_*"):
            for group in (step, step / "user"):
                cgroups.freeze(group, False)
    wait_for(lambda: not fleet.strays(), lambda: f"all to be gone: {fleet.strays()}")
    fleet.start_dead()

    def has_restarted() -> bool:
        shown = fleet.mini.exec(["scontrol", "-o", "show", "job", str(parked)]).stdout
        return "Restarts=1" in shown and "JobState=RUNNING" in shown

    wait_for(has_restarted, lambda: f"the job to run again\n{fleet.told_of(parked)}", 120)
    fleet.stop("user1", "saving")
    fleet.wait_ended(parked, "COMPLETED")


@slow("90 s; other ways that a frozen job is left or ended are in make test")
@pytest.mark.parametrize("parked", [["--time=1"]], indirect=True)
def test_its_time_limit_ends_it(fleet: Fleet, parked: int) -> None:
    """Nobody gives parked time back where gandivactld is dead."""
    fleet.mini.kill("gandivactld")
    fleet.wait_ended(parked, "TIMEOUT", deadline_s=180)
    assert said(fleet) == ["SIGTERM"]
    fleet.start_dead()
