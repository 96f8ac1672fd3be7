"""A munged of the tests' own: key, socket and files in one directory, nothing of the host's."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import patience

#: munged answers within milliseconds; a loaded machine may need longer.
DEADLINE_S = 60


@contextmanager
def running_munged(directory: Path) -> Iterator[str]:
    """Start a munged with a fresh key; yields its socket and ends it."""
    if not shutil.which("munged", path="/usr/sbin:/usr/bin"):
        pytest.skip("munged is not installed (Debian: munge)")
    key, path = directory / "munge.key", directory / "munge.socket"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    files = [f"--{name}-file={directory / name}" for name in ("pid", "log", "seed")]
    command = ["/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}", f"--socket={path}", *files]
    daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(path, daemon)
        yield str(path)
    finally:
        daemon.terminate()
        daemon.wait(DEADLINE_S)


def _wait_for(path: Path, daemon: subprocess.Popen[bytes]) -> None:
    end_s = patience.deadline(DEADLINE_S)
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        assert time.monotonic() < end_s and daemon.poll() is None, "munged did not start"
        time.sleep(0.01)
