"""Slurm's limits, reservations, drained nodes and time limits, and jobs of Gandiva's that meet them."""

import re
from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.spec import SLOTS_PER_GPU
from tests.cluster.fleet import wait_for
from tests.cluster.living import Living, living
from tests.cluster.sharing import light
from tests.slow import slow

ON_V100 = "--gandiva-gpu-types=v100"
#: One job in three that share a GPU is parked two thirds of the time.
SHARERS = ("user1", "user2", "user3")
BILLING = f"TRESBillingWeights=CPU=0,Mem=0,GRES/gpu={1 / SLOTS_PER_GPU:g}"


@pytest.fixture(scope="module")
def slurm(slurm_here: None) -> Iterator[Living]:
    """A v100 for the tests; a k80 which three jobs share all the while, one of them with a short limit."""
    with living("limits", "v100:1x1,k80:1x1") as made:
        made.admin("scontrol", "update", "PartitionName=gandiva", BILLING)
        flags = {"user1": ("--time=2",)}
        made.sharers = {user: light(made.fleet, user, "shares", *flags.get(user, ())) for user in SHARERS}
        made.fleet.jobs.clear()
        yield made


@pytest.fixture(autouse=True)
def ends_its_jobs(slurm: Living) -> Iterator[None]:
    """Each test's own jobs end with it."""
    yield
    if slurm.fleet.jobs:
        slurm.cancel(*slurm.fleet.jobs)
        slurm.fleet.jobs.clear()


@slow("50 s; unit/test_engine_limits has it on a fake Slurm")
def test_an_association_limit_holds_back_one_user_only(slurm: Living) -> None:
    """AssocGrpGRES: taken back at once and told; others start; it starts when a job under the limit ends."""
    slurm.admin("sacctmgr", "-i", "modify", "user", "user1", "set", "GrpTRES=gres/gpu=2")
    try:
        first = slurm.submit(ON_V100)
        slurm.fleet.wait_running(first)
        second, third = slurm.submit(ON_V100), slurm.submit(ON_V100)
        told = slurm.wait_why(second, "Limit")
        assert "AssocGrpGRES" in told["sentence"] and "GPUs of resident jobs" in told["sentence"]
        slurm.wait_why(third, "BehindLimit", 60)  # both asked at first; of the two one asks again
        # it asks again now and then, and is back in Gandiva's hands at once
        wait_for(lambda: slurm.show(second)["Priority"] == "0", "it not to stand in Slurm's queue")
        slurm.fleet.wait_running(slurm.submit(ON_V100, user="user2"))
        slurm.cancel(first)
        slurm.fleet.wait_running(second)
    finally:
        slurm.admin("sacctmgr", "-i", "modify", "user", "user1", "set", "GrpTRES=gres/gpu=-1")


def test_qos_and_partition_limits_are_told_and_lift(slurm: Living) -> None:
    """QOSMax… is asked again until it is raised, PartitionTimeLimit as soon as the owner asks for less."""
    slurm.admin("sacctmgr", "-i", "add", "qos", "small", "set", "MaxTRESPerUser=gres/gpu=1")
    slurm.admin("sacctmgr", "-i", "modify", "user", "user3", "set", "qos+=small")
    slurm.admin("scontrol", "update", "PartitionName=gandiva", "MaxTime=100")
    try:
        slurm.fleet.wait_running(slurm.submit(ON_V100, "--qos=small", user="user3"))
        second = slurm.submit(ON_V100, "--qos=small", user="user3")
        long = slurm.submit(ON_V100, "--time=200", user="user2")
        assert "QOSMaxGRESPerUser" in slurm.wait_why(second, "Limit")["sentence"]
        told = slurm.wait_why(long, "Limit")
        assert "PartitionTimeLimit" in told["sentence"] and "TimeLimit=" in told["next"]
        slurm.user("scontrol", "update", f"JobId={long}", "TimeLimit=50", user="user2")
        slurm.fleet.wait_running(long)
        slurm.admin("sacctmgr", "-i", "modify", "qos", "small", "set", "MaxTRESPerUser=gres/gpu=2")
        slurm.fleet.wait_running(second, 60)
    finally:
        slurm.admin("scontrol", "update", "PartitionName=gandiva", "MaxTime=UNLIMITED")


@slow("30 s; what Slurm refuses and lifts again is in the test before")
def test_a_partition_that_is_down_keeps_jobs_waiting(slurm: Living) -> None:
    slurm.admin("scontrol", "update", "PartitionName=gandiva", "State=DOWN")
    try:
        job = slurm.submit(ON_V100, script="true")
        assert "PartitionDown" in slurm.wait_why(job, "Limit")["sentence"]
    finally:
        slurm.admin("scontrol", "update", "PartitionName=gandiva", "State=UP")
    slurm.fleet.wait_ended(job, "COMPLETED")


