"""Files that only a job's node has, and that go along with the image of its processes.

What a process has open or mapped below /tmp or /dev/shm would not be there on another node: criu opens files
by their paths. Those that are small, and the job's own, are copied into its image as it stands still. Before
it is restored they are put where they were (`put_files`).
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gandiva_slurm.node import procs

#: Directories that each node has its own of.
OWN = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/", "/var/lock/")
#: What can be carried is below these: what lies elsewhere is a service's, which has its own there.
_CARRIED = ("/tmp/", "/var/tmp/", "/dev/shm/")
#: glibc makes a semaphore under another name and links it: its maker has mapped what is deleted and yet has a
#: name, which criu cannot dump as a user (Python 3.14's workers; criu 4.2.1: "Can't link remap").
_SEMAPHORES = "/dev/shm/sem."
DELETED = " (deleted)"
#: The most files of a job, and their bytes in all.
MOST_FILES, MOST_BYTES = 64, 64 << 20


class NotCarried(Exception):
    """A file of the node's alone cannot go along; the text says which, and why."""


class Carried(NamedTuple):
    """One file, as an image's manifest has it.

    `inode`, `mtime_ns` and `size` are by what a node knows a file again that the job has left there.
    """

    path: str
    mode: int
    mtime_ns: int
    size: int
    inode: int
    is_written: bool


def is_own(path: str) -> bool:
    """True for what only this node has, and has a name of still: criu takes deleted files along."""
    return path.startswith(OWN) and not path.endswith(DELETED)


def may_be_carried(path: str) -> bool:
    """True for what may go along, as far as its path tells."""
    return path.startswith(_CARRIED) and not path.startswith(_SEMAPHORES) and not path.endswith("/")


def find(pids: Collection[int], uid: int, besides: tuple[str, ...] = ()) -> list[Carried]:
    """Return what of this node's alone these processes use; NotCarried where it cannot go along.

    It looks at files by their paths, which may hang. `besides`: how the paths begin that are no matter of
    theirs.
    """
    uses: dict[str, bool] = {}
    for pid in pids:
        for path, is_written in _uses(pid):
            if not path.startswith(besides):
                uses[path] = uses.get(path, False) or is_written
                check_count(len(uses))
    seen_by, left, found, written = next(iter(pids), 0), MOST_BYTES, [], {}
    for path, is_written in sorted(uses.items()):
        with _opened(seen_by, path, uid) as file:
            status = os.fstat(file)
        left -= status.st_size
        if left < 0:
            raise NotCarried(f"{_told(path)}: it has more than {MOST_BYTES >> 20} MiB there")
        facts = (status.st_mtime_ns, status.st_size, status.st_ino, is_written)
        found.append(Carried(path, stat.S_IMODE(status.st_mode), *facts))
        if is_written:
            written[status.st_dev, status.st_ino] = path
    if written and (shared := used_by_others(written, pids)):
        raise NotCarried(f"{_told(shared)}, and so does another program")
    return found


def check_count(count: int) -> None:
    """NotCarried where these are too many."""
    if count > MOST_FILES:
        raise NotCarried(f"it uses more than {MOST_FILES} files that only this node has")


def why_not_kept(files: Collection[Carried]) -> str:
    """Say why no image is kept of a job that goes on meanwhile: what it writes would be copied later."""
    written = next((file.path for file in files if file.is_written), "")
    return f"{_told(written)}, and writes to it" if written else ""


def name(number: int) -> str:
    """Return what a job's file of this number is called in an image."""
    return f"carried-{number}"


def copy(pid: int, files: Collection[Carried], uid: int, into: Path) -> None:
    """Copy them, as a process sees them, into a directory of the job's user; NotCarried: one has changed."""
    for number, file in enumerate(files):
        target = os.open(into / name(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with open(target, "wb") as made, _opened(pid, file.path, uid) as source:
            os.fchown(target, uid, -1)
            with open(f"/proc/self/fd/{source}", "rb") as opened:
                count = made.write(opened.read(file.size + 1))
                if count != file.size or os.fstat(source).st_ino != file.inode:
                    raise NotCarried(f"{_told(file.path)}: it has changed meanwhile")


def used_by_others(wanted: Mapping[tuple[int, int], str], pids: Collection[int]) -> str:
    """Return which of these files a process has that is none of these, and not root's; "" for none.

    `wanted`: their paths by device and inode. slurmstepd may have what it opened for the job's output.
    """
    paths = set(wanted.values())
    for proc in procs.table().values():
        if proc.pid in pids or (procs.uids(proc.pid) or (0, 0))[0] == 0:
            continue
        for path in {path for path, _ in _uses(proc.pid)} & paths:
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{proc.pid}/root{path}", follow_symlinks=False)
                if (status.st_dev, status.st_ino) in wanted:
                    return path
    return ""


def is_safe(directory: os.stat_result, uid: int) -> bool:
    """True for a directory in which no other user but root may put another file in the place of this user's.

    A group of a user's own is of that user's name.
    """
    others = 0o002 if _is_own_group(directory.st_gid, uid) else 0o022
    is_sticky = bool(directory.st_mode & stat.S_ISVTX)
    return directory.st_uid in (0, uid) and (is_sticky or not directory.st_mode & others)


def _is_own_group(gid: int, uid: int) -> bool:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name == pwd.getpwuid(uid).pw_name
    return False


def _open_below(top: int, path: str, uid: int) -> int:
    """Open a user's file (O_PATH) below a directory, and follow no link; OSError when that fails.

    What lies below /proc/PID/root has links that lead out of it.
    """
    *directories, last = path.strip("/").split("/")
    here = os.dup(top)
    try:
        for directory in directories:
            below = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
            if not is_safe(os.fstat(here), uid):
                raise PermissionError(errno.EPERM, "others may put files there")
        return os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


@contextlib.contextmanager
def _opened(pid: int, path: str, uid: int) -> Iterator[int]:
    """A descriptor (O_PATH) of a file that only this node has; NotCarried for what is not the user's own."""
    try:
        top = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            file = _open_below(top, path, uid)
        finally:
            os.close(top)
    except OSError:
        raise NotCarried(_told(path)) from None
    try:
        status = os.fstat(file)
        is_its = stat.S_ISREG(status.st_mode) and status.st_uid == uid and status.st_nlink == 1
        if not is_its or not may_be_carried(path):
            raise NotCarried(_told(path))
        yield file
    finally:
        os.close(file)


def _told(path: str) -> str:
    return f"it uses {path[:60]}, which only this node has"


def _uses(pid: int) -> Iterator[tuple[str, bool]]:
    """Yield what a process has open or mapped that only this node has, and whether it may write to it."""
    written = set[str]()
    for number, path in procs.descriptors(pid):
        if is_own(path) and path not in written:
            flags = procs.read_text(pid, f"fdinfo/{number}").partition("flags:")[2].split()
            is_written = bool(int(flags[0], 8) & os.O_ACCMODE) if flags else True
            written.update({path} if is_written else ())
            yield path, is_written
    for path, rights in procs.mappings(pid):
        if is_own(path):
            yield path, "w" in rights and "s" in rights
