"""Build the SPANK plugin and run it in spank_host, which stands in for Slurm; a fake gandivad to talk to."""

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SPANK = HERE.parents[1] / "spank"
CC = shutil.which("cc")
MISSING = (
    "" if CC and shutil.which("make") and Path("/usr/include/slurm/spank.h").exists()
    else "no C compiler, make or slurm/spank.h (make setup installs them)"
)
STEP_BATCH, STEP_EXTERN, STEP_INTERACTIVE = 0xFFFFFFFB, 0xFFFFFFFC, 0xFFFFFFFA


@dataclass
class Outcome:
    """What the plugin did in one run."""

    errors: list[str] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    unrecognized: list[str] = field(default_factory=list)
    rc: dict[str, int] = field(default_factory=dict)
    set: dict[str, str] = field(default_factory=dict)
    control: dict[str, str] = field(default_factory=dict)
    mine: dict[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    status: int = 0


def build(into: Path, flags: str = "") -> tuple[Path, Path]:
    """Build a copy of the plugin and the host, with more flags of the compiler; returns both."""
    shutil.copytree(SPANK, into / "spank", ignore=shutil.ignore_patterns("*.so", "*.new"))
    subprocess.run(["make", "-s", "-C", str(into / "spank"), f"CFLAGS={flags}"], check=True, timeout=120)
    host = into / "spank_host"
    words = ["-Wall", "-Wextra", "-Werror", "-rdynamic", "-o", str(host), str(HERE / "spank_host.c"), "-ldl"]
    subprocess.run([str(CC), *words], check=True, timeout=120)
    return into / "spank/gandiva.so", host


def read(output: str) -> Outcome:
    """Sort the host's lines."""
    outcome = Outcome()
    lists = {"error": outcome.errors, "info": outcome.infos, "option": outcome.options,
             "unrecognized": outcome.unrecognized}
    tables = {"set": outcome.set, "control": outcome.control, "mine": outcome.mine}
    for line in output.splitlines():
        kind, _, text = line.partition(" ")
        if kind in lists:
            lists[kind].append(text)
        elif kind in tables:
            name, _, value = text.partition("=")
            tables[kind][name] = value
        elif kind == "rc":
            hook, _, number = text.partition(" ")
            outcome.rc[hook] = int(number)
    return outcome


def run(built: tuple[Path, Path], context: str, *words: str,
        environ: dict[str, str] | None = None) -> Outcome:
    """Run the plugin's hooks in one context."""
    plugin, host = built
    began = time.monotonic()
    done = subprocess.run([str(host), str(plugin), context, *words], env=environ or {}, capture_output=True,
                          text=True, errors="replace", timeout=20)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    outcome = read(done.stdout)
    outcome.status = done.returncode
    outcome.took_s = time.monotonic() - began
    return outcome


Behaviour = Callable[[socket.socket, int], None]


class FakeGandivad:
    """Listens where gandivad would; `behave` gets each connection with a question, and the pid of its peer.

    `is_older`: it has no socket of root's, as gandivads of older releases. `ready`: its word to root's hook.
    """

    def __init__(self, path: Path, behave: Behaviour, is_older: bool = False, ready: str = "READY") -> None:
        self.path = path
        self._ready = f"{ready}\n".encode()
        self.lines: list[str] = []
        #: whose tasks they are, by root's word; None: nobody has said so
        self.uids: list[int | None] = []
        self.connections = 0
        self._behave = behave
        self._sockets = [self._listen(path)]
        if not is_older:
            self._sockets.append(self._listen(path.with_name(path.name + ".root")))
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _listen(self, path: Path) -> socket.socket:
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.bind(str(path))
        path.chmod(0o600 if path.suffix == ".root" else 0o666)
        door.listen(8)
        return door

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([*self._sockets, self._end], [], [])
            if self._end in ready:
                return
            peer, _ = ready[0].accept()
            self.connections += 1
            with peer, contextlib.suppress(ConnectionResetError):
                self._talk(peer, ready[0] is not self._sockets[0])

    def _talk(self, peer: socket.socket, is_roots: bool) -> None:
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", raw)[0]
        line, uid = peer.recv(4096).decode(), None
        if is_roots and line:
            uid = int(line.removeprefix("TASK "))
            peer.sendall(self._ready)
            line = peer.recv(4096).decode()
        if line:
            self.lines.append(line)
            self.uids.append(uid)
            self._behave(peer, pid)

    def close(self) -> None:
        """Stop listening; the thread ends."""
        os.close(self._ended)
        self._thread.join(timeout=10)
        os.close(self._end)
        for door in self._sockets:
            door.close()

    def unlink(self) -> None:
        """Remove its sockets."""
        for path in (self.path, self.path.with_name(self.path.name + ".root")):
            path.unlink(missing_ok=True)


def answer(*pieces: str, pause_s: float = 0.0) -> Behaviour:
    """Send the pieces one by one."""

    def behave(peer: socket.socket, _: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the task gave up: that is what some tests want
            for piece in pieces:
                peer.sendall(piece.encode())
                time.sleep(pause_s)

    return behave


def hang(peer: socket.socket, _: int) -> None:
    """Never answer: wait until the other side has gone."""
    peer.settimeout(10)
    peer.recv(1)


def freeze_past_the_bound(reply: str) -> Behaviour:
    """Stop the task as gandivad does with a job whose GPUs are not granted, and let it go with a reply."""

    def behave(peer: socket.socket, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.8)
        peer.sendall(reply.encode())
        os.kill(pid, signal.SIGCONT)

    return behave
