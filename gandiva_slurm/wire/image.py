"""What one gandivad asks another of a job's process image (`POST /v1/image`), where each node keeps its own.

Signed as a plan is, both ways. An answer is a line of JSON and what follows it: the manifest, or a part of a
file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.wire.messages import VERSION, read

IMAGE_PATH = "/v1/image"
#: Bytes of a file in one answer.
PART_BYTES = 8 << 20
#: How an answer begins: what was asked for follows; ask again soon; there is no image.
HERE, LATER, NONE = "here", "later", "none"


@dataclass(frozen=True)
class ImageQuestion:
    """`node` wants the image of an incarnation of `uid`'s job: claims it, or reads `file` from `offset` on.

    An image is claimed by one node, once. `is_had`: it has all of it, and the image may go.
    """

    node: str
    job_id: int
    restart: int
    uid: int
    file: str = ""
    offset: int = 0
    is_had: bool = False
    version: int = VERSION


def decode_image_question(data: bytes) -> ImageQuestion:
    """Read an ImageQuestion; PeerError says which field is wrong."""
    return read(data, ImageQuestion)


def encode_image_answer(state: str, why: str = "", data: bytes = b"") -> bytes:
    """Return an answer's bytes."""
    return json.dumps({"state": state, "why": why}).encode() + b"\n" + data


def decode_image_answer(data: bytes) -> tuple[str, str, bytes]:
    """Return (state, why, what follows); PeerError when it is no such answer."""
    head, newline, rest = data.partition(b"\n")
    try:
        told: Any = json.loads(head) if newline else None
        state, why = told["state"], told["why"]
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise PeerError("an image's answer is not understood; update the older of the two gandivads") from err
    if state not in (HERE, LATER, NONE) or not isinstance(why, str):
        raise PeerError("an image's answer is not understood; update the older of the two gandivads")
    return state, why, rest
