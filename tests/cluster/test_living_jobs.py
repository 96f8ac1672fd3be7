"""Forms of jobs that users know, on a Gandiva partition: begin times, holds, arrays, requeues, srun."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.fleet import START_S, wait_for
from tests.cluster.living import Living, living

ASK = ("-p", "gandiva", "--gres=gpu:1", "--mem=300")


@pytest.fixture(scope="module")
def slurm(slurm_here: None) -> Iterator[Living]:
    """One node with two GPUs."""
    with living("living", "v100:1x2") as made:
        yield made


@pytest.fixture(autouse=True)
def ends_its_jobs(slurm: Living) -> Iterator[None]:
    """Each test's own jobs end with it."""
    yield
    slurm.finish()


def test_a_begin_time_is_kept(slurm: Living) -> None:
    job = slurm.submit("--begin=now+1hour", script="date +%s.%N")
    slurm.wait_why(job, "BeginTime")
    begin_s = time.time() + 4
    slurm.user("scontrol", "update", f"JobId={job}", "StartTime=now+4")
    slurm.fleet.wait_ended(job, "COMPLETED")
    assert float(slurm.fleet.home("user1", f"slurm-{job}.out").read_text()) >= begin_s - 1


def test_an_owner_holds_a_waiting_job_and_lets_it_go(slurm: Living) -> None:
    job = slurm.submit("--begin=now+1hour", script="true")
    slurm.user("scontrol", "hold", str(job))
    told = slurm.wait_why(job, "HeldByUser")
    assert "StartTime=now" in told["next"]
    slurm.user("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.fleet.wait_ended(job, "COMPLETED")


def test_a_dependency_that_cannot_be_met_is_told(slurm: Living) -> None:
    first = slurm.submit(script="exit 1")
    second = slurm.submit(f"--dependency=afterok:{first}")
    slurm.fleet.wait_ended(first, "FAILED")
    told = slurm.wait_why(second, "DependencyFailed")
    assert str(first) in told["sentence"] and "scancel" in told["next"]


def test_singletons_run_one_after_the_other(slurm: Living) -> None:
    flags = ("--dependency=singleton", "--job-name=only")
    first = slurm.submit(*flags, script="while [ ! -e go ]; do sleep 0.1; done")
    second = slurm.submit(*flags, script="true")
    slurm.wait_why(second, "Dependency")
    slurm.fleet.home("user1", "go").touch()
    slurm.fleet.wait_ended(first, "COMPLETED")
    slurm.fleet.wait_ended(second, "COMPLETED")

    def rows() -> list[str]:
        return slurm.admin("sacct", "-nPX", "-j", f"{first},{second}", "-o", "start,end").split()

    wait_for(lambda: len(rows()) == 2 and "Unknown" not in "".join(rows()), lambda: f"their times: {rows()}")
    (_, end), (start, _) = (row.split("|") for row in rows())
    assert start >= end


def test_an_array_keeps_its_throttle(slurm: Living) -> None:
    job = slurm.submit("--array=0-2%1", script="sleep 2")

    def windows() -> list[list[str]]:
        rows = slurm.admin("sacct", "-nPX", "-j", str(job), "-o", "start,end,state").split()
        return sorted(row.split("|") for row in rows)

    wait_for(lambda: [row[2] for row in windows()] == ["COMPLETED"] * 3, "three tasks to end", 60)
    first, second, third = windows()
    assert first[1] <= second[0] and second[1] <= third[0], windows()


def test_a_job_that_may_not_be_requeued_is_not(slurm: Living) -> None:
    job = slurm.submit("--no-requeue")
    slurm.fleet.wait_running(job)
    refused = slurm.user("scontrol", "requeue", str(job))
    assert refused.returncode and "disabled" in refused.stderr.lower(), refused.stderr
    assert slurm.fleet.slurm_state(job) == "RUNNING"


def test_a_requeue_into_a_hold_waits_for_its_owner(slurm: Living) -> None:
    job = slurm.submit()
    slurm.fleet.wait_running(job)
    assert slurm.user("scontrol", "requeuehold", str(job)).returncode == 0
    told = slurm.wait_why(job, "RequeuedHeld")
    assert "StartTime=now" in told["next"]
    slurm.user("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.fleet.wait_running(job)
    assert slurm.show(job)["Restarts"] == "1"


def test_a_requeue_returns_to_gandiva_and_sacct_shows_it_all_the_time(slurm: Living) -> None:
    """Nothing of ours takes the eligible time away by which sacct selects jobs of a time window."""
    job = slurm.submit()
    slurm.fleet.wait_running(job)

    def in_window() -> bool:
        told = slurm.admin("sacct", "-naPX", "-S", "now-1hour", "-E", "now", "-o", "jobid").split()
        return str(job) in told

    wait_for(in_window, "sacct to show the running job")
    assert slurm.show(job)["EligibleTime"] != "Unknown"
    assert slurm.user("scontrol", "requeue", str(job)).returncode == 0
    wait_for(lambda: slurm.show(job)["Restarts"] == "1" and slurm.fleet.slurm_state(job) == "RUNNING",
             "it to run again", 60)
    codes = [line["code"] for line in _story(slurm, job)]
    assert "Requeued" in codes and codes.count("Starting") - codes.count("StartFailed") == 2, codes
    wait_for(in_window, "sacct to show it still")
    slurm.cancel(job)
    wait_for(in_window, "sacct to show it when it has ended")


def test_immediate_jobs_run_at_once_or_are_refused_by_slurm(slurm: Living) -> None:
    """With seconds they start as any other; without, Slurm refuses whatever is held."""
    ran = slurm.user("srun", "--immediate=120", *ASK, "hostname")
    hosts = {place.host for place in slurm.cluster.site.nodes.values()}
    assert ran.returncode == 0 and ran.stdout.strip() in hosts, ran.stderr
    refused = slurm.user("srun", "--immediate", *ASK, "hostname")
    assert refused.returncode != 0 and "Unable to allocate resources" in refused.stderr


def stands_still(out: Path) -> bool:
    """True where nothing is written for as long as five lines of it take."""
    size = out.stat().st_size
    time.sleep(1.0)  # a time in which nothing happens has no sign
    return out.stat().st_size == size


def test_slurms_own_suspend_is_kept_until_its_resume(slurm: Living) -> None:
    """An administrator's `scontrol suspend` stops the job whole; after `resume` it goes on.

    Since 26.05 Slurm takes it from the job's owner, too.
    """
    job = slurm.submit(script="while true; do echo; sleep 0.2; done")
    slurm.fleet.wait_running(job)
    out = slurm.fleet.home("user1", f"slurm-{job}.out")
    wait_for(out.exists, "its output: Slurm calls it running before")
    by_owner = slurm.user("scontrol", "suspend", str(job))
    may = " 26." in slurm.admin("sinfo", "-V")
    assert (by_owner.returncode == 0) == may, by_owner.stderr
    if not may:
        slurm.admin("scontrol", "suspend", str(job))
    wait_for(lambda: slurm.fleet.slurm_state(job) == "SUSPENDED", "Slurm to suspend it")
    # Its node is told one after the other, and Slurm does not wait for it: a resume may get there first.
    wait_for(lambda: stands_still(out), "it to be stopped")
    slurm.admin("scontrol", "resume", str(job))
    slurm.fleet.wait_running(job)
    size = out.stat().st_size
    wait_for(lambda: out.stat().st_size > size, "it to go on")


def test_an_opportunistic_job_has_what_guaranteed_ones_leave(slurm: Living) -> None:
    """It has both GPUs, gives way while another wants one of them, and goes on afterwards.

    Its owner may have it take turns meanwhile, and give way again, as it runs.
    """
    fleet = slurm.fleet
    spare = fleet.train("user2", "spare", "--gandiva-class=opportunistic", gpus=2)
    wait_for(lambda: fleet.steps("user2", "spare"), "the opportunistic job to train", START_S)
    firm = fleet.train("user1", "firm")
    wait_for(lambda: fleet.steps("user1", "firm"), "the guaranteed job to train", START_S)
    parks, at = fleet.count("parked", firm), fleet.steps("user2", "spare")
    more = fleet.steps("user1", "firm") + 400
    wait_for(lambda: fleet.steps("user1", "firm") > more, "four hundred steps of the guaranteed job", START_S)
    assert (fleet.count("parked", firm), fleet.steps("user2", "spare")) == (parks, at)
    assert any(line.startswith("opportunistic: ") for line in slurm.why(spare)["evidence"])
    assert slurm.user("gandiva", "update", str(spare), "class=guaranteed", user="user2").returncode == 0
    wait_for(lambda: fleet.steps("user2", "spare") > at + 100, "turns of it as a guaranteed one", START_S)
    assert slurm.user("gandiva", "update", str(spare), "class=opportunistic", user="user2").returncode == 0

    def has_given_way() -> bool:
        was, more = fleet.steps("user2", "spare"), fleet.steps("user1", "firm") + 400
        wait_for(lambda: fleet.steps("user1", "firm") > more, "the guaranteed job to train", START_S)
        return fleet.steps("user2", "spare") == was

    wait_for(has_given_way, "it to give way again, as it ran", START_S)
    at = fleet.steps("user2", "spare")
    fleet.stop("user1", "firm")
    fleet.wait_ended(firm, "COMPLETED")
    wait_for(lambda: fleet.steps("user2", "spare") > at, "the opportunistic job to go on")


@contextmanager
def owned(slurm: Living) -> Iterator[None]:
    """GPU 0 is a's and GPU 1 is b's, for a while; gandivactld takes that over as it runs."""
    cluster, etc = slurm.cluster, slurm.cluster.at.etc
    files = {name: (etc / name).read_text() for name in ("gandiva.yaml", "job_submit.lua")}
    told = cluster.at.log / "gandivactld.log"

    def reload() -> None:
        so_far = told.read_text().count("configuration reloaded")
        cluster.kill("gandivactld", signal.SIGHUP)
        wait_for(lambda: told.read_text().count("configuration reloaded") > so_far, "gandivactld to reload")

    with (etc / "gandiva.yaml").open("a") as file:
        file.write("virtual_clusters: {a: {v100: 1}, b: {v100: 1}}\n")
    lists = files["job_submit.lua"].replace("nodes_gpus =", 'vcs = {"a", "b"}, nodes_gpus =')
    (etc / "job_submit.lua").write_text(lists)
    reload()
    try:
        yield
    finally:
        slurm.finish()
        for name, text in files.items():
            (etc / name).write_text(text)
        reload()


def late_turns(slurm: Living) -> int:
    """How often its node has not waited for a turn from gandivactld."""
    return slurm.cluster.log("gandivad:n1").read_text().count("the controller's next turn is late")


def test_a_job_borrows_gpus_and_their_owner_has_them_at_once(slurm: Living) -> None:
    """A gang of two, of a virtual cluster with one GPU, gives way as long as the other's owner wants his."""
    fleet = slurm.fleet
    with owned(slurm):
        gang = fleet.train("user2", "gang", "--gandiva-vc=a", gpus=2)
        wait_for(lambda: fleet.steps("user2", "gang"), "the borrower to train", START_S)
        assert "draws its GPUs from virtual cluster a: 1 v100" in slurm.why(gang)["evidence"]
        owner = fleet.train("user1", "owner", "--gandiva-vc=b")
        wait_for(lambda: fleet.steps("user1", "owner"), "the owner to train", START_S)

        def taken() -> tuple[int, int, int]:
            """Turns that were late in four hundred steps of the owner, its parks, the gang's steps."""

            def now() -> tuple[int, int, int]:
                return late_turns(slurm), fleet.count("parked", owner), fleet.steps("user2", "gang")

            def go_on(count: int) -> None:
                more = fleet.steps("user1", "owner") + count
                wait_for(lambda: fleet.steps("user1", "owner") > more, f"{count} steps of the owner", START_S)

            # A turn that was late just before goes on for a while: it counts, too.
            late = late_turns(slurm)
            go_on(100)
            was = now()
            go_on(400)
            _, parks, steps = (after - before for after, before in zip(now(), was, strict=True))
            return late_turns(slurm) - late, parks, steps

        # Where gandivactld is late with a turn, the node goes by its own stride until it hears the next.
        found = [taken()]
        while found[-1][0] and len(found) < 5:
            found.append(taken())
        assert found[-1] == (0, 0, 0), f"late turns, the owner's parks, the borrower's steps: {found}"
        at = fleet.steps("user2", "gang")
        fleet.stop("user1", "owner")
        fleet.wait_ended(owner, "COMPLETED")
        wait_for(lambda: fleet.steps("user2", "gang") > at, "the borrower to go on")


def _story(slurm: Living, job: int) -> list[dict[str, str]]:
    told = slurm.fleet.ask("why", str(job), "--story")
    lines: list[dict[str, str]] = told["story"]
    return lines
