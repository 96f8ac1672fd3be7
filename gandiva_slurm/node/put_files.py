"""Files of a moved job, put where they were on the node that it goes on on (`carried`).

By a child with the rights of the job's user, which follows no link: every directory on the way must be its
user's or root's, and one that others may write sticky, as /tmp is, lest another user has a file there that
the job then maps. What is there by that name, of the same user, is never lost: unless it is what the job
itself has left here, it is set aside.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from gandiva_slurm.node import carried
from gandiva_slurm.node.carried import Carried

#: To put them takes no longer.
MOST_S = 60
#: What is set aside is called so: behind its name ".before-" and the job's number; this many at most.
_MOST_ASIDE = 20
_CHUNK = 1 << 20
_MOST_SAID = 400


class _Job(NamedTuple):
    """A job: its number, its task here, and what it has written and left here before."""

    job_id: int
    task: int
    left: set[tuple[str, int, int, int]]


class _Refused(Exception):
    """A file cannot be put; the text says why."""


def _marks(file: Carried) -> tuple[str, int, int, int]:
    return file.path, file.inode, file.mtime_ns, file.size


def put(
    where: tuple[int, int],
    who: pwd.struct_passwd,
    place: Path,
    files: Sequence[Carried],
    job_id: int,
    left: Collection[Carried] = (),
) -> str:
    """Put the files of an image where a process sees them; return why that failed, "" when it has not.

    `where`: that process, and the task for which it is there, which has the job's output open; `place`: where
    the image is; `left`: what the job has left on this node before.
    """
    first, task = where
    if not files:
        return ""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    sources = [os.open(place / carried.name(number), flags) for number in range(len(files))]
    top = os.open(f"/proc/{first}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    hears, says = os.pipe()
    child = os.fork()
    if not child:
        job = _Job(job_id, task, {_marks(file) for file in left if file.is_written})
        _put_all(who, says, [*zip(sources, files, strict=True)], top, job)
    for descriptor in (*sources, top, says):
        os.close(descriptor)
    with open(hears, "rb") as pipe:
        said = pipe.read(_MOST_SAID).decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if status == 0 or said:
        return said
    end = os.waitstatus_to_exitcode(status)
    if end == -signal.SIGALRM:
        return f"its files of one node were not put here within {MOST_S} s"
    return f"what puts its files of one node here ended with {end}"


def _put_all(
    who: pwd.struct_passwd, says: int, files: list[tuple[int, Carried]], top: int, job: _Job
) -> NoReturn:
    """The child: it ends with 0 when all are there."""
    code, what = 1, "its files of one node"
    try:
        none = os.open("/dev/null", os.O_RDWR)
        for number in range(3):  # where this hangs nobody waits for the end of what it has inherited
            os.dup2(none, number)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(MOST_S)
        os.initgroups(who.pw_name, who.pw_gid)
        os.setresgid(who.pw_gid, who.pw_gid, who.pw_gid)
        os.setresuid(who.pw_uid, who.pw_uid, who.pw_uid)
        os.umask(0o077)
        for source, file in files:
            what = file.path[:60]
            _put(top, source, file, job)
        code = 0
    except Exception as err:  # whatever it is: it is told
        why = (err.strerror if isinstance(err, OSError) else str(err)) or type(err).__name__
        os.write(says, f"{what} cannot be put here: {why}".encode(errors="replace"))
    finally:
        os._exit(code)


def _put(top: int, source: int, file: Carried, job: _Job) -> None:
    here = _directory(top, file.path)
    name = os.path.basename(file.path)
    there = None
    with contextlib.suppress(FileNotFoundError):
        there = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    if there is not None:
        status = os.fstat(there)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise _Refused("something else is there, or another user's file")
        is_same = _is_same(source, there, status.st_size)
        used = carried.used_by_others({(status.st_dev, status.st_ino): file.path}, (os.getpid(), job.task))
        if used and (file.is_written or not is_same):
            raise _Refused("another program uses a file of that name")
        if status.st_nlink == 1 and is_same:
            return _finish(os.open(f"/proc/self/fd/{there}", os.O_RDONLY | os.O_CLOEXEC), file)
        if status.st_size == 0 and status.st_nlink == 1:
            # slurmstepd has made it, for the job's output, and has it open.
            writes = os.open(f"/proc/self/fd/{there}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            return _write(source, writes, file)
    new = f".{name[:200]}.gandiva-{os.getpid()}"
    made = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=here)
    try:
        _write(source, made, file)
        if there is not None:
            _make_room(here, file, os.fstat(there), job)
        os.link(new, name, src_dir_fd=here, dst_dir_fd=here)  # and never over what has come there
    finally:
        os.unlink(new, dir_fd=here)


def _directory(top: int, path: str) -> int:
    """Open the directory of a path, and make what lacks of it."""
    here = top
    for name in path.strip("/").split("/")[:-1]:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            below = os.open(name, flags, dir_fd=here)
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=here)
            below = os.open(name, flags, dir_fd=here)
        if not carried.is_safe(os.fstat(below), os.getuid()):
            raise _Refused(f"others may put files into its directory {name[:40]}")
        here = below
    return here


def _is_same(source: int, there: int, size: int) -> bool:
    if os.fstat(source).st_size != size:
        return False
    with open(f"/proc/self/fd/{there}", "rb") as file:
        at = 0
        while chunk := file.read(_CHUNK):
            if os.pread(source, len(chunk), at) != chunk:
                return False
            at += len(chunk)
    return True


def _write(source: int, target: int, file: Carried) -> None:
    at = 0
    while chunk := os.pread(source, _CHUNK, at):
        at += os.write(target, chunk)
    _finish(target, file)


def _finish(target: int, file: Carried) -> None:
    os.fchmod(target, file.mode)
    os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
    os.close(target)


def _make_room(here: int, file: Carried, status: os.stat_result, job: _Job) -> None:
    """Have another file of the user's no longer be called so: it is removed where the job has left it."""
    name = os.path.basename(file.path)
    if (file.path, status.st_ino, status.st_mtime_ns, status.st_size) in job.left:
        os.unlink(name, dir_fd=here)
        return
    for number in range(_MOST_ASIDE):
        aside = f"{name[:200]}.before-{job.job_id}" + (f".{number}" if number else "")
        with contextlib.suppress(FileExistsError):
            os.link(name, aside, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
            os.unlink(name, dir_fd=here)
            return
    raise _Refused("another file is there")
