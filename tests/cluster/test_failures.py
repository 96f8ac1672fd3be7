"""What dies, and what must not: daemons, jobs and nodes killed in mid-run on a real Slurm."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import TRAIN, Fleet, own_cluster, said, set_down, wait_for
from tests.records import holds_of, share_of_turns
from tests.slow import slow

#: How long the controller stays dead.
OUTAGE_S = 20.0
#: slurmctld has written a change to its state behind this.
SLURM_SAVES_S = 7.0


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one GPU, sliced every half second; without a boundary in its first 8 s a job is frozen."""
    with own_cluster("failures", "v100:1x1,k80:1x1", 0.5, node={"client_wait_s": 8}) as made:
        yield made


def two_sliced_jobs(fleet: Fleet) -> tuple[int, int]:
    """Two jobs of two users on the one v100, both seen parked."""
    for user in ("user1", "user2"):
        fleet.home(user, "sliced.stop").unlink(missing_ok=True)
    jobs = [fleet.train(user, "sliced", "--gandiva-gpu-types=v100") for user in ("user1", "user2")]
    fleet.wait_suspends(jobs, 3)
    return jobs[0], jobs[1]


def kill_in_a_turn(fleet: Fleet) -> bool:
    """Kill gandivad; True when the job on the GPU goes on. Between turns both wait: it is started again."""

    def steps() -> int:
        return fleet.steps("user1", "sliced") + fleet.steps("user2", "sliced")

    was = steps()
    wait_for(lambda: steps() > was, "a turn", 60)
    fleet.mini.kill("gandivad:n1")
    before = steps()
    try:
        return bool(wait_for(lambda: steps() > before + 50, "steps without gandivad", 5))
    except AssertionError:
        fleet.mini.start_daemon("gandivad:n1")
        return False


@slow("35 s; test_spans has a gang that runs on without a controller")
def test_nodes_go_on_slicing_while_the_controller_is_dead(fleet: Fleet) -> None:
    """kill -9 of gandivactld for 20 s: slices go on, nothing is lost, the accounts are whole."""
    first, second = two_sliced_jobs(fleet)
    fleet.mini.kill("gandivactld")
    back = time.monotonic() + OUTAGE_S
    fleet.wait_suspends((first, second), 5)
    wait_for(lambda: time.monotonic() >= back, "the end of the outage", OUTAGE_S + 5)
    fleet.mini.start_daemon("gandivactld")
    wait_for(
        lambda: {row["job_id"] for row in fleet.ask("queue")["jobs"]} >= {first, second},
        "both jobs in the queue",
    )
    fleet.wait_suspends((first, second), 3)

    wait_for(
        lambda: share_of_turns(fleet.events("n1"), first, (second,)) == pytest.approx(0.5, abs=0.05),
        "equal turns once the start-ups are paid back", 60,
    )
    held = dict.fromkeys((first, second), 0.0)
    for hold in holds_of(fleet.events("n1")):
        held[hold.job_id] += (hold.t1_ns - hold.t0_ns) / 1e9
    assert sum(held.values()) > OUTAGE_S

    def in_accounts() -> bool:
        rows = {row["job_id"]: row["gpu_held_s"] for row in fleet.accounts()}
        return all(rows[job] > seconds - 0.1 for job, seconds in held.items())

    wait_for(in_accounts, f"the accounts to have {held}")


