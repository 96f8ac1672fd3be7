"""Images made and restored, one after the other, of a program of ours: `gandiva check --process-images N`.

By the same two programs' code as a job's move (`imaging`, `restoring`), on this node's kernel, criu and file
system, without Slurm and without a job (ADR 0069). The store is a directory of its own in node.image_dir, so
that no gandivad has to do with it; it is removed at the end, and by the next call where this one is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import criu, image_cards, image_probe, imageable, images, imaging, procs, restoring
from gandiva_slurm.node.driver_checkpoint import Refused
from gandiva_slurm.node.procs import Proc, ProcId

#: Deadlines: for the program to start, PyTorch's import included; to go on after a restore; to end.
START_S, GOES_ON_S, END_S = 120.0, 30.0, 30.0
#: Steps that it takes before and after each image.
STEPS = 5
_LOOK_S = 0.01
#: Where this process is killed, what it has started ends. What is restored must not have that: criu, which
#: is its parent at first, goes. It ends with the process 1 above it.
_WITH_US = ["--pdeathsig", "KILL"]
#: Process 1 of what is restored: it reaps.
_FIRST = (
    "import os, time\n"
    "while True:\n"
    "    try:\n        os.wait()\n"
    "    except ChildProcessError:\n        time.sleep(0.05)\n"
)


class Failed(Exception):
    """A round failed, or none can be begun; the text says why."""


@dataclass(frozen=True)
class Round:
    """One image: its bytes, and the seconds of each part of a move."""

    bytes: int
    dump_s: float
    seal_s: float
    verify_s: float
    restore_s: float


def run(
    root: Path, node: str, user: str, most: int, count: int, has_card: bool = False
) -> Iterator[Round]:
    """Yield each of `count` rounds; Failed where one fails.

    `root`: node.image_dir. `user`: as whom the program runs. `most`: bytes of the largest image. `has_card`:
    it uses the first GPU; rounds enough are the node's proof then (`image_cards`), and a failure ends that.
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
            for number in range(count):
                yield probe.round(JobKey(0, number))
        if has_card and count >= image_cards.ROUNDS:
            image_cards.note_proven(root)
    except Failed:
        if has_card:
            image_cards.forget_proof(root)
        raise
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


class Probe:
    """The program, wherever it lives now: as it was started, or below a process 1 of its own."""

    def __init__(self, store: Path, who: pwd.struct_passwd, most: int, has_card: bool = False) -> None:
        self._store, self._most, self._who, self._has_card = store, most, who, has_card
        # Its user may write these two, and put no link in their place: the directory is root's.
        self._lines, self._said = store / "lines", store / "said"
        for file in (self._lines, self._said):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            os.chown(file, who.pw_uid, who.pw_gid)
        #: what it is to write next, how many lines were right, and up to where its file was read
        self._wanted, self._right, self._read = image_probe.digests(), 0, 0
        #: what it is below: itself at first, process 1 later
        self._top: subprocess.Popen[bytes] | None = None
        self._first: ProcId | None = None
        self._root: Proc | None = None

    def __enter__(self) -> Probe:
        plain = ["--reuid", str(self._who.pw_uid), "--regid", str(self._who.pw_gid), "--init-groups"]
        words = [sys.executable, "-m", image_probe.__name__, str(self._lines)]
        words += ["card"] if self._has_card else []
        self._top = self._start(["setpriv", *plain, *_WITH_US, "--", *words])
        try:
            self._root = procs.read_proc(self._top.pid)
            self._wait_for_steps(START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def round(self, key: JobKey) -> Round:
        """Make an image of it, end it, restore it, and see it go on where it was."""
        try:
            return self._round(key)
        except (images.BadImage, imageable.NoImage, OSError, subprocess.SubprocessError) as err:
            raise Failed(str(err)) from err

    def _round(self, key: JobKey) -> Round:
        assert self._root is not None
        if self._first is None:
            procs.send(self._root.id, image_probe.OUTLIVES)
            self._wait_for_steps(GOES_ON_S)
        by, uid, gid = "check@1", self._who.pw_uid, self._who.pw_gid
        tree = imageable.tree_below(self._root, uid, self._first)
        imageable.check(tree, gid, (f"{self._store}/",), "" if self._has_card else imageable.CARDS_OFF)
        mine = [proc.id for proc in tree.procs]
        on_card = {"is_off": False, "procs": mine, "bytes": {}, "cgroups": [], "gpus": [0]}
        made = imaging.make(
            {
                "image_dir": str(self._store),
                "most": self._most,
                "key": str(key),
                "by": by,
                "uid": uid,
                "root": tree.root,
                "inner": tree.inner,
                "first": tree.first.pid if tree.first else 0,
                "pids": [proc.pid for proc in tree.procs],
                "goes_on": False,
                "card": on_card if self._has_card else None,
                "facts": {"name": "check", "script": "", "directories": []},
            }
        )
        self._end()
        images.claim(self._store, key, place := images.claim_place(self._store, key, by))
        self._first = self._start_first()
        restored = restoring.restore(
            {
                "image_dir": str(self._store),
                "key": str(key),
                "uid": uid,
                "first": self._first.pid,
                "place": str(place),
                "task": os.getpid(),
                "by": by,
                "gpus": [0],
            }
        )
        images.remove(place)
        self._root = procs.read_proc(restored["root"].pid)
        self._wait_for_steps(GOES_ON_S)
        return Round(
            made["bytes"], made["dump_s"], made["seal_s"], restored["verify_s"], restored["restore_s"]
        )

    def _wait_for_steps(self, within_s: float) -> None:
        """Wait until it has taken some steps more, each of them right."""
        wanted = self._right + STEPS
        self._wait(lambda: self._count() >= wanted, "it takes no steps", within_s)

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

    def _start_first(self) -> ProcId:
        """Begin process 1 of new pid and mount namespaces; return what it is on this host."""
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", sys.executable, "-c", _FIRST]
        top = self._top = self._start(["setpriv", *_WITH_US, "--", *words])
        self._wait(lambda: bool(procs.children(top.pid)), "unshare started nothing", END_S)
        found = procs.read_proc(procs.children(top.pid)[0])
        if found is None:
            raise Failed("process 1 of new namespaces ended")
        return found.id

    def _start(self, words: list[str]) -> subprocess.Popen[bytes]:
        env = os.environ | {"HOME": self._who.pw_dir}
        with open(self._said, "ab") as said:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=env,
                start_new_session=True,
                cwd="/",
            )

    def _wait(self, is_so: Callable[[], bool], what: str, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > until_s or self._is_over():
                said = self._said.read_text(errors="replace").strip()[-200:]
                raise Failed(f"{what}{f': {criu.printable(said)}' if said else ''}")
            time.sleep(_LOOK_S)

    def _is_over(self) -> bool:
        return self._top is None or self._top.poll() is not None

    def _end(self) -> None:
        """End it and all below it, wherever it lives."""
        top, self._top = self._top, None
        if top is None:
            return
        below = [proc.id for proc in procs.below([top.pid])]
        for proc in itertools.chain([self._first] if self._first else [], below):
            procs.send(proc, signal.SIGKILL)
        top.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            top.wait(END_S)
        until_s = time.monotonic() + END_S
        while any(map(procs.is_alive, below)) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
