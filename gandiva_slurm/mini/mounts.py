"""The mount plan of a mini cluster: what gets an empty cover, and what is bound back below it."""

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

#: Always private: nothing of the host shows through, nothing written here survives the cluster.
COVERS = {
    "/run": "mode=755", "/tmp": "mode=1777", "/var/tmp": "mode=1777", "/home": "mode=755",
    "/root": "mode=711", "/dev/shm": "mode=1777",
}
#: Host files the cluster has its own version of (made in CLUSTER/host/).
HOST_FILES = ("hosts", "hostname", "passwd", "group", "shadow", "gshadow", "nsswitch.conf")


def is_closed(path: Path) -> bool:
    """True if other users may not walk through this directory."""
    return not os.stat(path).st_mode & stat.S_IXOTH


def covers_for(trees: Iterable[Path], closed: Callable[[Path], bool] = is_closed) -> dict[str, str]:
    """Mount options by directory to cover: the fixed ones and every closed ancestor of a needed tree."""
    covers = dict(COVERS)
    for tree in trees:
        for parent in reversed(tree.parents):
            if str(parent) in covers:
                break
            if parent != Path("/") and closed(parent):
                covers[str(parent)] = "mode=711"
                break
    return covers


def plan(root: Path, trees: Iterable[Path], closed: Callable[[Path], bool] = is_closed) -> dict[str, object]:
    """What init does, in order: covers, then binds (source, target, read-only)."""
    trees = list(trees)
    binds = [(str(tree), str(tree), True) for tree in trees if not _is_system(tree)]
    binds.append((str(root), str(root), False))
    binds.append((str(root / "etc"), "/etc/slurm", False))
    binds += [(str(root / "host" / name), f"/etc/{name}", False) for name in HOST_FILES
              if Path("/etc", name).exists()]
    return {"covers": covers_for(trees, closed), "binds": binds}


def _is_system(tree: Path) -> bool:
    """A directory of the distribution itself: readable as it is, and not ours to remount."""
    return tree in (Path("/"), Path("/usr"), Path("/usr/local"))
