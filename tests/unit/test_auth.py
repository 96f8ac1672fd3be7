"""Signatures against a real munged of this test's own."""

import os

import pytest

from gandiva_slurm.model.errors import AuthError
from gandiva_slurm.wire.auth import MungeSigner
from tests.munged import running_munged


@pytest.fixture(scope="module")
def munged(tmp_path_factory):
    with running_munged(tmp_path_factory.mktemp("munge")) as socket:
        yield socket


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
    with running_munged(tmp_path) as stranger:
        signed = MungeSigner(stranger).sign(b"hello")
        with pytest.raises(AuthError, match=r"munge\.key"):
            MungeSigner(munged).verify(signed)


def test_munged_that_is_not_there_is_named(tmp_path):
    with pytest.raises(AuthError, match=f"munged does not answer at {tmp_path}/none"):
        MungeSigner(str(tmp_path / "none")).sign(b"")