@slow("50 s; unit/test_engine_fitting has the rules on a fake Slurm")
def test_reserved_nodes_are_left_to_those_who_may(slurm: Living) -> None:
    """Maintenance to come lets short jobs in; a reservation takes its users' jobs and keeps others out."""
    ahead = ("ReservationName=service", "StartTime=now+30minutes", "Flags=MAINT,IGNORE_JOBS", "Users=root")
    slurm.admin("scontrol", "create", "reservation", "Duration=10", "Nodes=n1", *ahead)
    long, short = slurm.submit(ON_V100, "--time=60"), slurm.submit(ON_V100, "--time=20")
    slurm.fleet.wait_running(short)
    assert "n1" in slurm.wait_why(long, "Reserved")["sentence"]
    slurm.admin("scontrol", "delete", "ReservationName=service")
    slurm.fleet.wait_running(long)
    now = ("ReservationName=course", "StartTime=now", "Flags=IGNORE_JOBS", "Users=user2")
    slurm.admin("scontrol", "create", "reservation", "Duration=100", "Nodes=n1", *now)
    guest = slurm.submit(ON_V100, "--reservation=course", user="user2")
    slurm.fleet.wait_running(guest)
    refused = slurm.user("sbatch", "-p", "gandiva", "--gres=gpu:1", "--reservation=course", "--wrap", "true")
    assert "Access denied to requested reservation" in refused.stderr
    outside = slurm.submit(ON_V100)
    slurm.wait_why(outside, "Reserved")
    slurm.cancel(guest)
    slurm.admin("scontrol", "delete", "ReservationName=course")
    slurm.fleet.wait_running(outside)


def test_a_drained_node_takes_no_new_job_and_keeps_its_own(slurm: Living) -> None:
    old = slurm.submit(ON_V100)
    slurm.fleet.wait_running(old)
    slurm.admin("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=fan")
    try:
        new = slurm.submit(ON_V100)
        told = slurm.wait_why(new, "NodesDown")
        assert any("DRAIN" in line and "fan" in line for line in told["evidence"]), told
        assert slurm.fleet.slurm_state(old) == "RUNNING"
    finally:
        slurm.admin("scontrol", "update", "NodeName=n1", "State=RESUME")
    slurm.fleet.wait_running(new)


@slow("80 s, for Slurm's limits are whole minutes; unit/test_engine_timelimit has what is given back")
def test_parked_time_is_given_back_to_the_time_limit(slurm: Living) -> None:
    """Two minutes asked, parked two thirds of the time: the limit grows, and Slurm lets the job run on."""
    job = slurm.sharers["user1"]
    wait_for(lambda: slurm.show(job)["TimeLimit"] != "00:02:00", "its limit to grow", 150)
    wait_for(lambda: _seconds(slurm.show(job)["RunTime"]) > 150, "it to run past what it asked for", 120)
    assert slurm.fleet.slurm_state(job) == "RUNNING"
    (line,) = [line for line in slurm.why(job)["evidence"] if line.startswith("time limit")]
    limit, asked, given = map(int, re.findall(r"\d+", line))
    assert asked == 2 and limit == asked + given
    (row,) = [row for row in slurm.fleet.ask("queue")["jobs"] if row["job_id"] == job]
    assert given * 60 <= row["parked_s"], "no more than was parked"


def test_fair_share_is_not_charged_twice_for_a_sliced_gpu(slurm: Living) -> None:
    """With the recipe of docs/slurm.md three jobs on one GPU are billed no more than that GPU."""
    elapsed = max(_seconds(slurm.show(job)["RunTime"]) for job in slurm.sharers.values())
    for user, job in slurm.sharers.items():
        slurm.fleet.stop(user, "shares")
        slurm.fleet.wait_ended(job, "COMPLETED", "TIMEOUT")

    def usage() -> dict[str, int]:
        rows = slurm.admin("sshare", "-nPU", "-u", ",".join(SHARERS), "-o", "user,rawusage").split()
        return {user: int(used) for user, used in (row.split("|") for row in rows)}

    wait_for(lambda: all(usage().values()), "usage of all three")
    told = slurm.admin("sacct", "-nPX", "-j", str(slurm.sharers["user1"]), "-o", "alloctres")
    assert "gres/gpu=1" in told
    assert 0.5 * elapsed < sum(usage().values()) < 1.1 * elapsed + 60, (usage(), elapsed)


def _seconds(clock: str) -> int:
    hours, minutes, seconds = map(int, clock.split(":"))
    return (hours * 60 + minutes) * 60 + seconds
