"""Images made and restored, one after the other, of a program of ours: `gandiva check --process-images N`.

By the same two programs' code as a job's move (`imaging`, `restoring`), on this node's kernel, criu and file
system, without Slurm and without a job (ADR 0069). The store is a directory of its own in node.image_dir, so
that no gandivad has to do with it; it is removed at the end, and by the next call where this one is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import criu, image_cards, image_probe, images
from gandiva_slurm.node.driver_checkpoint import Refused
from gandiva_slurm.node.image_subject import WITH_US, Failed, Round, Subject

#: Deadlines: for the program to start, PyTorch's import included, and to go on after a restore.
START_S, GOES_ON_S = 120.0, 30.0
#: Steps that it takes before and after each image.
STEPS = 5


def run(
    root: Path, node: str, user: str, most: int, count: int, has_card: bool = False
) -> Iterator[Round]:
    """Yield each of `count` rounds; Failed where one fails.

    `root`: node.image_dir. `user`: as whom the program runs. `most`: bytes of the largest image. `has_card`:
    it uses the first GPU; rounds enough are the node's proof then (`image_cards`), and what ends before them
    ends an older proof.
    """
    why = criu.unfit() or images.why_not(root)
    if why:
        raise Failed(why)
    try:
        who = pwd.getpwnam(user)
    except KeyError:
        raise Failed(f"this node knows no user {user!r}") from None
    try:
        with own_store(root, node) as store, Probe(store, who, most, has_card) as probe:
            # A driver that hangs, or takes the host along, leaves none behind.
            was_proven = has_card and image_cards.forget_proof(root)
            for number in range(count):
                yield probe.round(JobKey(0, number))
            if has_card and (was_proven or count >= image_cards.ROUNDS):
                image_cards.note_proven(root)
    except (Refused, OSError) as err:
        raise Failed(str(err)) from err


@contextlib.contextmanager
def own_store(root: Path, node: str) -> Iterator[Path]:
    """A store that is this call's alone; what a killed one has left is removed first."""
    store, lock = root / f"check-{node}", -1
    try:
        root.mkdir(mode=0o711, exist_ok=True)
        lock = os.open(root / f".check-{node}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        if lock >= 0:
            os.close(lock)
        if isinstance(err, BlockingIOError):
            raise Failed("another check of images runs on this node") from None
        raise Failed(f"node.image_dir: {root}: {err.strerror}") from err
    try:
        shutil.rmtree(store, ignore_errors=True)
        images.prepare(store)
        yield store
    except OSError as err:
        raise Failed(f"node.image_dir: {store}: {err.strerror}") from err
    finally:
        shutil.rmtree(store, ignore_errors=True)
        os.close(lock)


class Probe(Subject):
    """The program of `image_probe`; it is running within, and has taken right steps."""

    def __init__(self, store: Path, who: pwd.struct_passwd, most: int, has_card: bool = False) -> None:
        super().__init__(store, who, most, has_card)
        self._lines = self.own_file("lines")
        #: what it is to write next, how many lines were right, and up to where its file was read
        self._wanted, self._right, self._read = image_probe.digests(), 0, 0
        self._is_apart = False

    def __enter__(self) -> Probe:
        words = [sys.executable, "-m", image_probe.__name__, str(self._lines)]
        words += ["card"] if self.has_card else []
        # Where this process is killed, it ends; what is restored must not (`OUTLIVES`).
        self.start(["setpriv", *self.as_user(), *WITH_US, "--", *words])
        try:
            self._wait_for_steps(START_S)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def round(self, key: JobKey) -> Round:
        """Make an image of it, end it, restore it, and see it go on where it was."""
        if not self._is_apart:
            self.send(image_probe.OUTLIVES)
            self._wait_for_steps(GOES_ON_S)
            self._is_apart = True
        made = self.move(key)
        self._wait_for_steps(GOES_ON_S)
        return made

    def _wait_for_steps(self, within_s: float) -> None:
        """Wait until it has taken some steps more, each of them right."""
        wanted = self._right + STEPS
        self.wait(lambda: self._count() >= wanted, "it takes no steps", within_s)

    def _count(self) -> int:
        """Return how many lines are there; Failed where one is not what it must be."""
        with open(self._lines, "rb") as file:
            file.seek(self._read)
            *lines, rest = file.read().split(b"\n")
            self._read = file.tell() - len(rest)
            for line in lines:
                if line != next(self._wanted).encode():
                    raise Failed(f"step {self._right} is not as without images: memory or a pipe differs")
                self._right += 1
        return self._right
