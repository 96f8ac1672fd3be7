"""The mount plan of a mini cluster: what gets an empty cover, and what is bound back below it.

Users inside must read the interpreter, its packages and the clone, wherever root keeps them. A closed
directory on the way (/root, a directory of mode 0700) is covered by an empty one, and the tree bound back at
the same path. A tree that holds unreadable files itself (a clone made under umask 077) is shown through an
overlay that opens them; the files of the host stay as they are.
"""

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: Always private: nothing of the host shows through, nothing written here survives the cluster.
COVERS = {
    "/run": "mode=755", "/tmp": "mode=1777", "/var/tmp": "mode=1777", "/home": "mode=755",
    "/root": "mode=711", "/dev/shm": "mode=1777", "/sys/fs/cgroup": "mode=755",
}
#: Host files the cluster has its own version of (made in CLUSTER/host/).
HOST_FILES = ("hosts", "hostname", "passwd", "group", "shadow", "gshadow", "nsswitch.conf")
#: Directories of the distribution itself: readable as they are, and not ours to remount.
SYSTEM_TREES = (Path("/"), Path("/usr"), Path("/usr/local"))
#: Never opened to the users inside.
KEPT_CLOSED = {".git"}


def is_closed(path: Path) -> bool:
    """True if other users may not walk through this directory."""
    return not os.stat(path).st_mode & stat.S_IXOTH


def covers_for(trees: Iterable[Path], closed: Callable[[Path], bool] = is_closed) -> dict[str, str]:
    """Mount options by directory to cover: the fixed ones and the first closed ancestor of each tree."""
    covers = dict(COVERS)
    for tree in trees:
        for parent in reversed(tree.parents):
            if str(parent) in covers:
                break
            if parent != Path("/") and closed(parent):
                covers[str(parent)] = "mode=711"
                break
    return covers


def to_open(tree: Path) -> list[tuple[str, int]]:
    """(path below the tree, mode) of every entry that others must be able to read and cannot."""
    found: list[tuple[str, int]] = []
    pending = [""]
    _note(found, tree, ".")
    while pending:
        below = pending.pop()
        with os.scandir(tree / below) as entries:
            inside = [it for it in entries if not it.is_symlink() and it.name not in KEPT_CLOSED]
        for entry in inside:
            name = os.path.join(below, entry.name)
            _note(found, entry, name)
            if entry.is_dir():
                pending.append(name)
    return found


def _note(found: list[tuple[str, int]], entry: "os.DirEntry[str] | Path", name: str) -> None:
    mode = entry.stat().st_mode
    runs = stat.S_ISDIR(mode) or mode & stat.S_IXUSR
    want = mode | stat.S_IROTH | (stat.S_IXOTH if runs else 0)
    if want != mode and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        found.append((name, stat.S_IMODE(want)))


def plan(root: Path, trees: Iterable[Path], aliases: Iterable[Path]) -> dict[str, Any]:
    """What init does, in order: covers, trees (read-only), other names of the trees, our own files."""
    trees = [tree for tree in trees if tree not in SYSTEM_TREES]
    aliases = list(aliases)
    ours = [(str(root), str(root)), (str(root / "etc"), "/etc/slurm")]
    here = [name for name in HOST_FILES if Path("/etc", name).exists()]
    ours += [(str(root / "host" / name), f"/etc/{name}") for name in here]
    return {
        "covers": covers_for([*trees, *aliases]),
        "trees": [(str(tree), to_open(tree)) for tree in trees],
        "aliases": [str(alias) for alias in aliases],
        "binds": ours,
    }
