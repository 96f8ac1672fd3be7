"""A signer for tests of everything but signatures: the uid in clear text."""

from gandiva_slurm.model.errors import AuthError


class PlainSigner:
    """Signs as `uid`; refuses what was not signed by another PlainSigner."""

    def __init__(self, uid: int) -> None:
        self.uid = uid

    def sign(self, payload: bytes) -> bytes:
        return b"PLAIN %d\n" % self.uid + payload

    def verify(self, credential: bytes) -> tuple[bytes, int]:
        head, _, payload = credential.partition(b"\n")
        if not head.startswith(b"PLAIN ") or not head[6:].isdigit():
            raise AuthError("not signed")
        return payload, int(head[6:])
