"""Checkpoints on disk: whole or not there at all, whatever is killed when (ADR 0022).

One directory a checkpoint, in it one data file a rank and, written after it, the rank's marker, which names
the ranks of the world and the data's checksum. A checkpoint is complete when every rank named has its marker.
Directories carry the incarnation (job and restart count), so no start of a job writes over another's.

What is read is unpickled, which runs what its writer wants: a file counts only if it is of this user and
nobody else may write it, by the very descriptor that it is read from.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import zlib
from typing import IO, Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from gandiva_slurm.client.errors import NotSaved

VERSION = 1
#: So many complete checkpoints stay.
KEEP = 2
_CHUNK = 1 << 22
#: What is wrong with a file that was made under a wider umask, or in an older release.
WRITABLE = "others may write it; next: chmod go-w"
_NAME = re.compile(r"(?P<script>.+)-(?P<count>\d+)-(?P<job>\d+)\.(?P<restart>\d+)")


class Store(NamedTuple):
    """Where one rank of one start of a script keeps its checkpoints."""

    directory: str
    script: str
    rank: int
    world: int
    job: str
    restart: int


class Saved(NamedTuple):
    """A complete checkpoint: its directory, its place in time, and what each rank's marker says.

    Of one of another version only that is known.
    """

    path: str
    at: int
    restart: int
    version: Any
    markers: Dict[int, Dict[str, Any]]


def claim(store: Store, is_start: bool) -> None:
    """Make the directory this incarnation's; NotSaved where a newer one, or meanwhile another job, has it."""
    _check_directory(store.directory)
    path = os.path.join(store.directory, store.script + ".owner")
    owner = _read_json(path)
    if owner is not None:
        if owner.get("job") == store.job and owner.get("restart", 0) > store.restart:
            raise NotSaved(
                f"restart {owner['restart']} of this job saves here now, not restart {store.restart}"
            )
        if owner.get("job") != store.job and not is_start:
            raise NotSaved(f"job {owner.get('job')} saves here now, not job {store.job}")
    mine = {"job": store.job, "restart": store.restart}
    if owner != mine:
        _write(path, store.rank, lambda out: out.write(json.dumps(mine).encode()))


def save(store: Store, count: int, write: Callable[[Any], None], facts: Dict[str, Any]) -> str:
    """Write this rank's part of a checkpoint, then drop what is too old; NotSaved leaves all as it was."""
    path = path_of(store, count)
    try:
        prepare(store, count)
        claim(store, is_start=False)
        _write_part(store, path, count, write, facts)
        _sync_directory(store.directory)
    except OSError as err:
        raise NotSaved(_sentence(err, store.directory)) from err
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # where nothing came to be in it
    prune(store)
    return path


def prepare(store: Store, count: int) -> None:
    """Make the directory of a checkpoint, its owner's alone; OSError says why it cannot be.

    What lies above the job's own, such as .gandiva, is as the umask says: a group's jobs may share it.
    """
    os.makedirs(store.directory, mode=0o700, exist_ok=True)
    _check_directory(store.directory)
    os.makedirs(path_of(store, count), mode=0o700, exist_ok=True)


def path_of(store: Store, count: int) -> str:
    """Return the directory of the checkpoint that this start writes at `count`."""
    return os.path.join(store.directory, f"{store.script}-{count:09d}-{store.job}.{store.restart}")


def complete(store: Store) -> List[Saved]:
    """Return the complete checkpoints of this script, the newest first."""
    found = (look(path) for path in _paths(store))
    return sorted((saved for saved in found if saved), key=_age, reverse=True)


def look(path: str) -> Optional[Saved]:
    """Return the checkpoint at a path; None unless it is complete."""
    markers = {}
    for entry in _entries(path):
        marker = _read_json(os.path.join(path, entry)) if entry.endswith(".json") else None
        if marker is None:
            continue
        if marker.get("version") != VERSION:
            return Saved(path, *place(path), marker.get("version"), {})
        markers[marker["rank"]] = marker
    ranks = next(iter(markers.values()))["ranks"] if markers else [0]
    if sorted(markers) != ranks or any(marker["ranks"] != ranks for marker in markers.values()):
        return None
    return Saved(path, *place(path), VERSION, markers)


def place(path: str) -> Tuple[int, int]:
    """Return a checkpoint's place in time: its count, then the restart that wrote it."""
    match = _NAME.fullmatch(os.path.basename(path))
    return (int(match["count"]), int(match["restart"])) if match else (0, 0)


def last_count(store: Store) -> int:
    """Return the count of the newest checkpoint, complete or not; 0 without any."""
    return max((place(path)[0] for path in _paths(store)), default=0)


