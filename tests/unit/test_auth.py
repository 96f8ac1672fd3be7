"""Signatures against a real munged of this test's own."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from gandiva_slurm.model.errors import AuthError
from gandiva_slurm.wire.auth import MungeSigner


def start_munged(directory: Path) -> subprocess.Popen[bytes]:
    key, path = directory / "munge.key", directory / "socket"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    files = [f"--{name}-file={directory / name}" for name in ("pid", "log", "seed")]
    command = ["/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}", f"--socket={path}", *files]
    daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                return daemon
        assert time.monotonic() < deadline and daemon.poll() is None, "munged did not start"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def munged(tmp_path_factory):
    if not shutil.which("munged", path="/usr/sbin:/usr/bin"):
        pytest.skip("munged is not installed (Debian: munge)")
    directory = tmp_path_factory.mktemp("munge", numbered=True)
    daemon = start_munged(directory)
    yield str(directory / "socket")
    daemon.terminate()
    daemon.wait(10)


def test_payload_and_uid_come_back(munged):
    signer = MungeSigner(munged)
    assert signer.verify(signer.sign(b"hello\nworld\0")) == (b"hello\nworld\0", os.getuid())
    assert signer.verify(signer.sign(b"")) == (b"", os.getuid())


def test_message_longer_than_munges_own_limit(munged):
    payload = b"x" * 3_000_000
    assert MungeSigner(munged).verify(MungeSigner(munged).sign(payload))[0] == payload


def test_replayed_message_is_refused(munged):
    signer = MungeSigner(munged)
    signed = signer.sign(b"once")
    signer.verify(signed)
    with pytest.raises(AuthError, match="replayed"):
        signer.verify(signed)


def test_altered_message_is_refused(munged):
    signer = MungeSigner(munged)
    with pytest.raises(AuthError, match="altered"):
        signer.verify(signer.sign(b"pay 1") + b"0")


BODIES = [b"", b"plain", b"{}\n{}", b"MUNGE:" + b"A" * 5000 + b":\n", b"MUNGE:AAAA:\nx"]


@pytest.mark.parametrize("body", BODIES)
def test_unsigned_message_is_refused(munged, body):
    with pytest.raises(AuthError):
        MungeSigner(munged).verify(body)


def test_message_of_another_key_is_refused(munged, tmp_path):
    stranger = start_munged(tmp_path)
    try:
        signed = MungeSigner(str(tmp_path / "socket")).sign(b"hello")
        with pytest.raises(AuthError, match=r"munge\.key"):
            MungeSigner(munged).verify(signed)
    finally:
        stranger.terminate()
        stranger.wait(10)


def test_munged_that_is_not_there_is_named(tmp_path):
    with pytest.raises(AuthError, match=f"munged does not answer at {tmp_path}/none"):
        MungeSigner(str(tmp_path / "none")).sign(b"")