@slow("60 s, Slurm keeps a requeued job back; node/test_fencing has what its node makes of it")
def test_what_slurm_restarts_while_the_controller_is_dead_is_adopted(fleet: Fleet) -> None:
    """Its node has the plan of the incarnation before, and takes it for the next one."""
    first, second = two_sliced_jobs(fleet)
    fleet.mini.kill("gandivactld")
    fleet.mini.exec(["scontrol", "requeue", str(first)])

    def events(name: str) -> list[dict[str, Any]]:
        return [line for line in fleet.events("n1") if line["event"] == name and line.get("job") == first]

    wait_for(lambda: events("register")[-1]["restart"] == 1, lambda: fleet.told_of(first), 90)
    fleet.mini.start_daemon("gandivactld")
    suspends = fleet.count("parked", first)
    wait_for(lambda: fleet.count("parked", first) > suspends + 3, lambda: fleet.told_of(first), 60)
    assert fleet.slurm_state(first) == fleet.slurm_state(second) == "RUNNING" and not events("fence")
    for user in ("user1", "user2"):
        fleet.stop(user, "sliced")
    fleet.wait_ended(first, "COMPLETED")
    fleet.wait_ended(second, "COMPLETED")


def test_jobs_live_on_and_are_readopted_when_gandivad_is_killed(fleet: Fleet) -> None:
    """kill -9 of gandivad: the job on the GPU goes on; the new daemon slices both again."""
    first, second = two_sliced_jobs(fleet)
    wait_for(lambda: kill_in_a_turn(fleet), "gandivad to be killed in a turn of a job that goes on", 60)
    fleet.mini.start_daemon("gandivad:n1")
    fleet.wait_suspends((first, second), 3)
    assert fleet.slurm_state(first) == fleet.slurm_state(second) == "RUNNING"
    for user in ("user1", "user2"):
        fleet.stop(user, "sliced")
    fleet.wait_ended(first, "COMPLETED")
    fleet.wait_ended(second, "COMPLETED")


def test_slurmctld_is_killed_and_started_again(fleet: Fleet) -> None:
    """The picture is rebuilt; both jobs are still ours and still sliced."""
    first, second = two_sliced_jobs(fleet)
    # It writes its state some seconds late: what it has not written yet, it does not know afterwards.
    known_s = time.monotonic() + SLURM_SAVES_S
    wait_for(lambda: time.monotonic() > known_s, "slurmctld to write its state", SLURM_SAVES_S + 5)
    fleet.mini.kill("slurmctld")
    fleet.wait_suspends(first, 3)
    fleet.mini.start_daemon("slurmctld")
    wait_for(lambda: fleet.slurm_state(first) == "RUNNING", "slurmctld to answer")
    fleet.wait_suspends(second, 3)
    third = fleet.submit("user3", "true", "--gandiva-gpu-types=v100")
    fleet.wait_ended(third, "COMPLETED")


@pytest.mark.parametrize("parked", [True, False], ids=["parked", "running"])
def test_scancel_ends_a_job_at_once(fleet: Fleet, parked: bool) -> None:
    """A parked job and one on the GPU both end clean; the other takes the GPU."""
    jobs = two_sliced_jobs(fleet)

    def on_gpu() -> set[int]:
        return {job for job, _ in fleet.holders("n1")}

    victim = wait_for(lambda: next((job for job in jobs if (job in on_gpu()) != parked), 0), "one of them")
    fleet.mini.exec(["scancel", str(victim)])
    fleet.wait_ended(victim, "CANCELLED", deadline_s=30)
    other, name = (jobs[1], "user2") if victim == jobs[0] else (jobs[0], "user1")
    before = fleet.steps(name, "sliced")
    wait_for(lambda: fleet.steps(name, "sliced") > before + 100, "the other job to have the GPU for itself")
    fleet.wait_running(other)


def test_a_crashing_script_frees_its_gpu(fleet: Fleet) -> None:
    """A job whose script dies in mid-training ends FAILED and the next one runs."""
    crash = f"{TRAIN} --model mlp --out ~/crash --steps 50 && kill -SEGV $$"
    job = fleet.submit("user1", crash, "--gandiva-gpu-types=v100")
    fleet.wait_ended(job, "FAILED")
    after = fleet.submit("user2", "exit 3", "--gandiva-gpu-types=v100")
    fleet.wait_ended(after, "FAILED")
    told = wait_for(
        lambda: [r for r in fleet.accounts() if r["job_id"] == after and r["end_s"]], "its account"
    )
    assert told[0]["exit_code"] == "3:0"