def fault(saved: Saved, ranks: Set[int]) -> str:
    """Read the data of these ranks to the end; return what is wrong with it, "" if nothing."""
    for rank in sorted(ranks & set(saved.markers)):
        marker = saved.markers[rank]
        try:
            with open_ours(data_path(saved, rank)) as data:
                if _checksum(data) != marker["crc32"]:
                    return f"the data of rank {rank} is not what was written"
        except OSError as err:
            return f"the data of rank {rank} cannot be read: {err.strerror}"
    return ""


def open_ours(path: str) -> IO[bytes]:
    """Open a file to read that this user alone can have written; PermissionError says why it is none."""
    file = open(path, "rb", opener=_open_owned)  # noqa: SIM115 - the caller's to close
    if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        file.close()
        raise PermissionError(errno.EPERM, WRITABLE, path)
    return file


def _open_owned(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # no link, and no pipe is waited for
    found = os.fstat(fd)
    fault = "" if stat.S_ISREG(found.st_mode) else "it is no file"
    if found.st_uid != os.geteuid():
        fault = "belongs to another user"
    if fault:
        os.close(fd)
        raise PermissionError(errno.EPERM, fault, path)
    return fd


def _open_anew(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def data_path(saved: Saved, rank: int) -> str:
    """Return the path of a rank's data."""
    return os.path.join(saved.path, _part(rank, len(saved.markers)) + ".data")


def prune(store: Store) -> None:
    """Remove what is older than the newest KEEP complete checkpoints, and what such a removal left."""
    kept = complete(store)[:KEEP]
    old = [path for path in _paths(store) if len(kept) == KEEP and place(path) < _age(kept[-1])]
    for path in old:
        trash = os.path.join(store.directory, f".trash-{os.path.basename(path)}")
        with contextlib.suppress(OSError):
            os.rename(path, trash)
    for entry in _entries(store.directory):
        if entry.startswith(f".trash-{store.script}-"):
            shutil.rmtree(os.path.join(store.directory, entry), ignore_errors=True)


def _write_part(
    store: Store, path: str, count: int, write: Callable[[Any], None], facts: Dict[str, Any]
) -> None:
    part = os.path.join(path, _part(store.rank, store.world))
    size, crc32 = _write(part + ".data", store.rank, write)
    marker = {
        "version": VERSION,
        "rank": store.rank,
        "ranks": list(range(store.world)),
        "count": count,
        "bytes": size,
        "crc32": crc32,
        "facts": facts,
    }
    _write(part + ".json", store.rank, lambda out: out.write(json.dumps(marker, indent=1).encode()))


def _part(rank: int, world: int) -> str:
    return f"rank-{rank}-of-{world}"


def _paths(store: Store) -> List[str]:
    found = []
    for entry in _entries(store.directory):
        match = _NAME.fullmatch(entry)
        if match and match["script"] == store.script:
            found.append(os.path.join(store.directory, entry))
    return found


def _entries(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _age(saved: Saved) -> Tuple[int, int]:
    return saved.at, saved.restart


def _read_json(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, "rb", opener=_open_owned) as file:
            content = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _check_directory(path: str) -> None:
    # A link to a directory of the user's is not made by anybody else either.
    if {os.lstat(path).st_uid, os.stat(path).st_uid} != {os.geteuid()}:
        raise PermissionError(errno.EPERM, "belongs to another user", path)


class _Output:
    """A file that is summed up as it is written; keeps its error, which torch's writer does not hand on."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self.crc32 = 0
        self.error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as err:
            self.error = err
            raise
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size += memoryview(data).nbytes
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _write(path: str, rank: int, write: Callable[[Any], Any]) -> Tuple[int, int]:
    """Let `write` fill a file that appears under `path` whole; return its length and checksum."""
    temporary = f"{path}.{rank}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # of one that was killed
        with open(temporary, "wb", opener=_open_anew) as file:
            output = _Output(file)
            try:
                write(output)
            except Exception as err:
                raise output.error or err from err
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(os.path.dirname(path))
    return output.size, output.crc32


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _checksum(file: IO[bytes]) -> int:
    crc32 = 0
    for chunk in iter(lambda: file.read(_CHUNK), b""):
        crc32 = zlib.crc32(chunk, crc32)
    return crc32


def _sentence(err: OSError, directory: str) -> str:
    if err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"no space left for a checkpoint in {directory}"
    if err.errno == errno.EROFS:
        return f"the file system of {directory} is read-only"
    if err.errno in (errno.EACCES, errno.EPERM):
        return f"this user may not write checkpoints in {err.filename or directory}"
    return f"no checkpoint in {directory}: {err.strerror}"
