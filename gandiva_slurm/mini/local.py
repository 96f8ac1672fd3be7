"""The back end `local`: one host made of namespaces of this machine, with this machine's Slurm packages.

One `unshare` process holds everything in namespaces of its own (pid, mount, network, host name, IPC):
killing it kills all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from gandiva_slurm.mini import layout, localfiles, probe
from gandiva_slurm.mini.cluster import MiniCluster, namespaces
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.record import remove_directory
from gandiva_slurm.mini.spec import MiniSpec
from gandiva_slurm.node import cgroups

INIT = Path(__file__).with_name("init.py")
INIT_OF_ANY_CLONE = b"/gandiva_slurm/mini/init.py"
#: A daemon's words behind it: it begins in the cluster's own control groups.
INTO_GROUPS = """\
for file in /sys/fs/cgroup/*/cgroup.procs; do
    [ ! -f "$file" ] || echo $$ >"$file" || exit 1
done
exec "$@"
"""
NAMESPACE_DEADLINE_S = 60.0
DOWN_DEADLINE_S = 60.0


class LocalCluster(MiniCluster):
    """All daemons on one host, `mini`, told apart by their ports."""

    @classmethod
    def require_here(cls) -> None:
        """Raise unless this machine has root, namespaces and Slurm's packages."""
        layout.require_host()

    @classmethod
    def _make(cls, spec: MiniSpec, at: Layout, say: Callable[[str], None]) -> LocalCluster:
        site = localfiles.site_of(spec, at)
        localfiles.write_all(spec, site)
        return cls(spec, site, {site.controller.host: _launch(at)})

    @classmethod
    def _find(cls, spec: MiniSpec, at: Layout) -> LocalCluster | None:
        pid = _running_init(at)
        if pid is None:
            return None
        site = localfiles.site_of(spec, at)
        return cls(spec, site, {site.controller.host: pid})

    @classmethod
    def _remove(cls, at: Layout) -> None:
        """Kill what makes or holds the namespaces, wait until all in them is gone, delete the directory."""
        killed: dict[int, int] = {}

        def is_gone() -> bool:
            _kill(found := _holders(at))
            killed.update(found)
            for group in _groups_of(at):  # what version 1 has frozen cannot be killed
                for state in group.rglob("freezer.state"):
                    cgroups.freeze(state.parent, False)
            return not any(probe.start_ticks(pid) == ticks for pid, ticks in killed.items())

        probe.wait_until(is_gone, f"the processes of {at.root} to end", DOWN_DEADLINE_S)
        root = cgroups.hierarchy()
        if root is not None:  # of no cluster alone: those of others that are in use stay
            cgroups.sweep(root / cgroups.OURS, 0)
        for group in _groups_of(at):
            cgroups.remove(group)
        remove_directory(at)

    def _enter(self, host: str) -> list[str]:
        enter = namespaces(self.pids[host])
        return [*enter, "sh", "-c", INTO_GROUPS, "sh"] if self.spec.cgroups else enter


def _launch(at: Layout) -> int:
    """Start the namespaces with their process 1; returns its pid once its mounts are made."""
    log = at.log / "init.log"
    unshare = ["unshare", "-m", "-n", "-u", "-i", "-p", "--fork", "--kill-child=KILL", "--mount-proc",
               sys.executable, "-I", "-S", str(INIT), str(at.root)]
    script = 'echo $$ > "$0.new" && mv "$0.new" "$0" && exec "$@"'
    with log.open("wb") as out:
        subprocess.run(["setsid", "--fork", "sh", "-c", script, str(at.outer_pid), *unshare], check=True,
                       stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                       env={"PATH": layout.system_path(), "LANG": "C.UTF-8"})
    probe.wait_until(at.outer_pid.exists, "the namespaces to start", NAMESPACE_DEADLINE_S, log=log)
    outer = int(at.outer_pid.read_text())
    probe.wait_until(
        (at.root / "ready").exists, "the private mounts and network", NAMESPACE_DEADLINE_S, log=log,
        broken=lambda: "" if probe.start_ticks(outer) is not None else "process 1 ended",
    )
    return probe.children(outer)[0]


def _groups_of(at: Layout) -> list[Path]:
    """The cluster's own control groups, a directory in each hierarchy of this machine's usual mounts."""
    name = localfiles.group_of(at)
    places = [Path("/sys/fs/cgroup", name), *Path("/sys/fs/cgroup").glob(f"*/{name}")]
    return [place for place in places if place.is_dir()]


def _running_init(at: Layout) -> int | None:
    """Pid of the cluster's process 1, None when the cluster does not run."""
    outer = _outer(at)
    inner = probe.children(outer) if outer is not None else []
    return inner[0] if inner else None


def _holders(at: Layout) -> dict[int, int]:
    """Pid -> start time of what brings the namespaces up or holds them, also where an `up` was killed midway.

    One that was killed has no command line any more, and its process 1 goes on until all inside ended.
    """
    found, root = {}, str(at.root).encode()
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_init = root in words and any(word.endswith(INIT_OF_ANY_CLONE) for word in words)
        if (is_init or str(at.outer_pid).encode() in words) and (ticks := probe.start_ticks(pid)) is not None:
            found[pid] = ticks
    return found


def _kill(pids: Iterable[int]) -> None:
    """Kill these processes, and collect those that are children of this one."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _outer(at: Layout) -> int | None:
    """Pid of the unshare process if it is still the one we started."""
    try:
        pid = int(at.outer_pid.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if str(at.root).encode() in command and probe.start_ticks(pid) is not None else None
