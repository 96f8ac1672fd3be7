"""Jobs of several nodes on a real Slurm with all our daemons: how they are asked for, placed and shown."""

from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, said, wait_for

QUANTUM_S = 0.3
SHOW = """#!/bin/bash
srun bash -c 'echo "$SLURM_PROCID $SLURMD_NODENAME gpus=$CUDA_VISIBLE_DEVICES job=$GANDIVA_JOB"' | sort
"""
SLEEP = "#!/bin/bash\nsrun sleep 600\n"
WHOLE, EACH = ("0,1", "0,1"), ("0", "1")


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two nodes of one type, one of another, two GPUs each; an ordinary job shows when jobs start."""
    with own_cluster("nodes", "v100:2x2,k80:1x2", QUANTUM_S) as made:
        made.exec(["srun", "-p", "plain", "true"], user="user3")
        yield made


def sbatch(fleet: Fleet, *words: str, script: str = SLEEP, user: str = "user1") -> int:
    """Submit with these words; returns the job id."""
    flags = ["sbatch", "--parsable", "-p", "gandiva", "-o", "%j.out", "--mem=200", *words]
    fleet.jobs.append(int(fleet.mini.exec(flags, user=user, input=script).stdout))
    return fleet.jobs[-1]


def row_of(fleet: Fleet, job: int) -> dict[str, object]:
    """The job in `gandiva queue`, empty when it is not there."""
    rows: list[dict[str, object]] = fleet.ask("queue")["jobs"]
    return next((row for row in rows if row["job_id"] == job), {})


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [
        (["-N2", "--gpus-per-node=2", "--ntasks-per-node=2"], WHOLE),
        (["-N2", "--gres=gpu:v100:2", "-n4"], WHOLE),
        (["-N2", "--ntasks-per-node=2", "--gpus-per-task=1"], EACH),
        (["-N2", "-n4", "--gpus-per-task=1"], EACH),
        (["-n4", "--ntasks-per-node=2", "--gpus-per-task=1"], EACH),
    ],
)
def test_every_form_of_asking_binds_each_rank_on_its_node(
    fleet: Fleet, flags: list[str], gpus: tuple[str, str]
) -> None:
    job = sbatch(fleet, *flags, script=SHOW)
    fleet.wait_ended(job, "COMPLETED", deadline_s=60)
    told = fleet.home("user1", f"{job}.out").read_text().splitlines()
    want = [f"{2 * n + rank} n{n + 1} gpus={gpus[rank]} job={job}" for n in (0, 1) for rank in (0, 1)]
    assert told == want


def test_a_gang_over_nodes_is_shown_and_accounted_as_one_job(fleet: Fleet) -> None:
    job = sbatch(fleet, "-N2", "--gpus-per-node=2")
    wait_for(lambda: row_of(fleet, job).get("state") == "RUNNING", "the gang to run")
    for node in ("n1", "n2"):
        wait_for(lambda node=node: fleet.count("grant", job, node), f"its GPUs on {node}")
    row = row_of(fleet, job)
    assert (row["node"], row["gpus"], row["nodes"], row["type"]) == ("n[1-2]", 4, 2, "v100")
    shown = said(fleet.mini, "queue", "-h", "-o", "node(gpus)", "-j", str(job))
    assert shown.split() == ["n[1-2](0-1)"]
    fleet.mini.exec(["scancel", str(job)])
    fleet.wait_ended(job)

    def held_s() -> float:
        ends = [line for node in ("n1", "n2") for line in fleet.events(node) if line.get("job") == job]
        moments = {kind: [e["mono_ns"] for e in ends if e["event"] == kind] for kind in ("grant", "release")}
        if len(moments["grant"]) != len(moments["release"]):
            return 0.0
        return 2 * (sum(moments["release"]) - sum(moments["grant"])) / 1e9

    wait_for(lambda: not fleet.strays(), "its processes to end")
    want = wait_for(held_s, "both nodes to have released")
    told = f"acct to say {want} s"
    wait_for(lambda: acct(fleet, job)["gpu_held_s"] == pytest.approx(want, abs=0.2), told)
    assert (acct(fleet, job)["node"], acct(fleet, job)["nodes"]) == ("n[1-2]", 2)


def acct(fleet: Fleet, job: int) -> dict[str, object]:
    """The job's only row in `gandiva acct`."""
    (row,) = fleet.ask("acct", "-a", "-j", str(job))["jobs"]
    return dict(row)


def test_tasks_of_an_array_are_gangs_of_their_own(fleet: Fleet) -> None:
    array = sbatch(fleet, "-N2", "--gpus-per-node=1", "--array=1-2")

    def running() -> bool:
        rows = [row for row in fleet.ask("queue")["jobs"] if row["array_job_id"] == array]
        return [row["node"] for row in rows if row["state"] != "HELD"] == ["n[1-2]"] * 2

    wait_for(running, "both tasks on both nodes")


def test_what_has_not_enough_nodes_says_so(fleet: Fleet) -> None:
    """k80s are on one node; a v100 node is drained and comes back."""
    never = sbatch(fleet, "-N2", "--gpus-per-node=k80:1")
    wait_for(lambda: row_of(fleet, never).get("reason") == "TooFewNodes", "the reason")
    fleet.mini.exec(["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=disk"])
    try:
        job = sbatch(fleet, "-N2", "--gpus-per-node=v100:1")
        wait_for(lambda: row_of(fleet, job).get("reason") == "NodesDown", "the reason")
        evidence = fleet.ask("why", str(job))["evidence"]
        assert [line for line in evidence if line.startswith("n2: ") and line.endswith("(disk)")], evidence
    finally:
        fleet.mini.exec(["scontrol", "update", "NodeName=n2", "State=RESUME"])
    fleet.wait_running(job)


def test_a_gang_requeued_before_its_first_turn_ends_at_once_on_all_nodes(fleet: Fleet) -> None:
    """slurmstepd signals no task that has not begun: their nodes end them."""
    fleet.wait_running(sbatch(fleet, "-N2", "--gpus-per-node=2"))
    job = sbatch(fleet, "-N2", "--gpus-per-node=2", user="user2")
    for node in ("n1", "n2"):
        wait_for(lambda node=node: fleet.count("freeze", job, node), f"its tasks to be stopped on {node}")
    fleet.mini.exec(["scontrol", "requeue", str(job)])
    wait_for(lambda: row_of(fleet, job).get("restart") == 1, "the requeue")
    wait_for(lambda: row_of(fleet, job).get("node") == "n[1-2]", "its new place", 60)


def test_ranks_of_a_node_have_a_gpu_each_whatever_slots_the_first_node_gave(fleet: Fleet) -> None:
    """The steps' environment has the job's slots of the first node: 1 and 2 there, 0 and 1 on the second."""
    wait = "#!/bin/bash\nwhile [ ! -e go ]; do sleep 0.1; done\n"
    first = sbatch(fleet, "--gpus=1", "--gandiva-gpu-types=v100", script=wait, user="user2")
    fleet.wait_running(first)
    job = sbatch(fleet, "-N2", "--ntasks-per-node=2", "--gpus-per-task=1", script=SHOW)
    fleet.wait_running(job)
    fleet.home("user2", "go").touch()
    fleet.wait_ended(job, "COMPLETED")
    told = fleet.home("user1", f"{job}.out").read_text().splitlines()
    assert sorted(" ".join(line.split()[1:3]) for line in told) == [
        f"n{n} gpus={gpu}" for n in (1, 2) for gpu in (0, 1)
    ]
