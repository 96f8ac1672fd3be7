"""Every way to ask for GPUs, and every reason to wait, on a real Slurm with all our daemons."""

import json
import re
from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.spec import SLOTS_PER_GPU
from tests.cluster.fleet import START_S, Fleet, own_cluster, said, wait_for

GPUS, QUANTUM_S = 2, 0.3
SHOW = 'echo "$T $SLURM_PROCID gpus=$CUDA_VISIBLE_DEVICES job=$GANDIVA_JOB"'
STEPS = f"""#!/bin/bash
show() {{ T="$1"; shift; export T; "$@" bash -c '{SHOW}' 2>&1 | sort; }}
show batch
show whole srun -n2
show one srun -n1 --gres=gpu:1
show each srun -n2 --gpus-per-task=1
show beyond srun -n1 --gres=gpu:3
"""


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """One node with two GPUs; an ordinary job shows when slurmctld starts jobs."""
    # A job that has no client holds its GPUs all the time.
    with own_cluster("requests", f"v100:1x{GPUS}", QUANTUM_S, node={"client_wait_s": 600}) as made:
        made.exec(["srun", "-p", "plain", "true"], user="user3")
        yield made


def sbatch(fleet: Fleet, *words: str, script: str) -> int:
    """Submit as user1 with these words alone; returns the job id."""
    told = fleet.mini.exec(["sbatch", "--parsable", "-o", "%j.out", *words], user="user1", input=script)
    fleet.jobs.append(int(told.stdout))
    return fleet.jobs[-1]


def why(fleet: Fleet, job: int) -> dict[str, str]:
    """What `gandiva why` tells the owner."""
    told = said(fleet.mini, "why", str(job), "--json", user="user1")
    found: dict[str, str] = json.loads(told)
    return found


def wait_why(fleet: Fleet, job: int, code: str) -> dict[str, str]:
    """Wait for this reason; it comes with a sentence and what will change it."""
    known = ("queue", "-h", "-o", "jobid", "-j", str(job))
    wait_for(lambda: said(fleet.mini, *known).strip(), f"gandiva to know job {job}")
    wait_for(lambda: why(fleet, job)["code"] == code, f"job {job} to wait because of {code}")
    told = why(fleet, job)
    assert told["sentence"] and told["next"], told
    return told


FORMS = ("--gres=gpu:v100:2", "--gpus=2", "--gpus-per-node=2", "--gpus-per-task=1")


def test_every_form_of_asking_binds_batch_and_steps(fleet: Fleet) -> None:
    """The whole job sees both GPUs, a smaller step its own, two tasks one each; larger steps are refused."""
    jobs = {form: sbatch(fleet, "-p", "gandiva", "-n2", "--mem=500", form, script=STEPS) for form in FORMS}
    for form, job in jobs.items():
        fleet.wait_ended(job, "COMPLETED", deadline_s=90)
        told = fleet.home("user1", f"{job}.out").read_text()
        per_task = form == "--gpus-per-task=1"
        assert f"batch 0 gpus=0,1 job={job}\n" in told, (form, told)
        for task in (0, 1):
            assert f"whole {task} gpus={task if per_task else '0,1'} job={job}\n" in told, (form, told)
            assert f"each {task} gpus={task} job={job}\n" in told, (form, told)
        # 26.05 takes no --gres of a step beside --gpus-per-node, with or without us.
        alone = "--gpus-per-node and --gres=gpu are mutually exclusive" in told
        assert alone or f"one 0 gpus=0 job={job}\n" in told, (form, told)
        assert "beyond 0" not in told and re.search("srun: (error|fatal): ", told), (form, told)


def test_the_flag_alone_finds_the_partition(fleet: Fleet) -> None:
    script = f"#!/bin/bash\n#SBATCH --gandiva --gres=gpu:1\nT=$SLURM_JOB_PARTITION; {SHOW}\n"
    job = sbatch(fleet, script=script)
    fleet.wait_ended(job, "COMPLETED")
    told = fleet.home("user1", f"{job}.out").read_text()
    assert re.fullmatch(rf"gandiva 0 gpus=[01] job={job}\n", told)


def test_what_finds_no_slot_waits_with_a_reason_until_one_is_free(fleet: Fleet) -> None:
    """A user fills a node but for its last slots; others get in beside it."""
    most = GPUS * (SLOTS_PER_GPU - 1)
    mine = [fleet.submit("user1", "exec sleep 300") for _ in range(most + 1)]

    def waiting() -> list[int]:
        return [job for job in mine if fleet.slurm_state(job) == "PENDING"]

    wait_for(lambda: len(waiting()) == 1, "all but one to be started", START_S)
    (last,) = waiting()
    wait_why(fleet, last, "NoFreeSlots")
    fleet.mini.exec(["scancel", str(next(job for job in mine if job != last))])
    fleet.wait_running(last)
    fleet.wait_running(fleet.submit("user2", "exec sleep 300"))


def test_a_job_cancelled_before_its_first_turn_ends_at_once(fleet: Fleet) -> None:
    """slurmstepd signals no task that has not begun: its node ends it.

    The GPUs are held by jobs whose client is waited for, which takes longer than this.
    """
    blocks = [fleet.submit("user1", "exec sleep 300") for _ in range(GPUS)]
    for job in blocks:
        wait_for(lambda job=job: fleet.count("grant", job), "its first turn")
    victim = fleet.submit("user2", "exec sleep 300")
    wait_for(lambda: fleet.count("freeze", victim), "its task to be stopped before it begins")
    fleet.mini.exec(["scancel", str(victim)])
    fleet.wait_ended(victim, "CANCELLED", deadline_s=30)
    assert not fleet.count("grant", victim)


def test_a_job_its_owner_holds_waits_for_him(fleet: Fleet) -> None:
    job = fleet.submit("user1", "true", "--hold")
    wait_why(fleet, job, "HeldByUser")
    fleet.mini.exec(["scontrol", "release", str(job)], user="user1")
    fleet.wait_ended(job, "COMPLETED")


def test_an_owner_gives_a_job_another_priority(fleet: Fleet) -> None:
    job = fleet.submit("user1", "exec sleep 300")
    fleet.wait_running(job)
    asked = ["update", str(job), "priority=90"]
    # Of a busy gandivactld it is asked again, which may have kept it.
    wanted = [f"job {job}: priority 90, was {was}\n" for was in (50, 90)]
    assert said(fleet.mini, *asked, user="user1") in wanted
    refused = fleet.mini.exec(["gandiva", *asked[:-1], "priority=0"], user="user2", check=False)
    assert refused.returncode == 1 and f"job {job} is of user1" in refused.stderr
    shown = "priority 90 by gandiva update; submitted with 50"
    wait_for(lambda: shown in fleet.ask("why", str(job))["evidence"], shown)


def test_a_dependent_job_waits_for_the_other(fleet: Fleet) -> None:
    first = fleet.submit("user1", "while [ ! -e go ]; do sleep 0.1; done")
    second = fleet.submit("user1", "true", f"--dependency=afterok:{first}")
    told = wait_why(fleet, second, "Dependency")
    assert str(first) in told["sentence"]
    fleet.wait_running(first)
    assert fleet.slurm_state(second) == "PENDING"
    fleet.home("user1", "go").touch()
    fleet.wait_ended(first, "COMPLETED")
    fleet.wait_ended(second, "COMPLETED")
