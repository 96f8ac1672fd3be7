"""What one gandivad asks another when it hears neither gandivactld nor slurmctld (`POST /v1/peer`, ADR 0048).

Signed as a plan is. The one that is asked says what it knows itself, and asks Slurm on the other's behalf.
"""

from __future__ import annotations

from dataclasses import dataclass

from gandiva_slurm.wire.messages import VERSION, read

PEER_PATH = "/v1/peer"


@dataclass(frozen=True)
class PeerQuestion:
    """`node` asks for its `jobs` (job, restart), which may work on an answer for `works_ms`.

    `asks_slurm`: it asks as well what Slurm shows on that node.
    """

    node: str
    jobs: tuple[tuple[int, int], ...]
    works_ms: int = 0
    asks_slurm: bool = False
    version: int = VERSION


@dataclass(frozen=True)
class PeerAnswer:
    """What `node` knows of another's jobs.

    `silent_ms`: for how long it has heard neither gandivactld nor slurmctld itself. `newer`: newer
    incarnations that it knows of. `shown`: all that Slurm shows on the asking node (job, restart); None: it
    was not asked, or did not answer.
    """

    node: str
    silent_ms: int
    newer: tuple[tuple[int, int], ...] = ()
    shown: tuple[tuple[int, int], ...] | None = None
    version: int = VERSION


def decode_question(data: bytes) -> PeerQuestion:
    """Read a PeerQuestion; PeerError says which field is wrong."""
    return read(data, PeerQuestion)


def decode_peer_answer(data: bytes) -> PeerAnswer:
    """Read a PeerAnswer; PeerError says which field is wrong."""
    return read(data, PeerAnswer)
