"""Unmodified trainings moved between two nodes by images of their processes, on trixie's criu (ADR 0054).

Every job here runs without any help of a framework, and saves nothing. Where it goes is forced: a job that
cannot move takes its GPU's turns, and the other node's GPU is idle.
"""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.cli.json_shapes import PRINTED
from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import LIGHT, Fleet, own_cluster, wait_for
from tests.docker.conftest import require

SUITE = "docker:trixie"
OF_IMAGES = {"backend": SUITE, "process_images": True}
TRAIN = Path(__file__).parents[1] / "node/scripts/plain_train.py"
#: In a turn of 18 minutes a job moves to GPUs on which no other lives, and nowhere else.
MOVES = {"min_run_s": 2, "cost_s": 60, "deadline_s": 60}
TYPES = {"n1": "v100", "n2": "k80"}
MOVE_S, END_S, STEPS = 90.0, 180.0, 1000
#: The image of a job that ends within seconds behind a move is there for two minutes (ADR 0070).
GONE_S = 180.0


@contextlib.contextmanager
def two_nodes(name: str) -> Iterator[MiniCluster]:
    """Two nodes of a GPU, of two types, so that each job can be told where it is to be."""
    require(SUITE)
    with own_cluster(name, "v100:1x1,k80:1x1", 0.5, spec=OF_IMAGES, moves=MOVES) as cluster:
        cluster.path("/home/user2/light.py").write_text(LIGHT)
        cluster.path("/home/user1/train.py").write_text(TRAIN.read_text())
        yield cluster


@pytest.fixture(scope="module")
def mini() -> Iterator[MiniCluster]:
    """A cluster for all tests of this file."""
    with two_nodes("images") as cluster:
        yield cluster


@pytest.fixture
def moving(mini: MiniCluster) -> Iterator["Moving"]:
    """A training of user1 that can be had moved; all jobs have ended at its end."""
    found = Moving(mini)
    yield found
    for name in ("gandivad:n1", "gandivad:n2", "gandivactld", "slurmd:n1", "slurmd:n2"):
        if mini.daemon_pid(name) is None:
            mini.start_daemon(name)
    found.fleet.finish()


class Moving:
    """One training, and what makes it move."""

    def __init__(self, mini: MiniCluster) -> None:
        self.mini, self.fleet, self.job = mini, Fleet(mini), 0
        self.name = f"t{time.monotonic_ns()}"

    def submit(self, script: str, *flags: str, told: str = "image of its") -> None:
        """Submit the training, and wait until this is said; OUT stands for the file of its losses."""
        text = f"export GANDIVA_AUTO_ATTACH=0\n{script.replace('OUT', self.name)}"
        more = ("--gandiva-pack=never", "--requeue", "--open-mode=append", "-o", f"{self.name}.out", *flags)
        self.job = self.fleet.submit("user1", text, *more)
        self.fleet.wait_running(self.job)
        wait_for(lambda: len(self.lines()) > 30, "it to train", 90)
        wait_for(lambda: told in self.story(), lambda: f"a word on images: {self.story()}", 90)

    def node(self) -> str:
        """Where Slurm has it; "" where nowhere."""
        return self.mini.exec(["squeue", "-h", "-j", str(self.job), "-o", "%N"], check=False).stdout.strip()

    def limit_min(self) -> int:
        """Its time limit in Slurm, where that is less than an hour."""
        minutes, _ = self.mini.exec(["squeue", "-h", "-j", str(self.job), "-o", "%l"]).stdout.split(":")
        return int(minutes)

    def file(self, kind: str = "") -> Path:
        """A file of the training's: its losses, or .out."""
        return self.fleet.home("user1", f"{self.name}{kind}")

    def lines(self) -> list[str]:
        """The losses so far."""
        return self.file().read_text().splitlines() if self.file().exists() else []

    def crowd(self) -> int:
        """A job that cannot move comes to its GPU: it goes to the other one."""
        kind = f"--gandiva-gpu-types={TYPES[self.node()]}"
        script = f"exec python light.py {self.name}.c {self.name}.stop"
        return self.fleet.submit("user2", script, "--gandiva-pack=never", "--gandiva-migrate=never", kind)

    def move(self) -> int:
        """Have it moved to the other node, and train there; return how far it was when it was there."""
        home = self.node()
        other = self.crowd()
        wait_for(lambda: self.node() not in ("", home), lambda: f"it to move: {self.story()}", MOVE_S)
        self.mini.exec(["scancel", str(other)])
        was = len(self.lines())
        wait_for(lambda: len(self.lines()) > was + 20, lambda: f"it to train: {self.story()}", 60)
        return was

    def moves_by(self) -> str:
        """What `gandiva queue` says of how it moves."""
        rows = {row["job_id"]: row for row in self.fleet.ask("queue")["jobs"]}
        return str(rows[self.job]["moves_by"])

    def lost_and_by(self) -> list[object]:
        """What `gandiva acct` says of the mini-batches that its moves cost, and of how it was moved."""
        (row,) = self.fleet.ask("acct", "-a", "-j", str(self.job))["jobs"]
        return [row["lost_steps"], row["moved_by"]]

    def story(self) -> str:
        """What is known of it, for a failure."""
        told = self.mini.exec(["gandiva", "why", str(self.job), "--story"], check=False).stdout
        return told + "\n".join(json.dumps(event) for event in self.events("image", "restore", "un"))

    def events(self, *words: str) -> list[dict[str, Any]]:
        """What the nodes noted of it, of kinds that have one of these words, in order."""
        found = [event for node in TYPES for event in self.fleet.events(node) if event.get("job") == self.job]
        wanted = [event for event in found if any(word in event["event"] for word in words)]
        return sorted(wanted, key=lambda event: event["mono_ns"])

    def images(self) -> list[str]:
        """What lies of it in the store."""
        root = self.mini.at.root / "images"
        return [str(path) for name in ("work", "whole") for path in (root / name).glob(f"*{self.job}.*")]

    def wait_ended(self, until_swept: bool = True) -> list[str]:
        """Wait for its end, and for its images to be deleted; return Slurm's accounting of each run."""
        over = ("GONE", "FAILED", "COMPLETED")
        wait_for(lambda: self.fleet.slurm_state(self.job) in over, lambda: f"its end: {self.story()}", END_S)
        words = ["sacct", "-D", "-X", "-n", "-P", "-j", str(self.job), "-o", "State,ExitCode"]

        def told() -> list[str]:
            return self.mini.exec(words).stdout.replace("|", " ").split("\n")[:-1]

        wait_for(lambda: "RUNNING" not in told()[-1], "its end in the accounting")
        if until_swept:
            wait_for(lambda: not self.images(), lambda: f"images to be deleted: {self.images()}", GONE_S)
        return told()

    def alone(self, workers: int = 0) -> list[str]:
        """The losses of the same training alone, without Slurm."""
        words = f"cd; rm -f {self.name}.alone; python train.py {self.name}.alone {STEPS} 0 {workers}"
        self.mini.exec(["sh", "-c", words], user="user1", check=False)
        return self.file(".alone").read_text().splitlines()

    def processes(self, node: str, script: bytes = b"train.py") -> list[dict[str, str]]:
        """/proc/PID/status of its processes on a node."""
        base = Path(f"/proc/{self.mini.pids[node]}/root/proc")
        found = []
        for entry in filter(lambda entry: entry.name.isdigit(), base.iterdir()):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if script in words and self.name.encode() in words:
                    rows = (line.split(":", 1) for line in (entry / "status").read_text().splitlines())
                    found.append({name: value.strip() for name, value in rows})
        return found