@slow("90 s: Slurm counts limits in minutes; what is given back of one is in test_living_limits")
def test_a_time_limit_ends_sliced_jobs(fleet: Fleet) -> None:
    """Slurm's limit ends a job that shares its GPU, parked or not."""
    job = fleet.train("user1", "limit", "--gandiva-gpu-types=v100", "--time=0:20")
    other = fleet.train("user2", "limit", "--gandiva-gpu-types=v100", "--time=0:20")
    fleet.wait_suspends(job, 1)
    assert fleet.wait_ended(job, deadline_s=120) == "TIMEOUT"
    assert fleet.wait_ended(other, deadline_s=120) == "TIMEOUT"


@slow("30 s; test_frozen and node/test_freeze have frozen jobs")
def test_a_job_without_a_client_is_frozen_whole(fleet: Fleet) -> None:
    """A loop that never shows a boundary is stopped at the quantum's end and charged like the others."""
    loop = 'exec python -I -c "while True: pass"'
    blind = fleet.submit("user1", loop, "--gandiva-gpu-types=v100", "--gandiva-hook=none")
    client = fleet.train("user2", "beside", "--gandiva-gpu-types=v100")
    fleet.wait_suspends((blind, client), 5, deadline_s=90)

    def row() -> dict[str, Any]:
        return next(row for row in fleet.ask("queue")["jobs"] if row["job_id"] == blind)

    def is_told() -> bool:
        """But in the moment in which it is stopped, which is told as any park is."""
        return "frozen" in said(fleet.mini, "why", str(blind)).lower()

    wait_for(lambda: row()["suspends"] >= 5, "the controller to hear of these parks")
    wait_for(lambda: row()["reason"] in ("NoClient", "Frozen"), "the reason of one that is frozen")
    wait_for(is_told, "gandiva why to say that it is frozen")


def test_a_lost_node_requeues_its_job_elsewhere_once(fleet: Fleet) -> None:
    """slurmd dead and the node set down: the job starts on the other node, the old processes are fenced."""
    job = fleet.train("user1", "lost", "--gandiva-gpu-types=v100,k80")
    fleet.wait_running(job)
    node = fleet.mini.exec(["squeue", "-h", "-j", str(job), "-o", "%N"]).stdout.strip()
    wait_for(lambda: fleet.count("rank", job, node), "its rank to say hello", 60)
    fleet.mini.kill(f"slurmd:{node}")
    set_down(fleet.mini, node)
    other = "n2" if node == "n1" else "n1"
    wait_for(lambda: fleet.count("rank", job, other), f"job {job} to train on {other}", 90)
    wait_for(
        lambda: fleet.count("fence", job, node) or fleet.count("ended", job, node),
        f"the old incarnation on {node} to be stopped",
        60,
    )
    fleet.mini.start_daemon(f"slurmd:{node}")
    fleet.mini.exec(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
    wait_for(
        lambda: "DOWN" not in fleet.mini.exec(["sinfo", "-h", "-n", node, "-o", "%T"]).stdout.upper(),
        f"{node} to be up",
        60,
    )
    assert fleet.slurm_state(job) == "RUNNING"


def test_a_requeue_by_its_owner_returns_held_and_is_placed_again(fleet: Fleet) -> None:
    """The owner's own requeue does not let Slurm restart the job where it likes."""
    job = fleet.train("user1", "again", "--gandiva-gpu-types=v100")
    wait_for(lambda: fleet.count("rank", job), "its rank to say hello", 60)
    fleet.mini.exec(["scontrol", "requeue", str(job)], user="user1")
    wait_for(
        lambda: any(
            e["event"] == "rank" and e["restart"] == 1 for e in fleet.events() if e.get("job") == job
        ),
        "restart 1 to train",
        60,
    )
    story = said(fleet.mini, "why", str(job), "--story")
    assert "STARTING" in story
