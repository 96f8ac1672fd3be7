"""What users see on a real Slurm with all our daemons: their shares, their losses, every way to submit.

One cluster for the module. Its first tests watch one run: on n1 a real gang beside real single jobs, on n2
light jobs of two accounts. The later ones submit what they need.
"""

import dataclasses
import json
import os
import re
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gandiva_slurm.mini import demo_checks, demo_holds, demo_parks, demo_watch
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.demo_alone import Reference, run_references, start_inside
from gandiva_slurm.mini.demo_checks import JobRecord
from gandiva_slurm.mini.demo_jobs import (
    STOP_FILE,
    read_losses,
    submit,
)
from tests import patience
from tests.cluster.fleet import START_S, Fleet, own_cluster, said, wait_for, window_of
from tests.cluster.sharing import LEFT, NEARLY, PAIR, RIGHT, THRICE, TRAINING, WEIGHTED, Run, counted, light
from tests.slow import slow

#: What start-ups overran is repaid within the window, which may take minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)
QUANTUM_S = 0.5
#: How long the shares are measured, at least and at most, once all take turns.
WINDOW_S, MOST_S = 18.0, 150.0
#: Losses are compared with those of runs alone up to here: some ten turns of a job.
MOST_STEPS = 200
#: How long those may take.
ALONE_S = 120


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    """Two GPUs of one type and one of another; an ordinary job shows when slurmctld starts jobs."""
    # A rank that is frozen while its gang imports PyTorch takes minutes to come on a busy machine.
    wakes_soon = {"wake_grace_s": 5, "client_wait_s": 600}
    patient = {"silent_after_s": 12}
    with own_cluster("sharing", "v100:1x2,k80:1x1", QUANTUM_S, node=wakes_soon, controller=patient) as made:
        # Gold has two shares of the cluster where silver has one.
        lines = [f"add account {name} description=x organization=x fairshare={shares}\n"
                 f"add user {user} account={name} fairshare=1\n"
                 for name, shares, user in (("gold", 2, "user1"), ("silver", 1, "user3"))]
        made.exec(["sacctmgr", "-i"], input="".join(lines) + "quit\n")
        made.exec(["srun", "-p", "plain", "true"], user="user3")
        yield made


@pytest.fixture(scope="module")
def run(cluster: MiniCluster) -> Iterator[Run]:
    """All six jobs, measured. Then the training is told to stop; the light ones run on."""
    fleet = Fleet(cluster)
    try:
        # Those with the smallest part start first, while no other user's job waits for their GPUs: what
        # PyTorch's start overruns is nobody's then. Of a fifth of the time it would take minutes to repay.
        training: dict[str, int] = {}
        for jobs in ((LEFT, RIGHT), (PAIR,)):
            training |= {job.name: submit(cluster, job) for job in jobs}
            fleet.jobs += (training[job.name] for job in jobs)
            for job in jobs:
                wait_for(lambda job=job: fleet.steps(job.user, job.name), f"{job.name} to train", 90)
        weighted = {
            name: light(fleet, user, name, "-A", account, f"--gandiva-tickets={tickets}")
            for user, name, account, tickets in WEIGHTED
        }
        made = Run(fleet, training, weighted)
        measure(made)
        many = "each training to be parked ten times"
        wait_for(lambda: all(fleet.parks("n1")[job] >= 10 for job in training.values()), many, 120)
        cluster.exec(["touch", STOP_FILE])
        yield made
    finally:
        fleet.finish()


def measure(run: Run) -> None:
    """Wait until all six jobs take turns, then until what their start-ups overran is repaid."""
    numbers = [*run.training.values(), *run.light.values()]
    wait_for(lambda: run.fleet.are_there(numbers), "all jobs to be started", START_S + 60)
    for node, jobs in (("n1", run.training), ("n2", run.light)):
        run.fleet.wait_suspends(jobs.values(), 2, node)
    # A job that was parked and came back has given back what its start-up overran; a window that begins
    # before has the giving back in it, which takes minutes to average out.
    begin_ns = time.monotonic_ns()
    run.window_ns = window_of(run.is_fair, WINDOW_S, MOST_S, begin_ns)


def test_users_get_their_shares_of_the_cluster_whatever_the_number_of_their_jobs(run: Run) -> None:
    """Though one has a gang on a node and a job on the other, beside two jobs of another user."""
    assert run.user_parts() == NEARLY


