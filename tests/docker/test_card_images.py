"""GPU programs moved by images of their processes: NVIDIA's driver and NVML are played (ADR 0073).

What is real: Slurm, criu, the programs that gandivad starts, the structures that the driver is called with.
A program off its GPU has no device open, and its GPU's memory is lost until the driver puts it back.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import own_cluster, wait_for
from tests.docker.conftest import require
from tests.docker.moving import MOVE_S, MOVES, OF_IMAGES, STEPS, SUITE, TRAIN, Moving

HERE = Path(__file__).parent
NODES = ("n1", "n2")
#: Trains as the script beside it does, with a pattern in the GPU's memory that must be there at the end.
ON_CARD = """
import runpy, sys
from gandiva_slurm.node.image_probe import CardMemory
pattern = bytes(range(256)) * 4096
memory = CardMemory(pattern)
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit as end:
    sys.exit(end.code if memory[0:len(pattern)] == pattern else "the GPU's memory is another")
"""


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """Two nodes with a GPU of one model each, and its driver."""
    require(SUITE)
    library = tmp_path_factory.mktemp("card") / "libcuda.so.1"
    words = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(library),
        str(HERE / "fake_card.c"),
    ]
    subprocess.run(words, check=True, timeout=60)
    spec = {**OF_IMAGES, "process_images": True}
    with own_cluster(
        "cards", "v100:1x1,v100:1x1", 0.5, spec=spec, moves=MOVES, node={"process_images_gpu": True}
    ) as mini:
        mini.path("/home/card").mkdir(mode=0o777)
        mini.path("/home/card").chmod(0o777)
        for name in (library, HERE / "fake_pynvml.py"):
            mini.path("/home/card", name.name).write_bytes(name.read_bytes())
        for name, text in (("train.py", TRAIN.read_text()), ("on_card.py", ON_CARD)):
            mini.path("/home/user1", name).write_text(text)
        install = (
            "mknod -m 666 /dev/nvidia0 c 1 3; cp /home/card/libcuda.so.1 /usr/lib/; ldconfig; "
            "cp /home/card/fake_pynvml.py $(echo /opt/gandiva/lib/python3*/site-packages)/pynvml.py"
        )
        for node in NODES:
            mini.exec(["sh", "-c", install], host=node)
            mini.kill(f"gandivad:{node}")
            mini.start_daemon(f"gandivad:{node}")
        yield mini


class OnCard(Moving):
    """A training with memory on a GPU."""

    def begin(self, name: str) -> None:
        """Submit it."""
        self.name = name
        flags = ("--gandiva-pack=never", "--requeue", "--open-mode=append", "-o", f"{name}.out")
        words = f"export GANDIVA_AUTO_ATTACH=0 FAKE_CARD=/home/card/{name}"
        lines = f"{words}\nexec python on_card.py {name} {STEPS} 0.1"
        self.job = self.fleet.submit("user1", lines, *flags)
        self.fleet.wait_running(self.job)
        wait_for(lambda: len(self.lines()) > 5, lambda: f"it to train: {self.story()}", 90)

    def calls(self) -> list[str]:
        """What the driver was asked to do with it: the node, and the call."""
        path = self.mini.path("/home/card", f"{self.name}.calls")
        return path.read_text().splitlines() if path.exists() else []

    def drain(self, node: str) -> None:
        """Have all leave a node that can (docs/images.md)."""
        words = ["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=gandiva: a test"]
        self.mini.exec(words)

    def resume(self, node: str) -> None:
        """It takes jobs again."""
        self.mini.exec(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)

    def leave(self) -> str:
        """Have it leave for the other node; return where it was when it trains there."""
        home = self.node()
        self.drain(home)
        wait_for(lambda: self.node() not in ("", home), lambda: f"it to move: {self.story()}", MOVE_S)
        was = len(self.lines())
        wait_for(lambda: len(self.lines()) > was + 5, lambda: f"it to train: {self.story()}", 60)
        self.resume(home)
        return home


@pytest.fixture
def job(mini: MiniCluster) -> Iterator[OnCard]:
    """One, whose node takes jobs again at its end."""
    found = OnCard(mini)
    yield found
    for node in NODES:
        found.resume(node)
    found.fleet.finish()


def test_a_node_without_proof_of_its_driver_makes_none(job: OnCard) -> None:
    job.begin("unproven")
    told = "images of GPU programs are not proven with this node's driver, 580.65.06"
    wait_for(lambda: told in job.story(), job.story, 20)
    assert "/dev/nvidia0 open" in job.story() and job.calls() == []


def test_a_node_checks_its_driver_by_a_program_on_a_gpu(mini: MiniCluster) -> None:
    """Two rounds are no proof, and leave one that was there; that enough are one is the unit's to show."""
    proofs, proof = mini.at.root / "images/proven", {"driver": "580.65.06", "models": ["Fake V100"]}

    def checked() -> str:
        words = [
            "env",
            "FAKE_CARD=/home/card/check",
            "gandiva",
            "check",
            "--process-images",
            "2",
            "--user",
            "user1",
        ]
        return mini.exec(words, host="n1", timeout_s=800).stdout

    assert "one of them on a GPU, made and restored: 2" in checked() and not proofs.exists()
    proofs.mkdir(mode=0o700)
    for node in NODES:
        (proofs / f"{node}.json").write_text(json.dumps(proof))
    checked()
    assert json.loads((proofs / "n1.json").read_text()) == proof


