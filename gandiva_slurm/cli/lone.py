"""A node for one gang, without Slurm or daemon: the real pages and the real park protocol, for trials.

`start` a script under it, let it `look` often, and `park`, `leave` and `resume` the gang at will.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gandiva_slurm
from gandiva_slurm.cli import stand_in
from gandiva_slurm.client.frameworks import FOR_A_TRY
from gandiva_slurm.model.errors import GandivaError, PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import procs
from gandiva_slurm.node.door import peer_of
from gandiva_slurm.node.pages import Page, reopen, unmoved_text
from gandiva_slurm.node.park import Gang, Write
from gandiva_slurm.node.ranks import stand_of
from gandiva_slurm.wire.page import (
    DONE,
    KIND_RUN,
    TIER_HOLD,
    TIER_REQUEUE,
    W_BEAT,
    W_KIND,
    W_SEQ,
    W_STATE,
    W_TIER,
)

#: gandivad ticks this often while a park or a resume is under way.
TICK_S = 0.001
#: Ranks count as trained after so many boundaries, as on a node.
FIRST_BOUNDARIES = 3
#: What a user may wish of the memory of parked ranks, and of Trainers: that is to be tried, too.
WISHES = ("GANDIVA_TIER", "GANDIVA_PINNED_MIB", "GANDIVA_LAYERED", "GANDIVA_AUTO_ATTACH")
_BEAT_NS = 500_000_000
_HOOK = Path(gandiva_slurm.__file__).parent / "client" / "hook"


def environment(run: Path) -> dict[str, str]:
    """What a script that is tried has of ours: its losses go to files that begin with `run`."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name in WISHES or not name.startswith(("GANDIVA", "SLURM_"))
    }
    path = [str(_HOOK), *filter(None, [found.get("PYTHONPATH")])]
    return found | {"GANDIVA_TRIAL": str(run), "PYTHONPATH": os.pathsep.join(path)}


