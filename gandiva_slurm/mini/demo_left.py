"""What a cluster leaves behind once it is down: its processes, namespaces, mounts, sockets and files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.docker import project_of
from gandiva_slurm.mini.engine import Engine
from gandiva_slurm.mini.layout import Layout

#: The kernel takes namespaces apart after their last process ended.
GONE_WITHIN_S = 10.0
KINDS = ("pid", "mnt", "net", "uts", "ipc")


@dataclass(frozen=True)
class Marks:
    """What tells a cluster's own: its directory, and its namespaces, as `pid:[4026532000]`.

    The kernel gives the number of a namespace that ended to the next one, maybe another cluster's: each is
    held open until `left_behind` has looked.
    """

    at: Layout
    namespaces: dict[str, int]
    is_docker: bool


def marks_of(cluster: MiniCluster) -> Marks:
    """Note what a running cluster's own are; a namespace it shares with this process is not its own."""
    return Marks(cluster.at, held(cluster.pids.values()), cluster.spec.backend != "local")


def held(pids: Iterable[int]) -> dict[str, int]:
    """Name -> descriptor that holds it open, of each namespace of these processes that this one is not in."""
    ours = {os.readlink(f"/proc/self/ns/{kind}") for kind in KINDS}
    found: dict[str, int] = {}
    for place in (f"/proc/{pid}/ns/{kind}" for pid in pids for kind in KINDS):
        with contextlib.suppress(OSError):
            handle = os.open(place, os.O_RDONLY)
            name = os.readlink(f"/proc/self/fd/{handle}")
            if name in ours or found.setdefault(name, handle) != handle:
                os.close(handle)
    return found


def left_behind(marks: Marks, within_s: float = GONE_WITHIN_S) -> list[str]:
    """Sentences about what is still there after `within_s` seconds; none as soon as nothing is."""
    ends_s = time.monotonic() + within_s
    while (found := list(_look(marks))) and time.monotonic() < ends_s:
        time.sleep(0.1)
    for handle in marks.namespaces.values():
        os.close(handle)
    return found


def _look(marks: Marks) -> Iterator[str]:
    root = str(marks.at.root)
    if marks.at.root.exists():
        yield f"the directory {root}"
    for line in _lines("/proc/net/unix"):
        if f" {root}/" in line:
            yield f"the socket {line.split()[-1]}"
    tables: set[str] = set()
    ours = os.readlink("/proc/self/ns/mnt")
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        links = _links(pid, {*marks.namespaces.values()} if pid == os.getpid() else set())
        if kept := links & marks.namespaces.keys():
            yield f"process {pid} in {', '.join(sorted(kept))}"
        table = next((link for link in links if link.startswith("mnt:")), "")
        if table and table not in tables:
            tables.add(table)
            # A cluster that came up meanwhile has copies of Docker's mounts, until it goes down.
            kept_here = marks.namespaces.keys() if table == ours else ()
            yield from (f"the mount {point} (process {pid})" for point in _mounts(pid, root, kept_here))
    if marks.is_docker:
        yield from Engine.find().left_of(project_of(marks.at))


def _links(pid: int, but: set[int]) -> set[str]:
    """The namespaces a process is in, and those it holds open, but for these descriptors."""
    places = [f"/proc/{pid}/ns/{kind}" for kind in KINDS]
    with contextlib.suppress(OSError):
        places += [entry.path for entry in os.scandir(f"/proc/{pid}/fd") if int(entry.name) not in but]
    found = set()
    for place in places:
        try:
            found.add(os.readlink(place))
        except OSError:
            continue
    return found


def _mounts(pid: int, root: str, namespaces: Container[str]) -> Iterator[str]:
    """Mount points below the directory, and mounts that keep one of these namespaces."""
    for line in _lines(f"/proc/{pid}/mountinfo"):
        words = line.split()
        if words[4] == root or words[4].startswith(root + "/") or words[3] in namespaces:
            yield words[4]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
