"""What fails, or is made to fail, while a job moves by an image of its processes: it is alive once."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import set_slurm, wait_for
from tests.docker.moving import (
    GONE_S,
    MORE_STEPS,
    MOVE_S,
    STEPS,
    TYPES,
    Moving,
    criu_of,
    pids_of,
    runs_of,
    two_nodes,
)
from tests.docker.moving import moving as moving


@pytest.fixture(scope="module")
def mini() -> Iterator[MiniCluster]:
    """A cluster for all tests of this file."""
    with two_nodes("image-faults") as cluster:
        # A slurmd that a test has stopped is not asked meanwhile: no target is lost but by the test.
        set_slurm(cluster, SlurmdTimeout=300)
        yield cluster


@pytest.mark.parametrize("hostile", ["edited", "another's"])
def test_an_image_that_was_changed_is_refused_and_the_job_begins_anew(moving: Moving, hostile: str) -> None:
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home, whole = moving.node(), moving.mini.at.root / "images/whole"
    moving.mini.kill(f"slurmd:{'n2' if home == 'n1' else 'n1'}", signal.SIGSTOP)
    moving.crowd()
    place = wait_for(lambda: list(whole.glob(f"{moving.job}.0/manifest.json")), moving.story, MOVE_S)[0]
    if hostile == "edited":
        pages = next(place.parent.glob("pages-*.img"))
        with open(pages, "r+b") as file:
            file.seek(5000)
            file.write(b"hostile!")
    else:
        place.write_text(json.dumps(json.loads(place.read_text()) | {"uid": 5002}))
    moving.mini.kill(f"slurmd:{'n2' if home == 'n1' else 'n1'}", signal.SIGCONT)
    wait_for(lambda: moving.node() not in ("", home), moving.story, MOVE_S)
    wait_for(lambda: sum(line.startswith("0 ") for line in moving.lines()) == 2, moving.story, 60)
    assert "restored" not in [event["event"] for event in moving.events("restored")]
    assert len(moving.processes(moving.node())) == 1 and not moving.processes(home)
    wait_for(lambda: not moving.images(), lambda: f"images to be deleted: {moving.images()}", GONE_S)


def test_a_target_that_is_lost_before_the_restore_costs_no_work(moving: Moving) -> None:
    """Slurm has started it there: the incarnation after that one goes on from the image, where it was."""
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home, mini = moving.node(), moving.mini
    other = "n2" if home == "n1" else "n1"
    mini.kill(f"slurmd:{other}", signal.SIGSTOP)
    moving.crowd()
    wait_for(lambda: moving.node() == other, moving.story, MOVE_S)
    for daemon in ("gandivad", "slurmd"):
        mini.kill(f"{daemon}:{other}")
    mini.exec(["scontrol", "update", f"NodeName={other}", "State=DOWN", "Reason=test"])
    wait_for(lambda: moving.events("restored"), moving.story, MOVE_S)
    assert moving.node() == home and "moves that failed in a row" not in moving.story()
    assert moving.wait_ended()[-1] == "FAILED 7:0"
    assert moving.lines() == moving.alone(), moving.story()

    told = moving.lost_and_by
    wait_for(lambda: told() == [0, ["image"]], lambda: f"acct to tell of one move: {told()}", 30)


def test_a_disk_that_fills_in_the_midst_of_a_dump_costs_the_move_alone(moving: Moving) -> None:
    """Its file system is found large enough before; what criu writes is more than there is."""
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home, work = moving.node(), str(moving.mini.at.root / "images/work")
    moving.mini.exec(["mount", "-t", "tmpfs", "-o", "size=16m,mode=711", "tmpfs", work], host=home)
    try:
        crowd = moving.crowd()
        (failed, *_) = wait_for(lambda: moving.events("unimaged"), moving.story, MOVE_S)
        assert failed["why"].endswith("images/work is full"), failed
        was = len(moving.lines())
        wait_for(lambda: len(moving.lines()) > was + 20, moving.story, MOVE_S)
        assert moving.node() == home and len(moving.processes(home)) == 1, moving.story()
        wait_for(lambda: not moving.mini.exec(["ls", work], host=home).stdout, "what was written to go")
    finally:
        moving.mini.exec(["umount", work], host=home)
    wait_for(lambda: moving.node() not in ("", home), moving.story, MOVE_S)
    moving.mini.exec(["scancel", str(crowd)])
    assert moving.wait_ended()[-1] == "FAILED 7:0"
    assert moving.lines() == moving.alone(), moving.story()


def test_an_output_file_that_became_a_link_to_roots_file_is_not_written(moving: Moving) -> None:
    moving.mini.exec(["sh", "-c", "echo root >/home/roots; chmod 600 /home/roots"])
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home, whole = moving.node(), moving.mini.at.root / "images/whole"
    slurmd = f"slurmd:{'n2' if home == 'n1' else 'n1'}"
    moving.mini.kill(slurmd, signal.SIGSTOP)
    moving.crowd()
    wait_for(lambda: list(whole.glob(f"{moving.job}.0")), moving.story, MOVE_S)
    link = f"cd; mv {moving.name} {moving.name}.was; ln -s /home/roots {moving.name}"
    moving.mini.exec(["sh", "-c", link], user="user1")
    moving.mini.kill(slurmd, signal.SIGCONT)
    wait_for(lambda: moving.node() not in ("", home), moving.story, MOVE_S)
    wait_for(lambda: moving.events("unrestored"), moving.story, MOVE_S)
    assert moving.mini.exec(["cat", "/home/roots"]).stdout == "root\n"


def test_a_gandivad_killed_with_an_image_made_loses_neither(moving: Moving) -> None:
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home, whole = moving.node(), moving.mini.at.root / "images/whole"
    moving.crowd()
    wait_for(lambda: list(whole.glob(f"{moving.job}.0")), moving.story, MOVE_S)
    moving.mini.kill(f"gandivad:{home}")
    moving.mini.start_daemon(f"gandivad:{home}")
    wait_for(lambda: moving.node() not in ("", home), moving.story, MOVE_S)
    assert moving.wait_ended(until_swept=True)[-1] == "FAILED 7:0"
    assert moving.lines() == moving.alone(), moving.story()


def check_steps(moving: Moving) -> int:
    """Each step was done once, or from the first one on where that was told; return how often it began."""
    runs = runs_of([int(line.split()[0]) for line in moving.lines()])
    assert all(run == [*range(len(run))] for run in runs), moving.story()
    assert len(runs) <= 1 + moving.broken(), moving.story()
    return len(runs)


def test_what_dies_with_a_killed_criu_is_requeued_and_begins_anew(moving: Moving) -> None:
    """In some kills criu leaves a trap in a process: it is sent here, while an image is being made."""
    moving.submit(f"exec python train.py OUT {MORE_STEPS} 0.02")
    home, mini = moving.node(), moving.mini
    (train,) = pids_of(mini, home, "train.py", moving.name)
    moving.crowd()
    # What it forks has its command for a moment.
    maker, *_ = wait_for(lambda: pids_of(mini, home, "gandiva_slurm.node.imaging"), moving.story, MOVE_S)
    os.kill(maker, signal.SIGSTOP)
    if criu := criu_of(mini, home):
        os.kill(criu, signal.SIGKILL)
    for number in (signal.SIGTRAP, signal.SIGCONT):
        os.kill(train, number)
    wait_for(lambda: check_steps(moving) == 2, moving.story, MOVE_S)
    assert moving.wait_ended()[0] == "REQUEUED 0:5", moving.story()


@pytest.mark.parametrize(
    "stage, victim", [("imaging", "criu"), ("imaging", "gandivad"), ("restoring", "gandivad")]
)
def test_killed_in_the_middle_it_trains_on_and_is_alive_once(moving: Moving, stage: str, victim: str) -> None:
    moving.submit(f"exec python train.py OUT {10**6} 0.02")
    home = moving.node()
    there = home if stage == "imaging" else "n2" if home == "n1" else "n1"
    moving.crowd()
    word = "image" if stage == "imaging" else "restore"
    wait_for(lambda: moving.events(word), moving.story, MOVE_S)
    begun = {path for path in moving.images() if "@" in path}
    if victim == "criu":
        with contextlib.suppress(AssertionError, ProcessLookupError):  # it may have done its work already
            pid = wait_for(lambda: criu_of(moving.mini, there), "criu", 2)
            os.kill(pid, signal.SIGKILL)
    else:
        moving.mini.kill(f"gandivad:{there}")
        moving.mini.start_daemon(f"gandivad:{there}")
    was = len(moving.lines())
    wait_for(lambda: len(moving.lines()) > was + 20, moving.story, MOVE_S)

    def alive() -> int:
        found = sum(len(moving.processes(node)) for node in TYPES)
        assert found <= 1, moving.story()
        return found

    wait_for(lambda: alive() == 1, moving.story, MOVE_S)  # it may be on its way once more
    check_steps(moving)
    wait_for(lambda: begun.isdisjoint(moving.images()), lambda: f"these to be gone: {begun}", 30)