def test_it_moves_to_another_gpu_and_back_with_its_memory(job: OnCard) -> None:
    job.begin("moved")
    wait_for(lambda: job.moves_by() == "image", job.story, 30)
    home = job.leave()
    wait_for(lambda: "to other v100s alone" in job.story(), job.story, 30)  # its node looks now and then
    back = job.leave()
    assert {home, back} == {*NODES}
    assert job.wait_ended()[-1] == "FAILED 7:0", job.file(".out").read_text()
    assert job.lines() == job.alone()
    assert job.calls() == [*of_a_move(home, back), *of_a_move(back, home)]


def of_a_move(home: str, to: str) -> list[str]:
    """What the driver is asked to do in one."""
    restore = f"{to} restore {home[1:]} as {to[1:]}"
    return [f"{home} lock", f"{home} checkpoint", restore, f"{to} unlock"]


def test_where_the_driver_does_not_put_it_on_it_goes_on_from_its_image_where_it_was(job: OnCard) -> None:
    job.begin("failed")
    wait_for(lambda: job.moves_by() == "image", job.story, 30)
    home = job.node()
    other = next(node for node in NODES if node != home)
    fails = job.mini.path("/home/card", f"fail-{other}")
    fails.touch()
    job.drain(home)
    wait_for(lambda: job.events("unrestored"), job.story, MOVE_S)
    (failed,) = job.events("unrestored")
    assert "did not put it onto a GPU" in failed["why"] and not failed["anew"]
    job.resume(home)
    wait_for(lambda: job.node() == home and job.events("restored"), job.story, MOVE_S)
    fails.unlink()
    assert job.wait_ended()[-1] == "FAILED 7:0", job.file(".out").read_text()
    assert job.lines() == job.alone()


def test_one_that_was_taken_off_and_is_in_no_image_is_put_on_again(job: OnCard) -> None:
    """Its image does not fit on the disk: it goes on where it was, with what was in its GPU's memory."""
    job.begin("full")
    wait_for(lambda: job.moves_by() == "image", job.story, 30)
    home, work = job.node(), str(job.mini.at.root / "images/work")
    job.mini.exec(["mount", "-t", "tmpfs", "-o", "size=16m,mode=711", "tmpfs", work], host=home)
    try:
        job.drain(home)
        wait_for(lambda: job.events("unimaged"), job.story, MOVE_S)
        was, began_s = len(job.lines()), time.monotonic()
        job.resume(home)
        wait_for(
            lambda: len(job.lines()) > was + 5,
            lambda: f"{time.monotonic() - began_s}: {job.story()}",
            MOVE_S,
        )
    finally:
        job.mini.exec(["umount", work], host=home)
    assert job.wait_ended()[-1] == "FAILED 7:0", job.file(".out").read_text()
    assert job.lines() == job.alone()
    assert job.calls()[:2] == [f"{home} lock", f"{home} checkpoint"] and len(job.calls()) % 4 == 0


def test_a_gandivad_killed_while_the_driver_works_leaves_nothing_off_its_gpu(job: OnCard) -> None:
    job.begin("killed")
    wait_for(lambda: job.moves_by() == "image", job.story, 30)
    home = job.node()
    job.drain(home)
    wait_for(lambda: job.calls(), job.story, MOVE_S)
    job.mini.kill(f"gandivad:{home}")
    job.resume(home)
    job.mini.start_daemon(f"gandivad:{home}")
    was = len(job.lines())
    wait_for(lambda: len(job.lines()) > was + 5, job.story, MOVE_S)
    assert job.wait_ended()[-1] == "FAILED 7:0", job.file(".out").read_text()
    assert job.lines() == job.alone()


def test_another_driver_is_no_proof(job: OnCard) -> None:
    job.begin("renewed")
    wait_for(lambda: job.moves_by() == "image", job.story, 30)
    home = job.node()
    job.mini.exec(["sh", "-c", "echo 590.1 >/etc/fake-driver"], host=home)
    job.mini.kill(f"gandivad:{home}")
    job.mini.start_daemon(f"gandivad:{home}")
    try:
        wait_for(lambda: "not proven with this node's driver, 590.1" in job.story(), job.story, 30)
    finally:
        job.mini.exec(["rm", "/etc/fake-driver"], host=home)
