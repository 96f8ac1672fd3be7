"""One gandivad a node: a lock that dies with its process, and can be looked at without being taken."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from gandiva_slurm.model.errors import ConfigError, NotNow

#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("=hh4xqqi4x")


def take(state_dir: Path) -> int:
    """Take the lock and return its descriptor, to be kept open; NotNow when another gandivad has it.

    ConfigError where this user may not write into `state_dir`, which is made if it is not there.
    """
    path = state_dir / "lock"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as err:
        raise _unusable(err) from err
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        os.close(fd)
        raise NotNow(
            f"{path}: another gandivad of this node is running (pid {holder(state_dir)}); stop it"
        ) from err
    return fd


def holder(state_dir: Path) -> int:
    """Return the pid of the gandivad that runs on this state, 0 when there is none; ConfigError as `take`."""
    try:
        fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    except OSError as err:
        raise _unusable(err) from err
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return 0 if kind == fcntl.F_UNLCK else pid


def _unusable(err: OSError) -> ConfigError:
    return ConfigError(
        f"{err.filename}: {err.strerror}, as uid {os.geteuid()}; run gandivad as root, or set node.state_dir"
    )
