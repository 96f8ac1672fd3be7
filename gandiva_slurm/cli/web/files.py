"""Files with secrets, which no other user may read or replace."""

from __future__ import annotations

import os
import stat

from gandiva_slurm.model.errors import ConfigError


def read_private(where: str, path: str, most: int) -> bytes:
    """Return the bytes of a file, one more than `most` at the most; ConfigError begins with `where`."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            _require_private(where, os.fstat(file.fileno()))
            return file.read(most + 1)
    except OSError as err:
        raise ConfigError(f"{where}: {err.strerror}; next: docs/web.md, Set up") from err


def _require_private(where: str, status: os.stat_result) -> None:
    """ConfigError for a file that another user may read or write.

    A file of root's may be of root's group: systemd's LoadCredential= shows its list of who may read so.
    """
    others = 0o027 if (status.st_uid, status.st_gid) == (0, 0) else 0o077
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & others:
        raise ConfigError(f"{where}: others may read or replace it; next: chown it to this user, chmod 400")
