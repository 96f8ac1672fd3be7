"""A private Slurm: bring one up, run commands in it, break and mend its daemons, take it down.

    cluster = MiniCluster.up(MiniSpec(nodes=parse_nodes("v100:1x4"), quantum_s=1.0))
    cluster.exec(["sbatch", "--wrap", "hostname"], user="user1")
    cluster.down()

What a cluster runs in is its back end's: namespaces of this machine (local.py) or containers (docker.py).
Both are hosts whose process 1 this machine sees, with one directory of files that each has at the same path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gandiva_slurm.mini import boot, daemons, layout, probe
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.record import make_directory, recorded, write_record
from gandiva_slurm.mini.site import Site
from gandiva_slurm.mini.spec import USERS, MiniSpec, default_backend
from gandiva_slurm.model.errors import GandivaError, UsageError

DEFAULT_NAME = "mini"
DAEMON_DEADLINE_S = 120.0
#: Starts a daemon in the background: its number into one file, its output into another.
_LAUNCH = """\
umask 022; ulimit -c 0; note=$1 out=$2; shift 2
setsid sh -c 'echo $$ >"$0"; cd /; exec "$@"' "$note" "$@" </dev/null >>"$out" 2>&1 &
"""


def current_name() -> str:
    """The cluster meant when none is named: $GANDIVA_MINI, else `mini`."""
    return os.environ.get("GANDIVA_MINI") or DEFAULT_NAME


class MiniCluster(ABC):
    """Handle on a running mini cluster; holds no process of its own, so it may be dropped and taken again."""

    def __init__(self, spec: MiniSpec, site: Site, pids: Mapping[str, int]) -> None:
        self.spec = spec
        self.site = site
        self.at = site.at
        #: each host's process 1, as this machine numbers it
        self.pids = pids

    @property
    def init_pid(self) -> int:
        """Process 1 of the host users work on."""
        return self.pids[self.site.controller.host]

    @classmethod
    def up(cls, spec: MiniSpec, say: Callable[[str], None] = lambda text: None) -> MiniCluster:
        """Bring the cluster up; on failure nothing is left and the error carries the guilty log's end."""
        backend = _backend_of(spec.backend)
        backend.require(spec)
        at = Layout.of(spec.name)
        _claim(at)
        try:
            # First, so that `down` knows how to clear away what an `up` that was killed left.
            write_record(at, spec)
            cluster = backend._make(spec, at, say)
            boot.start_all(cluster, say)
            at.maker.unlink()
        except BaseException:
            backend._remove(at)
            raise
        return cluster

    @classmethod
    def attach(cls, name: str | None = None) -> MiniCluster:
        """The running cluster of this name; GandivaError when there is none."""
        name = name or current_name()
        at = Layout.of(name)
        spec = recorded(at)
        backend = _backend_of(spec.backend if spec else default_backend())
        backend.require_here()
        found = backend._find(spec, at) if spec and not at.maker.exists() else None
        if found is None:
            raise GandivaError(f"no cluster {name!r} is up; next: gandiva mini up")
        return found

    # What each back end brings.

    @classmethod
    @abstractmethod
    def require_here(cls) -> None:
        """Raise unless this machine can hold clusters of this back end."""

    @classmethod
    def require(cls, spec: MiniSpec) -> None:
        """Raise unless this cluster can be brought up here."""
        cls.require_here()

    @classmethod
    @abstractmethod
    def _make(cls, spec: MiniSpec, at: Layout, say: Callable[[str], None]) -> MiniCluster:
        """Hosts with their files; no daemon runs yet."""

    @classmethod
    @abstractmethod
    def _find(cls, spec: MiniSpec, at: Layout) -> MiniCluster | None:
        """The handle, None when its hosts do not run."""

    @classmethod
    @abstractmethod
    def _remove(cls, at: Layout) -> None:
        """End everything and delete the cluster's directory, whatever state they are in."""

    @abstractmethod
    def _enter(self, host: str) -> list[str]:
        """The words before a command that is to run as root on this host, and to outlive this process."""

    def exec(
        self, argv: Sequence[str], *, user: str | None = None, host: str | None = None, check: bool = True,
        timeout_s: float | None = 300.0, input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside and wait; with `check`, a non-zero exit raises GandivaError.

        `host` is one of `pids`; the controller's where none is named.
        """
        user = user or "root"
        try:
            done = subprocess.run(
                self.command(argv, user, host=host), env=self.environment(user), text=True,
                capture_output=True, timeout=timeout_s, input=input if input is not None else "",
            )
        except subprocess.TimeoutExpired as late:
            raise GandivaError(f"{' '.join(argv)} (as {user}) did not end within "
                               f"{timeout_s:g} s; it said: {late.stdout!r} {late.stderr!r}") from None
        if check and done.returncode != 0:
            raise GandivaError(f"{' '.join(argv)} (as {user}) ended with {done.returncode}: "
                               f"{(done.stderr or done.stdout).strip()}")
        return done

    def popen(
        self, argv: Sequence[str], *, user: str = "root", host: str | None = None, **how: Any
    ) -> subprocess.Popen[Any]:
        """Start a command inside; `how` goes to Popen."""
        return subprocess.Popen(self.command(argv, user, host=host), env=self.environment(user), **how)

    def command(
        self, argv: Sequence[str], user: str = "root", shell_prefix: str = "cd && ", host: str | None = None
    ) -> list[str]:
        """The words that run `argv` inside as `user`, in the home directory; it dies with nsenter."""
        if not argv:
            raise UsageError("mini exec: no command; give one after --")
        if user not in ("root", *USERS, *layout.SYSTEM_USERS):
            raise UsageError(f"mini exec: no user {user!r}; there are root, {', '.join(USERS)}")
        enter = [*namespaces(self._pid_of(host or self.site.controller.host)), "setpriv"]
        if user != "root":
            enter += ["--reuid", user, "--regid", user, "--init-groups"]
        return [*enter, "--pdeathsig", "KILL", "sh", "-c", shell_prefix + 'exec "$@"', "sh", *argv]

    def environment(self, user: str = "root") -> Mapping[str, str]:
        """A clean environment: nothing of the caller's but TERM."""
        path = [str(self.site.programs), "/usr/local/bin", "/usr/bin", "/bin"]
        home = f"/home/{user}" if user in USERS else "/root" if user == "root" else "/"
        kept = {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
        return kept | {
            "PATH": ":".join(path + (["/usr/local/sbin", "/usr/sbin", "/sbin"] if user not in USERS else [])),
            "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "LANG": "C.UTF-8",
            "SLURM_CONF": "/etc/slurm/slurm.conf",
        }

    def path(self, *parts: str) -> Path:
        """A file as this machine sees it: absolute = as inside (the controller's host, where hosts differ),
        relative = below the cluster's directory, which all share."""
        inside = Path(*parts)
        if not inside.is_absolute():
            return self.at.root / inside
        if inside.is_relative_to(self.at.root):
            return inside
        return Path(f"/proc/{self.init_pid}/root") / inside.relative_to("/")

    def log(self, name: str) -> Path:
        """The log of a daemon (`slurmctld`, `slurmd:n1`, `gandivactld`, `gandivad:n1`...)."""
        return self.at.log / self._daemon(name).log_name

    def processes(self) -> Iterator[int]:
        """Every process inside, on all hosts, as this machine numbers it."""
        for pid in self.pids.values():
            yield from (number for number, _ in probe.processes_of(pid))

    def daemon_pid(self, name: str) -> int | None:
        """Pid (on this machine) of a daemon, None when it does not run."""
        daemon = self._daemon(name)
        told = self.at.pid / daemon.name
        if not told.exists() or not (text := told.read_text().strip()):
            return None
        inside = int(text)
        for pid, pid_inside in probe.processes_of(self._pid_of(daemon.host)):
            if pid_inside == inside and probe.start_ticks(pid) is not None:
                return pid
        return None

    def kill(self, name: str, sig: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon; after SIGKILL and SIGTERM, return when it is gone."""
        pid = self.daemon_pid(name)
        if pid is None:
            raise GandivaError(f"{name} does not run; its log is {self.log(name)}")
        ticks = probe.start_ticks(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)
        if sig in (signal.SIGKILL, signal.SIGTERM):
            probe.wait_until(lambda: probe.has_ended(pid, ticks), f"{name} to end", DAEMON_DEADLINE_S,
                             log=self.log(name))

    def start_daemon(self, name: str, wait: bool = True) -> None:
        """Start one daemon; with `wait`, return when it is ready."""
        daemon = self._daemon(name)
        if self.daemon_pid(name) is not None:
            raise GandivaError(f"{name} runs already")
        self._spawn(daemon)
        if wait:
            self.wait_daemon(name)

    def wait_daemon(self, name: str) -> None:
        """Return when the daemon is ready; GandivaError with its log's end when it died or is late."""
        daemon = self._daemon(name)
        probe.wait_until(
            lambda: daemon.ready(self._pid_of(daemon.host)), f"{name} to be ready", daemon.deadline_s,
            log=self.log(name), broken=lambda: "" if self.daemon_pid(name) is not None else "it ended",
        )

    def cut(self, host: str) -> None:
        """Take the host's network away, as a pulled cable does; what runs there goes on."""
        self._link(host, "down")

    def mend(self, host: str) -> None:
        """Give the host its network back."""
        self._link(host, "up")

    def down(self) -> None:
        """Kill everything inside and remove the cluster's directory."""
        self._remove(self.at)

    def _link(self, host: str, state: str) -> None:
        raise UsageError(f"the back end {self.spec.backend} has one host: nothing to cut {host} off from")

    def _daemon(self, name: str) -> daemons.Daemon:
        return daemons.lookup(self.spec, self.site, name)

    def _pid_of(self, host: str) -> int:
        if host not in self.pids:
            raise UsageError(f"no host {host!r}; there are {', '.join(self.pids)}")
        return self.pids[host]

    def _spawn(self, daemon: daemons.Daemon) -> None:
        """Fork inside, so that the daemon is a child of its host's own process 1."""
        note = self.at.pid / daemon.name
        note.unlink(missing_ok=True)
        words = list(daemon.argv)
        if daemon.user != "root":
            words = ["setpriv", "--reuid", daemon.user, "--regid", daemon.user, "--init-groups", *words]
        clean = [f"{name}={value}" for name, value in self.environment("root").items()]
        output = self.at.log / daemon.output_name
        launch = ["env", "-i", *clean, "sh", "-c", _LAUNCH, "sh", str(note), str(output), *words]
        done = subprocess.run(
            [*self._enter(daemon.host), *launch],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DAEMON_DEADLINE_S, check=False,
        )
        if done.returncode != 0:
            raise GandivaError(f"{daemon.name} cannot be started: {done.stderr.strip()}")
        probe.wait_until(lambda: note.exists() and bool(note.read_text().strip()),
                         f"{daemon.name} to start", DAEMON_DEADLINE_S)


def namespaces(pid: int) -> list[str]:
    """The words before a command that is to run in all namespaces of this process."""
    return ["nsenter", "-t", str(pid), "-m", "-n", "-u", "-i", "-p", "-C", "--"]


def down(name: str | None = None) -> bool:
    """Take the named cluster down, whatever state it is in; False when there was none."""
    name = MiniSpec(name=name or current_name()).name
    at = Layout.of(name)
    there = at.root.exists()
    spec = recorded(at)
    backend = _backend_of(spec.backend if spec else default_backend())
    backend.require_here()
    backend._remove(at)
    return there


def missing(backend: str) -> str:
    """Why no mini cluster of this back end can run here, with the next step; "" when one can."""
    try:
        _backend_of(backend).require(MiniSpec(backend=backend))
    except GandivaError as why:
        return str(why)
    return ""


def _backend_of(text: str) -> type[MiniCluster]:
    """The class of a back end; each is imported when it is wanted."""
    if text == "local":
        from gandiva_slurm.mini.local import LocalCluster

        return LocalCluster
    from gandiva_slurm.mini.docker import DockerCluster

    return DockerCluster


def _claim(at: Layout) -> None:
    """Make the cluster's directory ours; GandivaError while another cluster or another `up` has it."""
    if at.maker.exists():
        pid, _, ticks = at.maker.read_text().partition(" ")
        if pid and str(probe.start_ticks(int(pid))) == ticks:
            raise GandivaError(f"process {pid} is bringing the cluster {at.root.name!r} up; "
                               "wait for it, or name another (GANDIVA_MINI=NAME)")
    spec = recorded(at)
    before = _backend_of(spec.backend if spec else default_backend())
    if spec is not None and not at.maker.exists() and before._find(spec, at) is not None:
        raise GandivaError(f"the cluster {at.root.name!r} is already up; "
                           "take it down first (gandiva mini down) or name another (GANDIVA_MINI=NAME)")
    before._remove(at)
    make_directory(at)
    at.maker.write_text(f"{os.getpid()} {probe.start_ticks(os.getpid())}")