class LoneNode:
    """One life of one job: its processes and their pages. Leaves no process behind."""

    def __init__(self, path: Path, name: str, restart: int = 0) -> None:
        """Serve the ranks of run `name` at a socket in `path`, where its files go too."""
        self.gang: Gang | None = None
        self.pages: dict[int, Page] = {}
        self.kind = 0
        self._ranks: dict[int, procs.ProcId] = {}
        self._world = 0
        self._beaten_ns = 0
        self._restart = restart
        self.run = path / name
        self._notes = Path(f"{self.run}.notes{restart}")
        self._socket = f"{self.run}.socket{restart}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._socket)
        self._listener.listen(64)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LoneNode:
        # The script is in a session of its own: a terminal that closes, or a timeout, ends nobody but us.
        ours = (signal.SIGTERM, signal.SIGHUP)
        heeded = [number for number in ours if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        self._handlers = {number: signal.signal(number, _leave) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._listener.close()
        for page in self.pages.values():
            page.close()

    def start(
        self,
        command: Sequence[str],
        is_served: bool = True,
        cwd: Path | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start the script; `is_served=False`: alone, only noting its losses. `env`: what Slurm tells it."""
        own_env = environment(self.run) | dict(env)
        if shutil.which(command[0]) is None:
            raise GandivaError(f"there is no program {command[0]!r}; name one as in: -- python train.py")
        programs = stand_in.make(Path(f"{self.run}.bin{self._restart}"), self._notes)
        if env and shutil.which("srun", path=str(programs)) is None:
            raise GandivaError(
                f"no program can be run in {programs} (noexec?); next: TMPDIR=… that allows it"
            )
        own_env["PATH"] = os.pathsep.join([str(programs), own_env.get("PATH", os.defpath)])
        if is_served:
            own_env |= {
                "GANDIVA_SOCKET": self._socket,
                "GANDIVA_CHECKPOINT_DIR": f"{self.run}.checkpoints",
                "SLURM_RESTART_COUNT": str(self._restart),
            }
        with open(f"{self.run}.log", "ab") as out:
            self._process = subprocess.Popen(
                command, env=own_env, cwd=cwd, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def status(self) -> int | None:
        """The script's exit code; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def end(self) -> None:
        """Kill the script and what it started, in sessions of their own too (torchrun's workers)."""
        if self._process is None:
            return
        # Stopped, it starts nobody anew, and what it started can still be found below it.
        self._kill_group(signal.SIGSTOP)
        killed = set(self._ranks.values())
        for proc in killed:
            procs.send(proc, signal.SIGKILL)
        while found := {proc.id for proc in procs.descendants(procs.table(), [self._process.pid])} - killed:
            for proc in found:
                procs.send(proc, signal.SIGKILL)
            killed |= found
        self._kill_group(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def called(self, name: str) -> list[str]:
        """What the script called one of Slurm's commands for: `requeue`, `sbatch`, `task` and its process."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [line for line in lines if line.split()[0] == name]

    def tasks(self) -> list[int]:
        """What srun has started, as far as the script called it: process ids."""
        return [int(line.split()[1]) for line in self.called("task")]

    @property
    def pid(self) -> int:
        """The script's process: in a batch script the shell."""
        assert self._process is not None
        return self._process.pid

    def send(self, number: signal.Signals, roots: Iterable[int], to_all: bool = True) -> bool:
        """Signal these processes and (`to_all`) all that is below them; False: nobody was there."""
        roots = list(roots)
        found = [*procs.each(roots), *(procs.below(roots) if to_all else ())]
        alive = [proc for proc in found if proc.state not in procs.ENDED]
        sent = [procs.send(proc.id, number) for proc in alive]
        return any(sent)

    def ask_to_end(self) -> None:
        """Tell it, and all that it has started, to end, as Slurm does with what it requeues."""
        roots = {self.pid, *(proc.pid for proc in self._ranks.values())}
        for number in (signal.SIGCONT, signal.SIGTERM):
            self.send(number, roots)

    def has_ended(self) -> bool:
        """True when neither the script nor a rank of its lives."""
        return self.status is not None and not any(self._alive())

    def look(self) -> None:
        """Greet who knocks, beat, and let the coordinator go on."""
        if select.select([self._listener], [], [], 0)[0]:
            self._greet()
        now_ns = time.monotonic_ns()
        if now_ns - self._beaten_ns > _BEAT_NS:
            self._beaten_ns = now_ns
            self._write([(rank, ((W_BEAT, now_ns),)) for rank in self.pages])
        if self.gang is not None:
            self._write(self.gang.tick(self.views(), self._alive(), now_ns))
        time.sleep(TICK_S)

    def wait(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        """Look until the condition holds; False when the script ends first or it takes too long."""
        end = time.monotonic() + deadline_s
        while not condition():
            if self.status is not None or time.monotonic() > end:
                return condition()
            self.look()
        return True

    def is_training(self) -> bool:
        """True once every rank has a page and has passed some boundaries."""
        complete = self._world > 0 and len(self.pages) == self._world
        return complete and min(self.seqs()) >= FIRST_BOUNDARIES

    def is_over(self) -> bool:
        """True when a rank has passed its last boundary."""
        return any(view[W_STATE] == DONE for view in self.views())

    def park(self, is_leaving: bool, deadline_s: float) -> bool:
        """Park the gang, having saved itself if it is leaving; False when that failed."""
        gang = self._gang()
        self.wait(lambda: gang.phase == "running", deadline_s)
        if gang.phase != "running":
            return False
        tier = TIER_REQUEUE if is_leaving else TIER_HOLD
        self._write([(rank, ((W_TIER, tier),)) for rank in self.pages])
        now_ns = time.monotonic_ns()
        self._write(gang.park(self.views(), now_ns, now_ns + int(deadline_s * 1e9)))
        self.wait(lambda: gang.phase in ("parked", "running"), deadline_s)
        return gang.phase == "parked"

    def resume(self, deadline_s: float) -> bool:
        """Let the gang go on."""
        gang = self._gang()
        self._write(gang.resume(self.views(), time.monotonic_ns()))
        return self.wait(lambda: gang.phase == "running", deadline_s)

    def views(self) -> list[tuple[int, ...]]:
        """The ranks' pages."""
        return [self.pages[rank].read() for rank in sorted(self.pages)]

    def stand(self) -> tuple[int, int]:
        """Return the mini-batches that its training had done before its ranks, and by now (`stand_of`)."""
        return stand_of(self.views())

    def seqs(self) -> list[int]:
        """Boundaries passed, by rank."""
        return [view[W_SEQ] for view in self.views()]

    def _kill_group(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _gang(self) -> Gang:
        if self.gang is None:
            self.gang = Gang(self._world)
        return self.gang

    def _alive(self) -> list[bool]:
        return [procs.is_alive(self._ranks[rank]) for rank in sorted(self.pages)]

    def _write(self, writes: Sequence[Write]) -> None:
        for rank, words in writes:
            self.pages[rank].write(words)

    def _greet(self) -> None:
        link, _ = self._listener.accept()
        # One that has given up or died meanwhile is not seated, and may knock again.
        with link, contextlib.suppress(OSError, ValueError, PeerError):
            link.settimeout(1.0)
            self._seat(link)

    def _seat(self, link: socket.socket) -> None:
        proc, reader = peer_of(link).proc, link.makefile("rb")
        hello = json.loads(reader.readline())
        self._world, rank = hello["world"], hello["rank"]
        page = Page.make(JobKey(1, self._restart), rank, self._world, time.monotonic_ns())
        fd = reopen(page.fd)
        try:
            link.sendmsg([b'{"ok": true}\n'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))])
        finally:
            os.close(fd)
        self.pages[rank], self._ranks[rank], self.kind = page, proc, hello["kind"]
        reader.readline()  # it has mapped the page


def way_of(node: LoneNode) -> str:
    """Return how its ranks save what runs: attached, or by which framework; "": they do not."""
    if not any(view[W_KIND] == KIND_RUN for view in node.views()):
        return ""
    framework = facts_of(node.run).get("framework")
    return f"framework ({framework})" if framework else "attached"


def facts_of(run: Path) -> dict[str, Any]:
    """What the first rank of a run wrote down of itself (client/trial.py); nothing before its tenth step."""
    try:
        found: dict[str, Any] = json.loads(Path(f"{run}.0.facts").read_text())
    except (OSError, ValueError):
        return {}
    return found


def is_a_try(node: LoneNode) -> bool:
    """True while it trains for a try, a Tuner's, say: what it is to train begins behind that."""
    return any(FOR_A_TRY in unmoved_text(view) for view in node.views())


def why_unmoved(node: LoneNode) -> str:
    """Say why the script cannot be moved, by its own word if it has one."""
    told = next(filter(None, map(unmoved_text, node.views())), "")
    return told or "the script has no gandiva.attach(), and no framework's Trainer that is known"


def _leave(number: int, _: object) -> None:
    """End on a signal as on Ctrl-C: by the way that takes the script along."""
    raise SystemExit(128 + number)