def test_an_unmodified_training_moves_twice_to_the_last_bit(moving: Moving) -> None:
    moving.submit(f"exec python train.py OUT {STEPS} 0.02", "--time=30")
    for _ in range(2):
        moving.move()
        wait_for(lambda: moving.limit_min() < 30, "what it has used to be off its time limit")
        (status,) = moving.processes(moving.node())
        for rights in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[rights], 16) == 0, rights
        assert status["Uid"].split() == ["5001"] * 4 and status["Groups"].split() == ["5001"]
    wait_for(lambda: moving.moves_by() == "image", "the queue to say by what it moves")
    assert moving.wait_ended() == ["REQUEUED 0:0", "REQUEUED 0:0", "FAILED 7:0"]
    assert moving.lines() == moving.alone()


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


def test_an_output_file_that_became_a_link_to_roots_file_is_not_written(moving: Moving) -> None:
    moving.mini.exec(["sh", "-c", "echo root >/home/roots; chmod 600 /home/roots"])
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home, whole = moving.node(), moving.mini.at.root / "images/whole"
    moving.crowd()
    wait_for(lambda: list(whole.glob(f"{moving.job}.0")), moving.story, MOVE_S)
    link = f"cd; mv {moving.name} {moving.name}.was; ln -s /home/roots {moving.name}"
    moving.mini.exec(["sh", "-c", link], user="user1")
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
    assert moving.wait_ended()[-1] == "FAILED 7:0"
    assert moving.lines() == moving.alone(), moving.story()


@pytest.mark.parametrize(
    "stage, victim", [("imaging", "criu"), ("imaging", "gandivad"), ("restoring", "gandivad")]
)
def test_killed_in_the_middle_it_trains_on_and_is_alive_once(moving: Moving, stage: str, victim: str) -> None:
    moving.submit(f"exec python train.py OUT {STEPS} 0.02")
    home = moving.node()
    there = home if stage == "imaging" else "n2" if home == "n1" else "n1"
    moving.crowd()
    word = "image" if stage == "imaging" else "restore"
    wait_for(lambda: moving.events(word), moving.story, MOVE_S)
    begun = {path for path in moving.images() if "@" in path}
    if victim == "criu":
        with contextlib.suppress(AssertionError):  # it may have done its work already
            pid = wait_for(lambda: criu_of(moving.mini, there), "criu", 2)
            os.kill(pid, signal.SIGKILL)
    else:
        moving.mini.kill(f"gandivad:{there}")
        moving.mini.start_daemon(f"gandivad:{there}")
    was = len(moving.lines())
    wait_for(lambda: len(moving.lines()) > was + 20, moving.story, MOVE_S)
    assert sum(len(moving.processes(node)) for node in TYPES) == 1, moving.story()
    steps = [int(line.split()[0]) for line in moving.lines()]
    assert steps == [*range(len(steps))], moving.story()
    wait_for(lambda: begun.isdisjoint(moving.images()), lambda: f"these to be gone: {begun}", 30)


def criu_of(mini: MiniCluster, node: str) -> int:
    """The pid on this host of a criu on a node; 0: there is none."""
    base = f"/proc/{mini.pids[node]}"
    mine = os.readlink(f"{base}/ns/ipc")
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            is_criu = Path(f"/proc/{entry}/comm").read_text() == "criu\n"
            if is_criu and os.readlink(f"/proc/{entry}/ns/ipc") == mine:
                return int(entry)
    return 0
