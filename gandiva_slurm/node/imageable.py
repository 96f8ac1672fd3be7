"""Whether an image of a job's processes can be made, and of which: what cannot is found before, and said.

A job has one tree of processes below its batch step: the task itself, or what was restored in its place, in a
pid namespace of its own (`spank/image.c`). What criu alone can know is left to it: a dump that it refuses
costs the job nothing but its time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from gandiva_slurm.node import carried, members, procs
from gandiva_slurm.node.carried import OWN, Carried, is_own, may_be_carried
from gandiva_slurm.node.procs import Proc, ProcId

#: What process 1 of a restored job calls itself.
FIRST = "gandiva-image"
#: The most supplementary groups that criu compares.
MOST_GROUPS = 256
#: The most files that a process has open or mapped: gandivad looks at each every few seconds.
MOST_OPEN = 8192
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
#: How the devices of NVIDIA's GPUs begin.
CARD = "/dev/nvidia"
#: Why GPU programs cannot be in an image where no one has asked for that.
CARDS_OFF = "node.process_images_gpu is off"
_ANONYMOUS = ("[eventfd]", "[eventpoll]", "[timerfd]", "[signalfd]", "inotify")
_NET = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "packet", "netlink", "sctp/assocs", "sctp/eps")


@dataclass(frozen=True)
class Tree:
    """The processes of an image: their root, and process 1 of their pid namespace (None: the host's)."""

    root: ProcId
    first: ProcId | None
    procs: tuple[Proc, ...]

    @property
    def inner(self) -> int:
        """The root's pid where it lives."""
        return inner_pid(self.root.pid)


class NoImage(Exception):
    """None can be made; the text says why."""


#: Its processes must be the tree below one task of sbatch's.
NOT_ONE_STEP = "it has steps of srun, or none of sbatch"
ON_SEVERAL_NODES = "it runs on several nodes"


def find_tree(stepds: Iterable[ProcId], uid: int) -> Tree:
    """Return a job's tree; NoImage when it has none, or more than one."""
    found = [stepd for stepd in stepds if procs.is_alive(stepd)]
    titles = [procs.title(stepd.pid) for stepd in found]
    if len(found) != 1 or not titles[0].endswith(".batch]"):
        raise NoImage(NOT_ONE_STEP)
    root, first = _only_child(found[0].pid), None
    below = list(procs.each(procs.children(root.pid)))
    if len(below) == 1 and procs.read_text(below[0].pid, "comm").strip() == FIRST:
        # Its owner can take the name, and not root's uid.
        first = below[0].id if procs.uids(below[0].pid) == (0, 0) else None
        root = _only_child(below[0].pid) if first else root
    return tree_below(root, uid, first)


def tree_below(root: Proc, uid: int, first: ProcId | None = None) -> Tree:
    """Return the tree of a root; NoImage when a process in it has another user's rights."""
    tree = Tree(root.id, first, (root, *procs.below([root.pid])))
    if any(procs.uids(proc.pid) != (uid, uid) for proc in tree.procs):
        raise NoImage("one of its processes has another user's rights")
    return tree


def check(tree: Tree, gid: int, besides: tuple[str, ...] = (), cards: str = CARDS_OFF) -> bool:
    """NoImage when something a process has cannot be in an image, or is this node's alone.

    `gid`: of its user's own group, as which it is restored. `besides`: how the paths begin that are no matter
    of the job's: a trial's own files. `cards`: why GPU programs cannot be in an image here, "" where they
    can. Returns True where one of the processes uses a GPU. Files are judged by their names alone: to look at
    one, as `files_of` does, may hang.
    """
    has_card, along = False, set[str]()
    for proc in tree.procs:
        status = procs.read_text(proc.pid, "status")
        words = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if len(words.get("Groups", "").split()) > MOST_GROUPS:
            raise NoImage(f"its user is in more than {MOST_GROUPS} groups")
        if set(words.get("Gid", "").split()) != {str(gid)}:
            raise NoImage("one of its processes has another group than its user's own")
        if words.get("Seccomp", "0").strip() != "0":
            raise NoImage("one of its processes is confined by seccomp")
        files = [path for path in _open_files(proc.pid) if not path.startswith(besides)]
        if len(files) > MOST_OPEN:
            raise NoImage(f"one of its processes has more than {MOST_OPEN} files open or mapped")
        along.update(path for path in files if is_own(path) and may_be_carried(path))
        for path in files:
            is_card = path.startswith(CARD)
            has_card = has_card or is_card
            if why := "" if is_card and not cards else _why_not(path):
                raise NoImage(f"{why}; {cards}" if is_card else why)
        if any(path.startswith("socket:") for path in files):
            _check_sockets(proc.pid, files)
    try:
        carried.check_count(len(along))
    except carried.NotCarried as err:
        raise NoImage(str(err)) from None
    return has_card


def files_of(tree: Tree, besides: tuple[str, ...] = ()) -> list[Carried]:
    """Return its files of this node alone, which go along; NoImage where one cannot. `besides` as `check`."""
    uid, _ = procs.uids(tree.root.pid) or (-1, -1)
    try:
        return carried.find([proc.pid for proc in tree.procs], uid, besides)
    except carried.NotCarried as err:
        raise NoImage(str(err)) from None


def open_card(pid: int) -> str:
    """Return a GPU's device that a process has open or mapped; "" where it has none."""
    return next((path for path in _open_files(pid) if path.startswith(CARD)), "")


def script_of(tree: Tree) -> str:
    """Return the path of the batch script, which a shell has open; "" where none has."""
    paths = {path for proc in tree.procs for path in _open_files(proc.pid)}
    return next((path for path in sorted(paths) if path.endswith("/slurm_script")), "")


def socket_directories(tree: Tree) -> list[str]:
    """Return directories of this node alone where a process has bound a unix socket (loaders do)."""
    links = [path for proc in tree.procs for path in _open_files(proc.pid) if path.startswith("socket:[")]
    mine = {path.removeprefix("socket:[").removesuffix("]") for path in links}
    found = set()
    for line in procs.read_text(tree.root.pid, "net/unix", members.MOST_SOCKETS).splitlines()[1:]:
        # Num: RefCount Protocol Flags Type St Inode Path (proc_pid_net(5))
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[6] in mine and words[7].startswith(OWN):
            found.add(os.path.dirname(words[7]))
    return sorted(found)


def inner_pid(pid: int) -> int:
    """Return the pid of a process in its own namespace; 0 when it is gone."""
    for line in procs.read_text(pid, "status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def _only_child(pid: int) -> Proc:
    below = [proc for proc in procs.each(procs.children(pid)) if proc.state not in procs.ENDED]
    if len(below) != 1 or members.is_stepds_title(procs.title(below[0].pid)):
        raise NoImage("its processes are not one tree")
    return below[0]


def _open_files(pid: int) -> Iterable[str]:
    """Yield what a process has open, and where it works."""
    with contextlib.suppress(OSError):
        yield os.readlink(f"/proc/{pid}/cwd") + "/"
    yield from (path for _, path in procs.descriptors(pid))
    yield from (path for path, _ in procs.mappings(pid))


def _why_not(path: str) -> str:
    if path.startswith("anon_inode:") and path.removeprefix("anon_inode:") not in _ANONYMOUS:
        return f"it has {path.removeprefix('anon_inode:')} open"
    if path.startswith("/dev/") and not path.startswith("/dev/shm/") and path not in _DEVICES:
        return f"it has the device {path[:60]} open"
    if is_own(path) and not may_be_carried(path):
        return f"it uses {path[:60]}, which only this node has"
    return ""


def _check_sockets(pid: int, files: list[str]) -> None:
    mine = {path.removeprefix("socket:[").removesuffix("]") for path in files if path.startswith("socket:[")}
    for table in _NET:
        for line in procs.read_text(pid, f"net/{table}", 1 << 22).splitlines()[1:]:
            # The inode is one of the numbers of a line, in a place of its own in each table.
            if not mine.isdisjoint(line.split()):
                raise NoImage(f"it has a socket of the network open ({table.partition('/')[0]})")
