"""Directories of this machine that a mini cluster shows its users: which may be shared, and who may do what.

A share shows the machine's own files at their own path, with their own modes. What is judged is what was
opened, by the name the kernel has for it: a link is judged as what it leads to. Its device and inode numbers
go with it, so that it can be told before it is mounted whether something else lies there by then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.mini import layout, trees
from gandiva_slurm.mini.spec import USERS, MiniSpec
from gandiva_slurm.model.errors import GandivaError, UsageError

#: The system's own, with everything below: its files, its devices, its state.
SYSTEM_TREES = tuple(map(Path, (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys",
    "/usr", "/var/backups", "/var/cache", "/var/lib", "/var/log", "/var/mail", "/var/spool",
)))
#: Places that hold many things, and homes of the cluster's own users; a directory below them may be shared.
PLACES = tuple(map(Path, ("/", "/home", "/opt", "/root", "/tmp", "/var", "/var/tmp",
                          *(f"/home/{name}" for name in USERS))))
#: What the containers' image has there.
IMAGE_TREES = (Path("/opt/gandiva"), Path("/opt/gandiva-slurm"))
#: Never shown, nor a directory that holds one.
KEYS = ".ssh"
READ, WRITE = stat.S_IROTH | stat.S_IXOTH, stat.S_IROTH | stat.S_IWOTH | stat.S_IXOTH
ADVICE = "next: share a directory made for the work, such as /srv/work"


@dataclass(frozen=True)
class Share:
    """One directory, as it was opened: its real path, what tells it from any other, its owner and mode."""

    path: str
    device: int
    inode: int
    mode: int
    uid: int
    gid: int

    def users(self, rights: int) -> list[str]:
        """The users inside whom its mode gives these rights (READ or WRITE)."""
        allowed = []
        for name, number in USERS.items():
            shift = 6 if number == self.uid else 3 if number == self.gid else 0
            if self.mode >> shift & rights == rights:
                allowed.append(name)
        return allowed


def look(path: str, what: str, backend: str) -> Share:
    """Open a directory and judge what was opened; UsageError, beginning with `what`: it may not be shared."""
    try:
        handle = os.open(path, os.O_PATH | os.O_DIRECTORY)
    except OSError as err:
        raise UsageError(f"{what}: {err.strerror}; next: name a directory that is there") from None
    try:
        real, seen = os.readlink(f"/proc/self/fd/{handle}"), os.fstat(handle)
        what = what if what.endswith(f" {real}") else f"{what} (that is {real})"
        if not os.path.exists(real):
            raise UsageError(f"{what}: it is gone meanwhile; next: name a directory that is there")
        if why := refusal(Path(real), backend) or _keys_in(handle) or _closed_in(Path(real), backend):
            raise UsageError(f"{what} is not shared: {why}; {ADVICE}")
    finally:
        os.close(handle)
    share = Share(real, seen.st_dev, seen.st_ino, stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid)
    if not share.users(READ):
        raise UsageError(f"{what} is not shared: none of {', '.join(USERS)} may enter and read it "
                         f"(mode {share.mode:04o}, owner {share.uid}); next: chmod o+rx {real}")
    return share


def refusal(real: Path, backend: str) -> str:
    """Why a directory of this real path is never shared; "" when its place allows it."""
    if found := [tree for tree in SYSTEM_TREES if real == tree or tree in real.parents]:
        return f"{found[0]} is the system's own"
    if real in PLACES:
        return "it holds more than one person's work, or the cluster has one of its own there"
    if layout.BASE.is_relative_to(real) or real.is_relative_to(layout.BASE):
        return f"{layout.BASE}, where the clusters' own files are, is or lies in it"
    if backend != "local" and any(real == tree or tree in real.parents for tree in IMAGE_TREES):
        return "the containers have a directory of their own there"
    if KEYS in real.parts:
        return f"it lies in {KEYS}, where secret keys are"
    if not str(real).isprintable():
        return "its name holds characters that cannot be printed"
    return ""


def _keys_in(handle: int) -> str:
    """Why the directory that `handle` holds open is private, "" when it has no keys."""
    try:
        os.stat(KEYS, dir_fd=handle, follow_symlinks=False)
    except OSError:
        return ""
    return f"it holds {KEYS}, as a home with secret keys does"


def _closed_in(real: Path, backend: str) -> str:
    """Why a tree of our own that the users inside could not read as it is stays read-only; else ""."""
    if backend != "local" or real not in trees.python_trees()[0] or not (closed := trees.to_open(real)):
        return ""
    return (f"the users inside must read all of it and may not read {os.path.normpath(real / closed[0][0])}: "
            f"being Gandiva's own it is shown to them read-only, unless chmod -R o+rX {real} is done before")


def choose(asked: Sequence[str], backend: str, say: Callable[[str], None]) -> tuple[str, ...]:
    """What `mini up` shares: each directory asked for and, where that may be, the current one.

    UsageError: one that was asked for may not be shared. The current one is only told then.
    """
    found = [look(path, f"--share {path}", backend) for path in asked]
    try:
        here = os.getcwd()
        found.append(look(here, f"the current directory {here}", backend))
    except FileNotFoundError:
        say("note: the current directory was deleted, so it is not shared")
    except UsageError as why:
        if not any(Path(here).is_relative_to(share.path) for share in found):
            say(f"note: {_of_our_own(here, backend) or why}")
    kept = outermost(found)
    for share in kept:
        _tell_rights(share, say)
    return tuple(share.path for share in kept)


def outermost(shares: Iterable[Share]) -> list[Share]:
    """Without those that lie in another: that one shows them already."""
    kept: list[Share] = []
    for share in sorted(shares, key=lambda it: len(Path(it.path).parts)):
        if not any(Path(share.path).is_relative_to(other.path) for other in kept):
            kept.append(share)
    return kept


def pin(spec: MiniSpec) -> list[Share]:
    """The shares of a cluster that is brought up, judged again; errors are `look`'s, or a link by now."""
    found = [look(path, f"the shared directory {path}", spec.backend) for path in spec.shares]
    for path, share in zip(spec.shares, found, strict=True):
        if path != share.path:
            raise GandivaError(f"the shared directory {path} is now {share.path}; next: name what is meant")
    return outermost(found)


def _of_our_own(here: str, backend: str) -> str:
    """The sentence on a closed current directory that is shown read-only all the same; else ""."""
    ours, _ = trees.python_trees()
    if backend != "local" or refusal(Path(here), backend) or not any(map(Path(here).is_relative_to, ours)):
        return ""
    return (f"the current directory {here} is not shared, for {', '.join(USERS)} may not read all of it: "
            "being Gandiva's own it is shown to them read-only; next: --share a directory made for the work")


def _tell_rights(share: Share, say: Callable[[str], None]) -> None:
    """Say what is shared, and where not everybody inside may write."""
    readers, writers = share.users(READ), share.users(WRITE)
    if len(writers) == len(USERS):
        say(f"sharing {share.path}")
        return
    only = f"; of these only {', '.join(writers)} may write there" if writers else ", who may not write there"
    say(f"sharing {share.path}, read by {', '.join(readers)}{only}; "
        f"next: for output files chmod o+w {share.path}, or --share another directory")