def test_jobs_of_a_user_share_by_their_tickets(run: Run) -> None:
    assert run.tickets_ratio() == THRICE


def test_gandiva_share_tells_tickets_and_gpu_time(run: Run) -> None:
    """Of the tree gold 2, silver 1, research 1, and of the nodes' own logs."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    first_s, last_s = (round((moment + offset_ns) / 1e9) for moment in run.window_ns)
    window_ns = (first_s * 10**9 - offset_ns, last_s * 10**9 - offset_ns)  # of the whole seconds asked for
    gang, others = (run.held_ns(node, window_ns) for node in ("n1", "n2"))
    want_ns = gang[run.training["pair"]] + others[run.light["other"]]
    rows: dict[str, Any] = {}

    def is_told() -> bool:
        """A node's report of the window's last moments may be late."""
        told = run.fleet.ask("share", "-a", "-S", f"uts{first_s}", "-E", f"uts{last_s}")
        rows.update({row["user"]: row for row in told["users"]})
        return bool(rows["user1"]["gpu_s"] == pytest.approx(want_ns / 1e9, abs=1))

    wait_for(is_told, lambda: f"user1 to have held {want_ns / 1e9} GPU seconds: {rows}")
    tickets = {user: row["tickets"] for user, row in rows.items() if user != "root"}
    assert tickets == {"user1": 250, "user2": 50, "user3": 100}


@pytest.mark.parametrize("words", [
    ["queue"], ["queue", "-t", "all", "--me"], ["acct"], ["acct", "-a", "-X"], ["share"], ["share", "-a"],
    ["why", "JOB"], ["why", "JOB", "--story"], ["nodes"], ["check"],
])
def test_any_user_may_look(run: Run, words: list[str]) -> None:
    """As text and as JSON; the job is another user's."""
    words = [word.replace("JOB", str(run.light["heavy"])) for word in words]
    told = said(run.fleet.mini, *words, user="user1")
    assert told.strip() and "Traceback" not in told
    assert json.loads(said(run.fleet.mini, *words, "--json", user="user1"))["version"] == 1


def test_a_user_sees_his_jobs_state_and_place(run: Run) -> None:
    asked_ns = time.monotonic_ns()
    told = said(run.fleet.mini, "queue", "--me", "--json", user="user3")
    rows = {row["job_id"]: row for row in json.loads(told)["jobs"]}
    mine = {run.light["heavy"], run.light["slight"]}
    assert set(rows) == mine
    row = rows[run.light["heavy"]]
    assert (row["node"], row["gpu_ids"], row["gpus"], row["ranks"], row["world"]) == ("n2", [0], 1, 1, 1)
    assert row["steps"] > 0 and row["suspends"] > 0 and row["parked_s"] > 0
    assert row["off_boundary"] <= 1 + row["suspends"] // 4, "a step may have stalled for a second"
    assert row["state"] in ("RUNNING", "SUSPENDING", "SUSPENDED", "RESUMING")
    # Its part of the node in the last minute: by the node's own log about the same.
    held_ns = run.held_ns("n2", (asked_ns - 60 * 10**9, asked_ns))[run.light["heavy"]]
    assert row["share"] > 0.1 and row["share"] == pytest.approx(held_ns / 60e9, abs=0.1)


def test_holds_are_for_operators_only(run: Run) -> None:
    """Another user may look at states and shares, not at who held which GPU when."""
    done = run.fleet.mini.exec(["python", "-c", demo_watch.ASK, "holds"], user="user3", check=False)
    assert done.returncode != 0 and "holds are shown to root and SlurmUser only" in done.stderr
    assert demo_watch.holds(run.fleet.mini)


def test_ordinary_jobs_have_nothing_of_ours(run: Run) -> None:
    """Beside all that: they start at once, in their own environment, and Gandiva does not show them."""
    script = "#!/bin/bash\nenv; scontrol show job $SLURM_JOB_ID"
    began_s = time.monotonic()
    run.fleet.mini.exec(["sbatch", "-p", "plain", "--wait", "-o", "plain.out"], user="user2", input=script)
    assert time.monotonic() - began_s < 60 * patience.slowness()
    told = run.fleet.home("user2", "plain.out").read_text()
    number = int(re.findall(r"SLURM_JOB_ID=(\d+)", told)[0])
    assert "gandiva" not in re.sub(r"(PATH|SPANK_OPTION\w*)=.*", "", told).lower()
    assert all(row["job_id"] != number for row in run.fleet.ask("queue", "-t", "all")["jobs"])


