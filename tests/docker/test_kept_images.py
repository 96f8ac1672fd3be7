"""A node is lost, and its unmodified trainings go on elsewhere from images that were kept (ADR 0061)."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.node.kept_images import LEAST_NS, PART
from gandiva_slurm.node.spares import SPARE_NS
from tests.cluster.fleet import Fleet, own_cluster, wait_for
from tests.docker.conftest import require
from tests.docker.moving import BROKE, OF_IMAGES, SUITE, TRAIN, criu_of, runs_of
from tests.slow import soak

pytestmark = pytest.mark.timeout(900)

S = 10**9
#: Each has one training: a GPU's last slot is for users who are not on it.
USERS = ("user1", "user2", "user3")
IMAGED_S, LOST_S = 240.0, 180.0


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two nodes of a GPU, between which nothing moves by itself, with images kept."""
    require(SUITE)
    settings = {"moves": {"min_run_s": 3600, "cost_s": 60}, "node": {"image_parked": True}}
    with own_cluster("kept", "v100:2x1", 0.5, spec=OF_IMAGES, **settings) as cluster:
        for user in USERS:
            cluster.path(f"/home/{user}/train.py").write_text(TRAIN.read_text())
        yield Fleet(cluster)


@pytest.fixture(autouse=True)
def ended(fleet: Fleet) -> Iterator[None]:
    """No job of a test that failed is left, and no node drained."""
    yield
    for node in ("n1", "n2"):
        fleet.mini.exec(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
    fleet.mini.exec(["sh", "-c", "squeue -h -o %A | xargs -r scancel"])
    wait_for(lambda: not fleet.mini.exec(["squeue", "-h", "-o", "%A"]).stdout.strip(), "all to end", 120)


def kept(fleet: Fleet, job: int, node: str = "n1") -> list[dict[str, Any]]:
    """The images of it that were kept, oldest first."""
    mine = [event for event in fleet.events(node) if event.get("job") == job]
    return [event for event in mine if event["event"] == "imaged" and event["kept"]]


def trained(file: Path) -> list[tuple[int, str]]:
    """The mini-batches that were done and written, in their order, with their losses."""
    text = file.read_text() if file.exists() else ""
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [(int(step), loss) for step, loss in map(str.split, whole)]


def story(fleet: Fleet, job: int) -> str:
    """What is known of it, for a failure."""
    told = fleet.mini.exec(["gandiva", "why", str(job), "--story"], check=False).stdout
    events = [each for node in ("n1", "n2") for each in fleet.events(node) if each.get("job") == job]
    told_of = [each for each in events if "image" in each["event"] or "rest" in each["event"]]
    return told + "\n".join(map(json.dumps, told_of))


def submit_all(fleet: Fleet, name: str) -> dict[int, Path]:
    """A training of each user on n1; return their files."""
    fleet.mini.exec(["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=later"])
    files: dict[int, Path] = {}
    for user in USERS:
        script = f"export GANDIVA_AUTO_ATTACH=0\nexec python train.py {name} {10**6} 0.01"
        job = fleet.submit(user, script, "--gandiva-pack=never", "--requeue")
        files[job] = fleet.home(user, name)
    for job in files:
        fleet.wait_running(job)
    return files


def wait_trained(files: dict[int, Path], more: int) -> None:
    """Wait until each has done `more` mini-batches more."""
    at = {job: len(trained(file)) for job, file in files.items()}
    wait_for(lambda: all(len(trained(files[job])) > at[job] + more for job in files), "all to train", 90)


def check_kept(fleet: Fleet, files: dict[int, Path], killed_ns: int) -> None:
    """Each goes on on n2 from its last image, to the last bit, and is told what it lost."""
    for job, file in files.items():
        wait_for(
            lambda job=job: fleet.count("restored", job, "n2"), lambda job=job: story(fleet, job), LOST_S
        )
        lines = len(trained(file))
        wait_for(lambda file=file, lines=lines: len(trained(file)) > lines + 20, f"job {job} to train", 90)

    def told() -> dict[int, Any]:
        rows = {row["job_id"]: row for row in fleet.ask("acct", "-a", "-S", "now-1hours")["jobs"]}
        return rows if all(rows[job]["lost_steps"] is not None for job in files) else {}

    rows = wait_for(told, "acct to tell what each has lost", 30)
    for job, file in files.items():
        steps = trained(file)
        # One that was killed in its rest behind its last image had nothing to do again.
        again = next((at for at in range(1, len(steps)) if steps[at][0] <= steps[at - 1][0]), 0)
        lost = steps[again - 1][0] + 1 - steps[again][0] if again else 0
        (*_, last) = kept(fleet, job)
        interval_ns = max(LEAST_NS, PART * round((last["dump_s"] + last["seal_s"]) * S))
        since_ns, row = killed_ns - last["mono_ns"], rows[job]
        took = f"dump {last['dump_s']:.2f} s, copy {last['seal_s']:.2f} s, {since_ns / S:.1f} s before"
        print(f"job {job}: {lost} of {steps[again - 1][0] + 1} lost, told {row['lost_steps']}; image: {took}")
        assert since_ns <= interval_ns + 60 * S, "its turn to be parked may be a little later"
        assert [step for step, _ in steps[again:]] == [*range(steps[again][0], steps[-1][0] + 1)]
        losses: dict[int, str] = {}
        assert all(losses.setdefault(step, loss) == loss for step, loss in steps), "the same to the last bit"
        # What the node did between its last word and its end is in no account.
        assert 0 <= row["lost_steps"] <= lost and row["moved_by"] == ["kept image"], row


def check_once(fleet: Fleet, job: int, file: Path) -> None:
    """Each mini-batch was done once, or from the first one on where a killed criu took the job along."""
    runs = runs_of([step for step, _ in trained(file)])
    assert all(run == [*range(len(run))] for run in runs), story(fleet, job)
    assert len(runs) <= 1 + len(BROKE.findall(story(fleet, job))), story(fleet, job)


def end_all(fleet: Fleet, files: dict[int, Path]) -> None:
    """Cancel them: nothing of them is left."""

    def is_settled() -> bool:
        """What a job that ends earlier was restored from stays two minutes (ADR 0070)."""
        lines = [line for node in ("n1", "n2") for line in fleet.events(node) if line["event"] == "restored"]
        return all(time.monotonic_ns() - line["mono_ns"] > SPARE_NS + S for line in lines)

    wait_for(is_settled, "what was restored to be its job's alone", 60)
    fleet.mini.exec(["scancel", *map(str, files)])
    store = fleet.mini.at.root / "images"
    wait_for(lambda: not [*store.glob("whole/*")], lambda: f"no image: {[*store.glob('whole/*')]}", 90)
    for job in files:
        fleet.wait_ended(job)


@soak("two minutes and more each; unit/test_kept_images has what gandivad makes of it")
@pytest.mark.parametrize("victim", ("criu", "gandivad"))
def test_killed_in_the_midst_of_one_the_job_trains_on_where_it_is(fleet: Fleet, victim: str) -> None:
    files = submit_all(fleet, f"killed.{victim}")
    begun = [f"begun {job}" for job in files]
    wait_for(lambda: any(fleet.count("image", job) for job in files), f"one to be made: {begun}", IMAGED_S)
    if victim == "criu":
        with contextlib.suppress(AssertionError, ProcessLookupError):  # it may have done its work already
            os.kill(wait_for(lambda: criu_of(fleet.mini, "n1"), "criu", 2), signal.SIGKILL)
    else:
        fleet.mini.kill("gandivad:n1")
        fleet.mini.start_daemon("gandivad:n1")
    wait_trained(files, 50)
    for job, file in files.items():
        check_once(fleet, job, file)
    for job in files:
        wait_for(lambda job=job: kept(fleet, job), lambda job=job: story(fleet, job), IMAGED_S)
    wait_trained(files, 20)
    end_all(fleet, files)


@soak("two minutes; the last test of this file has what is restored")
def test_jobs_of_a_node_that_slurm_gave_up_go_on_elsewhere_once(fleet: Fleet) -> None:
    """slurmd is dead, the node set down, and its gandivad answers: it stops what is started elsewhere."""
    files = submit_all(fleet, "down")
    for job in files:
        wait_for(lambda job=job: kept(fleet, job), lambda job=job: story(fleet, job), IMAGED_S)
    wait_trained(files, 50)
    fleet.mini.exec(["scontrol", "update", "NodeName=n2", "State=RESUME"])
    killed_ns = time.monotonic_ns()
    fleet.mini.kill("slurmd:n1")
    fleet.mini.exec(["scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test"])
    check_kept(fleet, files, killed_ns)
    end_all(fleet, files)
    fleet.mini.start_daemon("slurmd:n1")
    fleet.mini.exec(["scontrol", "update", "NodeName=n1", "State=RESUME"], check=False)
    wait_for(lambda: all(n["state"] in ("up", "drain") for n in fleet.ask("nodes")["nodes"]), "n1", 60)


@soak("two minutes; cluster/test_moving has the drain, test_images the move")
def test_a_drain_for_a_reason_of_ours_moves_them_by_their_images(fleet: Fleet) -> None:
    """Nothing is lost, whether one was kept or not."""
    files = submit_all(fleet, "drained")
    wait_trained(files, 50)
    for job in files:
        wait_for(lambda job=job: "can be moved" in story(fleet, job), lambda job=job: story(fleet, job), 60)
    fleet.mini.exec(["scontrol", "update", "NodeName=n2", "State=RESUME"])
    fleet.mini.exec(["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=gandiva: a new disk"])
    for job in files:
        wait_for(
            lambda job=job: fleet.count("restored", job, "n2"), lambda job=job: story(fleet, job), LOST_S
        )
    wait_trained(files, 20)
    for file in files.values():
        assert [step for step, _ in trained(file)] == [*range(len(trained(file)))], "once each"

    def told() -> list[tuple[object, ...]]:
        rows = [row for row in fleet.ask("acct", "-a", "-S", "now-1hours")["jobs"] if row["job_id"] in files]
        return [(row["lost_steps"], row["moved_by"], row["lost_steps_why"]) for row in rows]

    wait_for(lambda: told() == [(0, ["image"], "")] * len(files), lambda: f"acct to tell: {told()}", 30)
    (node,) = [node for node in fleet.ask("nodes")["nodes"] if node["node"] == "n1"]
    assert node["reason"] == "gandiva: a new disk: no job of Gandiva's is left there"
    end_all(fleet, files)


def test_jobs_of_a_lost_node_go_on_elsewhere(fleet: Fleet) -> None:
    """The last test of this file: n1 does not come back."""
    files = submit_all(fleet, "lost")
    for job in files:
        wait_for(lambda job=job: kept(fleet, job), lambda job=job: story(fleet, job), IMAGED_S)
    wait_trained(files, 50)
    fleet.mini.exec(["scontrol", "update", "NodeName=n2", "State=RESUME"])
    killed_ns = time.monotonic_ns()
    os.kill(fleet.mini.pids["n1"], signal.SIGKILL)
    check_kept(fleet, files, killed_ns)
    end_all(fleet, files)
