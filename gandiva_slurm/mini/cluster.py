"""A private Slurm on this host: bring one up, run commands in it, break and mend its daemons, take it down.

    cluster = MiniCluster.up(MiniSpec(nodes=parse_nodes("v100:1x4"), quantum_s=1.0))
    cluster.exec(["sbatch", "--wrap", "hostname"], user="user1")
    cluster.down()

One `unshare` process holds everything in namespaces of its own (pid, mount, network, host name, IPC):
killing it kills all.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from gandiva_slurm.mini import boot, conffiles, daemons, layout, probe
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.spec import USERS, MiniNode, MiniSpec
from gandiva_slurm.model.errors import GandivaError, UsageError

DEFAULT_NAME = "mini"
DOWN_DEADLINE_S = 15.0
DAEMON_DEADLINE_S = 20.0


def current_name() -> str:
    """The cluster meant when none is named: $GANDIVA_MINI, else `mini`."""
    return os.environ.get("GANDIVA_MINI") or DEFAULT_NAME


class MiniCluster:
    """Handle on a running mini cluster; holds no process of its own, so it may be dropped and taken again."""

    def __init__(self, spec: MiniSpec, at: Layout, init_pid: int) -> None:
        self.spec = spec
        self.at = at
        self.init_pid = init_pid

    @classmethod
    def up(cls, spec: MiniSpec, say: Callable[[str], None] = lambda text: None) -> "MiniCluster":
        """Bring the cluster up; on failure nothing is left and the error carries the guilty log's end."""
        layout.require_host()
        conffiles.check_accounts()
        at = Layout.of(spec.name)
        _claim(at)
        try:
            conffiles.write_all(spec, at)
            cluster = cls(spec, at, boot.launch(at))
            boot.start_all(cluster, say)
            at.record.write_text(json.dumps({"version": 1, "spec": asdict(spec)}))
            at.maker.unlink()
        except BaseException:
            _remove(at)
            raise
        return cluster

    @classmethod
    def attach(cls, name: str | None = None) -> "MiniCluster":
        """The running cluster of this name; GandivaError when there is none."""
        layout.require_host()
        name = name or current_name()
        at = Layout.of(name)
        init_pid = _running_init(at)
        if init_pid is None or not at.record.exists():
            raise GandivaError(f"no cluster {name!r} is up; next: gandiva mini up")
        told = json.loads(at.record.read_text())["spec"]
        nodes = tuple(MiniNode(**node) for node in told.pop("nodes"))
        return cls(MiniSpec(nodes=nodes, **told), at, init_pid)

    def exec(
        self, argv: Sequence[str], *, user: str | None = None, check: bool = True,
        timeout_s: float | None = 60.0, input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside and wait; with `check`, a non-zero exit raises GandivaError."""
        user = user or "root"
        try:
            done = subprocess.run(
                self.command(argv, user), env=self.environment(user), text=True, capture_output=True,
                timeout=timeout_s, input=input if input is not None else "",
            )
        except subprocess.TimeoutExpired as late:
            raise GandivaError(f"{' '.join(argv)} (as {user}) did not end within "
                               f"{timeout_s:g} s; it said: {late.stdout!r} {late.stderr!r}") from None
        if check and done.returncode != 0:
            raise GandivaError(f"{' '.join(argv)} (as {user}) ended with {done.returncode}: "
                               f"{(done.stderr or done.stdout).strip()}")
        return done

    def popen(self, argv: Sequence[str], *, user: str = "root", **how: Any) -> subprocess.Popen[Any]:
        """Start a command inside; `how` goes to Popen."""
        return subprocess.Popen(self.command(argv, user), env=self.environment(user), **how)

    def command(self, argv: Sequence[str], user: str = "root", shell_prefix: str = "cd && ") -> list[str]:
        """The words that run `argv` inside as `user`, in the home directory; it dies with nsenter."""
        if not argv:
            raise UsageError("mini exec: no command; give one after --")
        if user not in ("root", *USERS, *layout.SYSTEM_USERS):
            raise UsageError(f"mini exec: no user {user!r}; there are root, {', '.join(USERS)}")
        enter = ["nsenter", "-t", str(self.init_pid), "-m", "-n", "-u", "-i", "-p", "--", "setpriv"]
        if user != "root":
            enter += ["--reuid", user, "--regid", user, "--init-groups"]
        return [*enter, "--pdeathsig", "KILL", "sh", "-c", shell_prefix + 'exec "$@"', "sh", *argv]

    def environment(self, user: str = "root") -> Mapping[str, str]:
        """A clean environment: nothing of the caller's but TERM."""
        path = [str(layout.bin_dir()), "/usr/local/bin", "/usr/bin", "/bin"]
        home = f"/home/{user}" if user in USERS else "/root" if user == "root" else "/"
        kept = {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
        return kept | {
            "PATH": ":".join(path + (["/usr/local/sbin", "/usr/sbin", "/sbin"] if user not in USERS else [])),
            "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "LANG": "C.UTF-8",
            "SLURM_CONF": "/etc/slurm/slurm.conf",
        }

    def path(self, *parts: str) -> Path:
        """A file as this host sees it: absolute = as inside, relative = below the cluster's directory."""
        inside = Path(*parts)
        if not inside.is_absolute():
            return self.at.root / inside
        if inside.is_relative_to(self.at.root):
            return inside
        return Path(f"/proc/{self.init_pid}/root") / inside.relative_to("/")

    def log(self, name: str) -> Path:
        """The log of a daemon (`slurmctld`, `slurmd:n1`, `gandivactld`, `gandivad:n1`...)."""
        return self.at.log / daemons.lookup(self.spec, self.at, name).log_name

    def daemon_pid(self, name: str) -> int | None:
        """Pid (on this host) of a daemon, None when it does not run."""
        told = self.at.pid / daemons.lookup(self.spec, self.at, name).name
        if not told.exists() or not (text := told.read_text().strip()):
            return None
        inside = int(text)
        for pid, pid_inside in probe.processes_of(self.init_pid):
            if pid_inside == inside and probe.start_ticks(pid) is not None:
                return pid
        return None

    def kill(self, name: str, sig: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon; after SIGKILL and SIGTERM, return when it is gone."""
        pid = self.daemon_pid(name)
        if pid is None:
            raise GandivaError(f"{name} does not run; its log is {self.log(name)}")
        ticks = probe.start_ticks(pid)
        os.kill(pid, sig)
        if sig in (signal.SIGKILL, signal.SIGTERM):
            probe.wait_until(lambda: probe.start_ticks(pid) != ticks, f"{name} to end", DAEMON_DEADLINE_S,
                             log=self.log(name))

    def start_daemon(self, name: str, wait: bool = True) -> None:
        """Start one daemon; with `wait`, return when it is ready."""
        daemon = daemons.lookup(self.spec, self.at, name)
        if self.daemon_pid(name) is not None:
            raise GandivaError(f"{name} runs already")
        with (self.at.log / daemon.output_name).open("ab") as log:
            self._spawn(daemon, log)
        if wait:
            self.wait_daemon(name)

    def wait_daemon(self, name: str) -> None:
        """Return when the daemon is ready; GandivaError with its log's end when it died or is late."""
        daemon = daemons.lookup(self.spec, self.at, name)
        probe.wait_until(
            lambda: daemon.ready(self.init_pid), f"{name} to be ready", daemon.deadline_s, log=self.log(name),
            broken=lambda: "" if self.daemon_pid(name) is not None else "it ended",
        )

    def down(self) -> None:
        """Kill everything inside and remove the cluster's directory."""
        _remove(self.at)

    def _spawn(self, daemon: daemons.Daemon, log: IO[bytes]) -> None:
        """Fork inside, so that the daemon is a child of the cluster's own pid 1."""
        note = self.at.pid / daemon.name
        note.unlink(missing_ok=True)
        start = 'echo $$ >&9; exec 9>&-; cd /; exec "$@"'
        launch = f"umask 022; ulimit -c 0; setsid sh -c '{start}' sh \"$@\" 9>{note} & :"
        words = list(daemon.argv)
        if daemon.user != "root":
            words = ["setpriv", "--reuid", daemon.user, "--regid", daemon.user, "--init-groups", *words]
        enter = ["nsenter", "-t", str(self.init_pid), "-m", "-n", "-u", "-i", "-p", "--"]
        subprocess.run([*enter, "sh", "-c", launch, "sh", *words], check=True, stdin=subprocess.DEVNULL,
                       stdout=log, stderr=log, env=self.environment("root"))
        probe.wait_until(lambda: note.exists() and bool(note.read_text().strip()),
                         f"{daemon.name} to start", DAEMON_DEADLINE_S)


def down(name: str | None = None) -> bool:
    """Take the named cluster down, whatever state it is in; False when there was none."""
    name = MiniSpec(name=name or current_name()).name
    layout.require_host()
    at = Layout.of(name)
    there = at.root.exists()
    _remove(at)
    return there


def _claim(at: Layout) -> None:
    """Make the cluster's directory ours; GandivaError while another cluster or another `up` has it."""
    if _running_init(at) is not None and at.record.exists():
        raise GandivaError(f"the cluster {at.root.name!r} is already up; "
                           "take it down first (gandiva mini down) or name another (GANDIVA_MINI=NAME)")
    if at.maker.exists():
        pid, _, ticks = at.maker.read_text().partition(" ")
        if pid and str(probe.start_ticks(int(pid))) == ticks:
            raise GandivaError(f"process {pid} is bringing the cluster {at.root.name!r} up; "
                               "wait for it, or name another (GANDIVA_MINI=NAME)")
    _remove(at)
    at.root.mkdir(parents=True)
    at.maker.write_text(f"{os.getpid()} {probe.start_ticks(os.getpid())}")


def _running_init(at: Layout) -> int | None:
    """Pid of the cluster's process 1, None when the cluster does not run."""
    outer = _outer(at)
    inner = probe.children(outer) if outer is not None else []
    return inner[0] if inner else None


def _outer(at: Layout) -> int | None:
    """Pid of the unshare process if it is still the one we started."""
    try:
        pid = int(at.outer_pid.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if str(at.root).encode() in command and probe.start_ticks(pid) is not None else None


def _remove(at: Layout) -> None:
    """Kill the outer process, wait until the whole pid namespace is gone, delete the directory."""
    outer = _outer(at)
    if outer is not None:
        inner = [(pid, probe.start_ticks(pid)) for pid in probe.children(outer)]
        os.kill(outer, signal.SIGKILL)
        probe.wait_until(
            lambda: probe.start_ticks(outer) is None and all(probe.start_ticks(p) != t for p, t in inner),
            f"the processes of {at.root} to end", DOWN_DEADLINE_S,
        )
        with contextlib.suppress(ChildProcessError):
            os.waitpid(outer, os.WNOHANG)
    if at.root.exists():
        shutil.rmtree(at.root)
    with contextlib.suppress(OSError):
        layout.BASE.rmdir()
