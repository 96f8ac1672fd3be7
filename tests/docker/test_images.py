"""Unmodified trainings moved between two nodes by images of their processes, on trixie's criu (ADR 0054)."""

import json
import re
from collections.abc import Iterator

import pytest

from gandiva_slurm.cli.json_shapes import PRINTED
from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import wait_for
from tests.docker.moving import MORE_STEPS, STEPS, Moving, two_nodes
from tests.docker.moving import moving as moving


@pytest.fixture(scope="module")
def mini() -> Iterator[MiniCluster]:
    """A cluster for all tests of this file."""
    with two_nodes("images") as cluster:
        yield cluster


def test_an_unmodified_training_moves_twice_to_the_last_bit(moving: Moving) -> None:
    moving.submit(f"exec python train.py OUT {MORE_STEPS} 0.02", "--time=30")
    for _ in range(2):
        moving.move()
        wait_for(lambda: moving.limit_min() < 30, "what it has used to be off its time limit")
        (status,) = moving.processes(moving.node())
        for rights in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[rights], 16) == 0, rights
        assert status["Uid"].split() == ["5001"] * 4 and status["Groups"].split() == ["5001"]
    wait_for(lambda: moving.moves_by() == "image", "the queue to say by what it moves")
    assert moving.wait_ended(until_swept=True) == ["REQUEUED 0:0", "REQUEUED 0:0", "FAILED 7:0"]
    assert moving.lines() == moving.alone(steps=MORE_STEPS)


def test_a_shell_with_python_below_keeps_its_traps_and_its_exit_code(moving: Moving) -> None:
    moving.submit(
        f"trap 'echo heard' USR1; python train.py OUT {STEPS} 0.02 &\n"
        "while kill -0 $! 2>/dev/null; do wait $!; code=$?; done; echo ended $code; exit 5"
    )
    moving.move()
    moving.mini.exec(["scancel", "--batch", "--signal=USR1", str(moving.job)])
    wait_for(lambda: "heard" in moving.file(".out").read_text(), "the trap to run")
    assert moving.wait_ended()[-1] == "FAILED 5:0"
    assert moving.lines() == moving.alone()
    assert "ended 7" in moving.file(".out").read_text()


def test_workers_of_a_loader_move_along(moving: Moving) -> None:
    moving.submit(f"exec python train.py OUT {STEPS} 0.02 2")
    moving.move()
    assert moving.wait_ended()[-1] == "FAILED 7:0"
    assert moving.lines() == moving.alone(2)


def test_a_cancelled_one_ends_with_all_that_was_restored(moving: Moving) -> None:
    moving.submit(f"python train.py OUT {10**6} 0.02")
    moving.move()
    node = moving.node()
    moving.mini.exec(["scancel", str(moving.job)])
    wait_for(lambda: not moving.processes(node), "its processes to end", 60)
    wait_for(lambda: not moving.node(), "Slurm to have ended it", 60)


def test_what_cannot_be_in_an_image_is_said_before(moving: Moving) -> None:
    moving.submit(f"cd /dev/shm; exec python $HOME/train.py $HOME/OUT {STEPS} 0.02")
    pattern = r"no image of its processes can be made: (it uses .*)"
    told = wait_for(lambda: re.search(pattern, moving.story()), "a reason", 20)
    assert "which only this node has" in told[1]
    assert moving.wait_ended()[-1] == "FAILED 7:0"


def test_doctor_says_before_what_gandivad_would_say(mini: MiniCluster) -> None:
    """By the criu and the settings of a node; root alone may have criu check the kernel."""

    def told(user: str, script: str) -> str:
        words = f"cd; exec gandiva doctor --steps 5 -- sh -c '{script}; exit' </dev/null"
        out = mini.exec(["sh", "-c", words], host="n1", user=user).stdout
        found = re.search(r"^image: +(.*)$", out, re.MULTILINE)
        assert found, out
        return found[1]

    train = "python /home/user1/train.py doctored 1000 0.02"
    could = "could be made, as far as is seen here; this site makes them (node.process_images); criu 4"
    assert told("user1", train).startswith(could)
    of_root = told("root", train)
    assert re.search(r"; criu 4[\d.]+ is here, and (passes its check|its check finds: \w)", of_root), of_root
    assert "which only this node has" in told("user1", f"cd /tmp; {train}")
    assert told("user1", f"exec 7>/tmp/doctored; {train}").startswith(could)


def test_try_as_root_proves_it_by_moving_the_script(mini: MiniCluster) -> None:
    """The script is run as its user, whose directory it is."""

    def tried(script: str) -> tuple[int, str]:
        words = f"cd /home/user1; exec gandiva try --steps 60 -- {script} </dev/null"
        done = mini.exec(["sh", "-c", words], host="n1", check=False)
        return done.returncode, done.stdout

    code, out = tried("python train.py tried 1000000 0.01")
    assert code == 0, out
    found = re.search(
        r"^image: +proven: moved 2 times by images of its processes, (\d+) losses; dump ", out, re.MULTILINE
    )
    assert found and int(found[1]) >= 60, out
    code, out = tried("sh -c 'cd /dev/shm; exec python /home/user1/train.py /home/user1/tried 1000000 0.01'")
    assert code == 0 and re.search(r"^image: +no: it uses /dev/shm", out, re.MULTILINE), out
    assert mini.path("/home/user1/tried").stat().st_uid == 5001
    assert not list((mini.at.root / "images").glob("check-*"))


def test_check_makes_and_restores_images_of_a_program_of_its_own(mini: MiniCluster) -> None:
    """Without Slurm, by the node's own criu; what another one that was killed has left is removed."""
    left = mini.at.root / "images/check-n1/whole/left"
    left.mkdir(parents=True)
    words = ["gandiva", "check", "--process-images", "3", "--user", "user1"]
    told = json.loads(mini.exec([*words, "--json"], host="n1").stdout)
    PRINTED["check --process-images"].model_validate(told)
    assert told["wanted"] == len(told["rounds"]) == 3 and not told["failed"], told
    assert all(row["bytes"] > 64 << 20 for row in told["rounds"])
    assert not left.exists() and not list((mini.at.root / "images").glob("check-*"))
    refused = mini.exec(words, host="n1", user="user1", check=False)
    assert refused.returncode == 2 and "root alone may make images" in refused.stderr
    alone = mini.exec(["gandiva", "check", "--user", "user1"], host="n1", check=False)
    assert alone.returncode == 2 and "--user is of --process-images" in alone.stderr
