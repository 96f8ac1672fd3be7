"""Whether an image of a script could be made, as doctor and try say it: by real processes, without criu."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gandiva_slurm.cli import image_told, script_ways
from gandiva_slurm.cli.lone import LoneNode
from gandiva_slurm.config import CONF_ENV
from gandiva_slurm.node import criu, imageable
from tests.park_harness import wait_until

READY = "print('ready', flush=True); import time; time.sleep(600)\n"
YAML = (
    "cluster: c\npartitions: [gandiva]\ncontroller: {{host: c}}\n"
    "node: {{process_images: {0}, image_dir: /shared/images}}\n"
)

Telling = Callable[..., str]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    (tmp_path / "run").mkdir()
    with LoneNode(tmp_path / "run", "it") as found:
        yield found


@pytest.fixture
def tell(node: LoneNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Telling:
    """What is told of a script of this text, run as a command or by a batch script, that says it is ready."""
    monkeypatch.delenv(CONF_ENV, raising=False)
    monkeypatch.setattr("gandiva_slurm.config_file.DEFAULT_DIRECTORY", str(tmp_path))

    def told(text: str = "", batch: str = "", way: str = "") -> str:
        (tmp_path / "train.py").write_text(text + "\n" + READY)
        words = [sys.executable, str(tmp_path / "train.py")]
        if batch:
            (tmp_path / "job.sh").write_text(batch.replace("TRAIN", " ".join(words)))
            words = ["/bin/sh", str(tmp_path / "job.sh")]
        script = script_ways.read(words)
        node.start(words, cwd=Path("/"), env={"SLURM_JOB_ID": "1"} if batch else {})
        log = Path(f"{node.run}.log")
        wait_until(lambda: log.exists() and "ready" in log.read_text(), "the script to begin")
        return image_told.told(node, script, way)

    return told


def has_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, criu_says: str) -> None:
    """Play a machine with all programs, of which criu says this."""
    (tmp_path / "bin").mkdir()
    for name in criu.PROGRAMS:
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{criu_says if name == 'criu' else 'exit 1'}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def test_a_plain_script_could_be_and_what_is_lacking_here_is_told(
    tell: Telling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criu, "PROGRAMS", ("no-such-criu",))
    assert tell() == (
        "could be made, as far as is seen here; whether this site makes images is not known here "
        "(no gandiva.yaml); this node has no program no-such-criu"
    )


@pytest.mark.parametrize("is_on, told", [("true", "this site makes them"), ("false", "this site makes none")])
def test_what_the_site_has_set_is_told(tell: Telling, tmp_path: Path, is_on: str, told: str) -> None:
    (tmp_path / "gandiva.yaml").write_text(YAML.format(is_on))
    assert told in tell()


@pytest.mark.parametrize(
    "more, told",
    [
        (", process_images_gpu: true", "it uses a GPU: on nodes that have proven their driver"),
        ("", "no: it has the device /dev/p"),
    ],
)
def test_of_one_that_uses_a_gpu_what_the_site_makes_is_told(
    tell: Telling, tmp_path: Path, more: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imageable, "CARD", "/dev/p")  # the only device besides that anybody may open
    text = YAML.format("true").replace(", image_dir", f"{more}, image_dir")
    (tmp_path / "gandiva.yaml").write_text(text)
    assert told in tell("import os; f = os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)")


@pytest.mark.parametrize(
    "says, told",
    [
        ("echo Version: 3.17.1", "criu is 3.17.1 here, and 4.1 or newer is needed"),
        ("echo nothing", "criu is of an unknown version here, and 4.1 or newer is needed"),
        ('case "$1" in --version) echo Version: 4.1.1;; esac', "criu 4.1.1 is here, and passes its check"),
        (
            'case "$1" in --version) echo Version: 4.1.1;;\n'
            '*) echo "Error (criu/cr-check.c:1): no luck"; exit 1;; esac',
            "criu 4.1.1 is here, and its check finds: no luck",
        ),
    ],
)
def test_what_criu_says_here_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, told: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    has_tools(tmp_path, monkeypatch, says)
    assert image_told._of_criu() == told
    assert (criu.unfit() == "") == ("4.1.1" in told)


def test_a_user_is_not_told_of_a_check_that_root_alone_may_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_tools(tmp_path, monkeypatch, "echo Version: 4.1.1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert image_told._of_criu() == "criu 4.1.1 is here, and root alone may have it check the kernel"


@pytest.mark.parametrize(
    "text, told",
    [
        (
            "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
            "no: it has a socket of the network open (tcp)",
        ),
        ("import os; f = os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)", "no: it has the device /dev/p"),
        ("import os; os.chdir('/dev/shm')", "no: it uses /dev/shm/"),
    ],
)
def test_what_the_script_has_that_no_image_holds_is_told(tell: Telling, text: str, told: str) -> None:
    assert tell(text).startswith(told)


@pytest.mark.parametrize(
    "batch, told",
    [
        ("#SBATCH --nodes=2\nTRAIN\n", "no: it runs on several nodes (job.sh:2: #SBATCH --nodes=2)"),
        (
            "#SBATCH --no-requeue\nTRAIN\n",
            "no: Slurm may not start it again (job.sh:2: #SBATCH --no-requeue)",
        ),
        ("srun TRAIN\n", "no: it has steps of srun, or none of sbatch"),
        ("TRAIN &\nwait\n", "could be made, as far as is seen here; "),
    ],
)
def test_batch_scripts(tell: Telling, batch: str, told: str) -> None:
    assert tell(batch="#!/bin/sh\n" + batch).startswith(told)


def test_a_job_that_is_moved_otherwise_needs_none(tell: Telling) -> None:
    assert tell(way="attached") == "could be made, and is not needed: it is moved otherwise (attached)"


def test_of_a_script_that_was_over_nothing_is_known(node: LoneNode, tmp_path: Path) -> None:
    node.start([sys.executable, "-c", ""])
    wait_until(lambda: node.status is not None, "its end")
    assert image_told.told(node, script_ways.read(["true"]), "") == "not known: the script was over"
