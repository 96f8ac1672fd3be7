"""The program that `gandiva check --process-images N` makes images of, and the store it has, without criu."""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import image_probe, image_rounds, procs
from gandiva_slurm.node.image_rounds import Failed, Probe, own_store
from gandiva_slurm.node.image_subject import Round
from tests import patience

NODE, USER, MOST = "n1", "nobody", 1 << 30
#: Takes the store, starts the program, says where that is, and waits.
HOLDS = """
import pwd, sys, time
from pathlib import Path
from gandiva_slurm.node.image_rounds import Probe, own_store
with own_store(Path(sys.argv[1]), "n1") as store, Probe(store, pwd.getpwnam("nobody"), 1 << 30) as probe:
    print(probe._top.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory of root's that every user may pass through, as node.image_dir is."""
    if os.geteuid() != 0:
        pytest.skip("its program runs as another user: root only")
    made = Path(tempfile.mkdtemp(prefix="gandiva-rounds-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def test_its_program_counts_as_is_known_and_a_wrong_step_is_found(root: Path) -> None:
    who = pwd.getpwnam(USER)
    with own_store(root, NODE) as store, Probe(store, who, MOST):
        lines = (store / "lines").read_text().split("\n")[:-1]
        assert len(lines) >= image_rounds.STEPS
        assert lines == list(itertools.islice(image_probe.digests(), len(lines)))
        # What its user may write lies where that user can put nothing in its place.
        assert store.stat().st_uid == 0 and not store.stat().st_mode & 0o022
        assert {(store / name).stat().st_uid for name in ("lines", "said")} == {who.pw_uid}
        with pytest.raises(Failed, match="another check of images runs on this node"), own_store(root, NODE):
            pass
        assert (store / "lines").exists()
    assert not store.exists()
    with own_store(root, NODE) as store, pytest.raises(Failed, match="step 2 is not as without images"):
        (store / "wrong").write_text("\n".join([*lines[:2], lines[0], ""]))
        probe = Probe(store, who, MOST)
        (store / "wrong").rename(store / "lines")
        probe._count()


def test_where_it_is_killed_its_program_ends_and_the_next_removes_its_store(root: Path) -> None:
    words = [sys.executable, "-c", HOLDS, str(root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        top = procs.read_proc(int(holder.stdout.readline()))
        assert top is not None
        below = [proc.id for proc in procs.below([top.pid])]
        assert below
        holder.send_signal(signal.SIGKILL)
    until_s = patience.deadline(20)
    while any(map(procs.is_alive, [top.id, *below])):
        assert time.monotonic() < until_s, "its program is still there"
        time.sleep(0.05)
    assert (root / f"check-{NODE}/lines").exists()
    with own_store(root, NODE) as store:
        assert not (store / "lines").exists()


class Rounds:
    """A program whose rounds are over at once; the one of number `fails` fails."""

    fails = -1

    def __init__(self, *_: object) -> None:
        self.number = 0

    def __enter__(self) -> "Rounds":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def round(self, key: JobKey) -> Round:
        if key.restart == self.fails:
            raise Failed("the driver hangs")
        return Round(1, 0.1, 0.1, 0.1, 0.1)


@pytest.mark.parametrize(
    ("rounds", "was_proven", "fails", "is_proven"),
    [
        (20, False, -1, True),
        (19, False, -1, False),
        (2, True, -1, True),
        (20, True, 7, False),
        (20, False, 19, False),
    ],
)
def test_rounds_enough_prove_a_driver_and_one_that_fails_ends_that(
    root: Path, rounds: int, was_proven: bool, fails: int, is_proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven, begun = [was_proven], list[bool]()
    monkeypatch.setattr(image_rounds, "Probe", Rounds)
    monkeypatch.setattr(Rounds, "fails", fails)
    monkeypatch.setattr(image_rounds.criu, "unfit", lambda: "")
    monkeypatch.setattr(image_rounds.images, "why_not", lambda root: "")
    monkeypatch.setattr(image_rounds.image_cards, "note_proven", lambda root: proven.append(True))

    def forget(root: Path) -> bool:
        before = proven[-1]
        proven.append(False)
        return before

    monkeypatch.setattr(image_rounds.image_cards, "forget_proof", forget)
    try:
        for _ in image_rounds.run(root, NODE, USER, MOST, rounds, has_card=True):
            begun.append(proven[-1])
    except Failed as err:
        assert str(err) == "the driver hangs"
    assert proven[-1] == is_proven and not any(begun), "a driver that hangs leaves no proof behind"