@pytest.fixture(scope="module")
def records(run: Run) -> list[JobRecord]:
    """The training jobs, ended; what they wrote, and what the same scripts write alone."""
    for user, name, *_ in WEIGHTED:
        run.fleet.stop(user, name)
    for number in (*run.training.values(), *run.light.values()):
        run.fleet.wait_ended(number, "COMPLETED")
    rows = wait_for(
        lambda: (found := {row["job_id"]: row for row in run.fleet.accounts()})
        and all(found[number]["end_s"] for number in run.training.values()) and found,
        "the accounts to be complete",
    )
    made = [demo_watch.record(run.fleet.mini, job, rows[run.training[job.name]]) for job in TRAINING]
    at = {job.name: run.fleet.home(job.user, f"alone-{job.name}") for job in TRAINING}
    pairs = zip(TRAINING, made, strict=True)
    alone = [Reference(job, min(record.step_count, MOST_STEPS), at[job.name]) for job, record in pairs]
    log = run.fleet.mini.at.log / "alone.log"
    most_s = ALONE_S * patience.slowness()
    run_references(alone, os.cpu_count() or 1, most_s, log, start_inside(run.fleet.mini))
    return [
        dataclasses.replace(record, reference=read_losses(run.out, run.job.gpus), compared=run.steps)
        for record, run in zip(made, alone, strict=True)
    ]


def test_training_is_bit_for_bit_that_of_a_run_alone(records: list[JobRecord]) -> None:
    assert all(record.suspends >= 10 for record in records), [record.suspends for record in records]
    check = demo_checks.check_losses(records)
    assert check.ok, check


def test_gpus_change_hands_at_boundaries_and_one_at_a_time(run: Run, records: list[JobRecord]) -> None:
    events = run.fleet.events("n1")
    parks = demo_parks.parks_in_events(events)
    found = demo_parks.boundaries(parks, demo_checks.steps_of(records))
    checks = [
        demo_checks.check_boundaries(parks, found),
        demo_checks.check_overlaps(
            demo_holds.overlaps_in_events(events), demo_checks.overlaps_in_steps(records, events)
        ),
    ]
    assert all(check.ok for check in checks), [str(check) for check in checks]


def test_parks_take_no_longer_than_their_mini_batches(run: Run, records: list[JobRecord]) -> None:
    """As a rule, to ten times what the demonstration asks at p99 on a quiet machine: other tests run here."""
    over: dict[bool, list[float]] = {False: [], True: []}
    jobs = {job.job_id: job for job in records}
    for park in demo_parks.parks_in_events(run.fleet.events("n1")):
        job = jobs[park.job_id]
        over[job.gpus > 1].append(demo_checks.excess_ms(park, job))
    usual = {is_gang: statistics.median(times) for is_gang, times in over.items()}
    assert max(usual.values()) <= 10 * demo_checks.PARK_SLACK_MS, usual


