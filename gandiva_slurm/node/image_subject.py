"""A program that is moved by images of its processes on one node, without Slurm, to see that it can be.

By the same two programs' code as a job's move (`imaging`, `restoring`): as it was started at first, then
below a process 1 of its own, which ends with this process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import criu, imageable, images, imaging, procs, restoring
from gandiva_slurm.node.procs import Proc, ProcId

#: How long what is ended may take.
END_S = 30.0
_LOOK_S = 0.01
#: Where this process is killed, what it has started ends. What is restored must not have that: criu, which
#: is its parent at first, goes. It ends with the process 1 above it.
WITH_US = ("--pdeathsig", "KILL")
#: Process 1 of what is restored: it reaps.
_FIRST = (
    "import os, time\n"
    "while True:\n"
    "    try:\n        os.wait()\n"
    "    except ChildProcessError:\n        time.sleep(0.05)\n"
)
_BY = "check@1"


class Failed(Exception):
    """An image failed, or none can be begun; the text says why."""


@dataclass(frozen=True)
class Round:
    """One image: its bytes, and the seconds of each part of a move."""

    bytes: int
    dump_s: float
    seal_s: float
    verify_s: float
    restore_s: float


class Subject:
    """The program, wherever it lives now."""

    def __init__(self, store: Path, who: pwd.struct_passwd, most: int, has_card: bool = False) -> None:
        """`store`: root's own. `who`: its user. `most`: bytes of the largest image. `has_card`: of GPU 0."""
        self.has_card = has_card
        self._store, self._most, self._who = store, most, who
        self._said = self.own_file("said")
        #: what it is below: itself at first, process 1 later
        self._top: subprocess.Popen[bytes] | None = None
        self._first: ProcId | None = None
        self._root: Proc | None = None

    def own_file(self, name: str) -> Path:
        """Make a file that its user may write, and put no link in the place of: the directory is root's."""
        file = self._store / name
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        os.fchown(handle, self._who.pw_uid, self._who.pw_gid)
        os.close(handle)
        return file

    def as_user(self) -> list[str]:
        """The words by which setpriv makes a program that user's."""
        return ["--reuid", str(self._who.pw_uid), "--regid", str(self._who.pw_gid), "--init-groups"]

    def start(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | str = "/"
    ) -> None:
        """Start it, as itself: below no process 1."""
        self._first = None
        self._top = self._start(words, env or {**os.environ, "HOME": self._who.pw_dir}, cwd)
        self._root = procs.read_proc(self._top.pid)

    def send(self, number: signal.Signals) -> None:
        """Send its root a signal."""
        assert self._root is not None
        procs.send(self._root.id, number)

    def move(self, key: JobKey, besides: tuple[str, ...] = ()) -> Round:
        """Make an image of it, end it, and restore it; Failed where that fails.

        `besides`: how the paths begin that are no matter of its (`imageable.check`).
        """
        try:
            return self._move(key, besides)
        except (images.BadImage, imageable.NoImage, OSError, subprocess.SubprocessError) as err:
            raise Failed(str(err)) from err

    def _move(self, key: JobKey, besides: tuple[str, ...]) -> Round:
        assert self._root is not None
        uid, gid = self._who.pw_uid, self._who.pw_gid
        tree = imageable.tree_below(self._root, uid, self._first)
        cards = "" if self.has_card else imageable.CARDS_OFF
        besides = (f"{self._store}/", *besides)
        imageable.check(tree, gid, besides, cards)
        mine = [proc.id for proc in tree.procs]
        on_card = {"is_off": False, "procs": mine, "bytes": {}, "cgroups": [], "gpus": [0]}
        directories = imageable.socket_directories(tree)
        made = imaging.make(
            {
                "image_dir": str(self._store),
                "most": self._most,
                "key": str(key),
                "by": _BY,
                "uid": uid,
                "root": tree.root,
                "inner": tree.inner,
                "first": tree.first.pid if tree.first else 0,
                "pids": [proc.pid for proc in tree.procs],
                "goes_on": False,
                "besides": besides,
                "groups": [],
                "card": on_card if self.has_card else None,
                "facts": {"name": "check", "script": "", "directories": directories},
            }
        )
        self.end()
        images.claim(self._store, key, place := images.claim_place(self._store, key, _BY))
        self._first = self._start_first()
        restored = restoring.restore(
            {
                "image_dir": str(self._store),
                "key": str(key),
                "uid": uid,
                "first": self._first.pid,
                "place": str(place),
                "task": os.getpid(),
                "by": _BY,
                "gpus": [0],
                "cards": "",
                "is_check": True,
            }
        )
        images.remove(place)
        self._root = procs.read_proc(restored["root"].pid)
        return Round(
            made["bytes"], made["dump_s"], made["seal_s"], restored["verify_s"], restored["restore_s"]
        )

    def _start_first(self) -> ProcId:
        """Begin process 1 of new pid and mount namespaces; return what it is on this host."""
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", sys.executable, "-c", _FIRST]
        top = self._top = self._start(["setpriv", *WITH_US, "--", *words], os.environ, "/")
        self.wait(lambda: bool(procs.children(top.pid)), "unshare started nothing", END_S)
        found = procs.read_proc(procs.children(top.pid)[0])
        if found is None:
            raise Failed("process 1 of new namespaces ended")
        return found.id

    def _start(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path | str
    ) -> subprocess.Popen[bytes]:
        with open(self._said, "ab") as said:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=env,
                start_new_session=True,
                cwd=cwd,
            )

    def wait(self, is_so: Callable[[], bool], what: str, within_s: float) -> None:
        """Wait until it is so; Failed, with what it said last, where it ends before, or takes too long."""
        until_s = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > until_s or self.is_over():
                said = self._said.read_text(errors="replace").strip()[-200:]
                raise Failed(f"{what}{f': {criu.printable(said)}' if said else ''}")
            time.sleep(_LOOK_S)

    def is_over(self) -> bool:
        """True when it has ended, or what is above it has."""
        is_gone = self._root is not None and not procs.is_alive(self._root.id)
        return is_gone or self._top is None or self._top.poll() is not None

    def end(self) -> None:
        """End it and all below it, wherever it lives."""
        top, self._top, self._root = self._top, None, None
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
