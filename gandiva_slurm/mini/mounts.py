"""The mount plan of a mini cluster: what gets an empty cover, and what is bound back below it.

Users inside must read the interpreter, its packages and the clone, wherever root keeps them. A closed
directory on the way (/root, a directory of mode 0700) is covered by an empty one, and the tree bound back at
the same path. A tree that holds unreadable files itself (a clone made under umask 077) is shown through an
overlay that opens them; the files of the host stay as they are. A directory that is shared (shares.py) is
bound back in the same way, but as it is: read-write, with the host's modes; a tree that is shared is
bound once.
"""

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gandiva_slurm.mini.shares import Share
from gandiva_slurm.mini.trees import to_open

#: Always private: nothing of the host shows through, nothing written here survives the cluster.
COVERS = {
    "/run": "mode=755", "/tmp": "mode=1777", "/var/tmp": "mode=1777", "/home": "mode=755",
    "/root": "mode=711", "/dev/shm": "mode=1777", "/sys/fs/cgroup": "mode=755",
}
#: Host files the cluster has its own version of (made in CLUSTER/host/).
HOST_FILES = ("hosts", "hostname", "passwd", "group", "shadow", "gshadow", "nsswitch.conf")


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


def plan(
    root: Path, trees: Iterable[Path], aliases: Iterable[Path], shares: Iterable[Share] = ()
) -> dict[str, Any]:
    """What init does: covers, trees (read-only) and shares, other names of the trees, our own files."""
    aliases, shares = list(aliases), list(shares)
    shared = {share.path for share in shares}
    trees = [tree for tree in trees if str(tree) not in shared]
    ours = [(str(root), str(root)), (str(root / "etc"), "/etc/slurm")]
    here = [name for name in HOST_FILES if Path("/etc", name).exists()]
    ours += [(str(root / "host" / name), f"/etc/{name}") for name in here]
    return {
        "covers": covers_for([*trees, *aliases, *map(Path, sorted(shared))]),
        "trees": [(str(tree), to_open(tree)) for tree in trees],
        "aliases": [str(alias) for alias in aliases],
        "shares": [(share.path, share.device, share.inode) for share in shares],
        "binds": ours,
    }