def test_released_jobs_run_soon(run: Run, records: list[JobRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    """To ten times what the demonstration asks of a quiet machine."""
    monkeypatch.setattr(demo_checks, "START_LIMIT_S", 10 * demo_checks.START_LIMIT_S * patience.slowness())
    check = demo_checks.check_starts(records)
    assert check.ok, check


def test_array_tasks_are_jobs_of_their_own(fleet: Fleet) -> None:
    script = 'echo "task $SLURM_ARRAY_TASK_ID gpus=$CUDA_VISIBLE_DEVICES"'
    words = ["--array=3,5", "--output=array-%a.out", "--gandiva-gpu-types=v100"]
    first = fleet.submit("user2", script, *words)
    wait_for(lambda: {*fleet.slurm_state(first).split()} <= {"COMPLETED", "GONE"}, "the array to end")
    told = "".join(fleet.home("user2", f"array-{task}.out").read_text() for task in (3, 5))
    assert re.fullmatch(r"task 3 gpus=[01]\ntask 5 gpus=[01]\n", told)
    rows = [row for row in fleet.accounts() if row["array_job_id"] == first]
    assert {row["array_task_id"] for row in rows} == {3, 5}
    why = ("why", f"{first}_5")
    wait_for(lambda: "is ENDED" in said(fleet.mini, *why, user="user2"), "gandiva to know of its end")


@pytest.mark.parametrize("words", [["srun"], ["salloc", "srun"]], ids=["srun", "salloc"])
def test_jobs_without_a_script_are_started(fleet: Fleet, words: list[str]) -> None:
    asked = ["-p", "gandiva", "--gres=gpu:k80:1"]
    show = 'echo "job=$GANDIVA_JOB/$SLURM_JOB_ID gpus=$CUDA_VISIBLE_DEVICES"'
    told = fleet.mini.exec([words[0], *asked, *words[1:], "sh", "-c", show], user="user1")
    found = re.fullmatch(r"job=(\d+)/(\d+) gpus=0\n", told.stdout)
    assert found and found[1] == found[2], told
    assert fleet.count("grant", int(found[1]), "n2") == 1


def is_stopped(fleet: Fleet, job: int) -> bool:
    """By the node's log: the last thing that happened to the job is that it was parked or frozen."""
    events = [event["event"] for event in fleet.events("n2") if event.get("job") == job]
    return [event for event in events if event in ("grant", "parked")][-1] == "parked"


def kill_while_stopped(fleet: Fleet, job: int) -> bool:
    """Kill n2's gandivad if this job is stopped at the moment; False when it is not."""
    fleet.mini.kill("gandivad:n2", signal.SIGSTOP)
    if is_stopped(fleet, job):
        fleet.mini.kill("gandivad:n2")
        return True
    fleet.mini.kill("gandivad:n2", signal.SIGCONT)
    return False


@slow("45 s; node/test_freeze has the guard, unit/test_client_machine ranks that wake by themselves")
def test_nothing_stays_stopped_when_all_our_daemons_are_dead(fleet: Fleet) -> None:
    """Parked ranks go on by themselves past their bound, and the guard thaws what was frozen."""
    path = fleet.mini.path("etc/gandiva.yaml")
    text = yaml.safe_load(path.read_text())
    text["node"] |= {"max_park_s": 4, "client_wait_s": 3}
    path.write_text(yaml.safe_dump(text))
    fleet.mini.kill("gandivad:n2", signal.SIGTERM)
    fleet.mini.start_daemon("gandivad:n2")
    jobs = {("user1", "one"): light(fleet, "user1", "one"), ("user2", "two"): light(fleet, "user2", "two")}
    loop = "while sleep 0.05; do printf . >> blind.count; done"
    blind = fleet.submit("user3", loop, "--gandiva-gpu-types=k80", "--gandiva-hook=none")
    jobs["user3", "blind"] = blind
    fleet.wait_suspends(jobs.values(), 2, "n2")
    wait_for(lambda: kill_while_stopped(fleet, blind), "gandivad to be killed while the loop is frozen")
    fleet.mini.kill("gandivactld")
    stopped = [who for who, job in jobs.items() if is_stopped(fleet, job)]
    assert ("user3", "blind") in stopped and len(stopped) >= 2
    before = {who: counted(fleet, *who) for who in jobs}
    done = fleet.mini.exec(["gandiva", "queue"], user="user1", check=False)
    assert done.returncode == 3 and done.stderr.startswith("gandiva: error: gandivactld does not answer at ")
    assert "jobs go on without it" in done.stderr
    wait_for(
        lambda: all(counted(fleet, *who) > before[who] + 20 for who in jobs),
        f"all to go on without a daemon, {stopped} from a stop", 75,
    )
    assert {fleet.slurm_state(job) for job in jobs.values()} == {"RUNNING"}
    # They ran all at once on their one GPU, which a new gandivad would rightly put into its books.
    fleet.mini.exec(["scancel", *map(str, jobs.values())])
    wait_for(lambda: not fleet.strays(), "the jobs to end")


def test_a_mistake_in_the_configuration_is_named(cluster: MiniCluster) -> None:
    bad = cluster.path("/home/user1/bad.yaml")
    bad.write_text("cluster: mini\nqantum_s: 5\npartitions: [gandiva]\ncontroller: {host: mini}\n")
    for words in (["gandivactld", "-t"], ["gandivad", "-t", "--node", "n1"]):
        done = cluster.exec([*words, "-f", "/home/user1/bad.yaml"], check=False)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        sentence = "/home/user1/bad.yaml:2: qantum_s: unknown key; allowed: cluster, partitions, quantum_s"
        assert sentence in done.stderr
