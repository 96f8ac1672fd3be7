"""Images that jobs have left behind here, given to the nodes where these start again.

Only where each node keeps its own (`node.image_store: nodes`). An image is claimed once, by one node, and
goes when that has it, or asks no more.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gandiva_slurm.model.errors import PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import images
from gandiva_slurm.node.context import Node
from gandiva_slurm.wire.image import (
    HERE,
    LATER,
    NONE,
    PART_BYTES,
    ImageQuestion,
    decode_image_question,
    encode_image_answer,
)

#: After so long without a question the node that has claimed an image has given it up.
SILENT_S = 300.0

log = logging.getLogger(__name__)


@dataclass
class _Given:
    """An image that a node has claimed: where it lies, and what removes it."""

    node: str
    place: Path
    timer: asyncio.TimerHandle


class Hander:
    """Answers other gandivads' questions for images."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._given: dict[JobKey, _Given] = {}

    async def answer(self, payload: bytes) -> bytes:
        """Return what was asked for; PeerError when it is asked in a way that it cannot be."""
        question = decode_image_question(payload)
        key, root = JobKey(question.job_id, question.restart), self._node.settings.image_dir
        if root is None or not self._node.settings.are_images_fetched:
            return encode_image_answer(NONE, "no node fetches images here")
        given = self._given.get(key)
        if given is not None and given.node != question.node:
            return encode_image_answer(NONE, f"node {given.node} has claimed it")
        if question.is_had:
            self._drop(key)
            return encode_image_answer(HERE)
        if given is None and question.file:
            return encode_image_answer(NONE, "it was claimed too long ago")
        if given is None:
            return await self._claim(root, key, question)
        self._renew(key, given)
        if not question.file:
            return await self._manifest(given.place)
        return encode_image_answer(HERE, data=await asyncio.to_thread(_part, given.place, question))

    async def _claim(self, root: Path, key: JobKey, question: ImageQuestion) -> bytes:
        """One that has not ended here may still go on here."""
        if key in self._node.residents:
            return encode_image_answer(LATER, f"job {key} has not ended here yet")
        try:
            await asyncio.to_thread(images.read, root, key, question.uid)
            place = images.claim_place(root, key, self._node.images_by)
            images.claim(root, key, place)
        except (images.BadImage, OSError) as err:
            return encode_image_answer(NONE, str(err))
        self._node.images.discard(key)
        timer = asyncio.get_running_loop().call_later(SILENT_S, self._drop, key)
        self._given[key] = _Given(question.node, place, timer)
        self._node.events.write("image_given", key, to=question.node)
        return await self._manifest(place)

    async def _manifest(self, place: Path) -> bytes:
        return encode_image_answer(HERE, data=await asyncio.to_thread((place / images.MANIFEST).read_bytes))

    def _renew(self, key: JobKey, given: _Given) -> None:
        given.timer.cancel()
        given.timer = asyncio.get_running_loop().call_later(SILENT_S, self._drop, key)

    def _drop(self, key: JobKey) -> None:
        given = self._given.pop(key, None)
        if given is not None:
            given.timer.cancel()
            asyncio.get_running_loop().run_in_executor(None, images.remove, given.place)


def _part(place: Path, question: ImageQuestion) -> bytes:
    """Read a part of a file of an image; PeerError for what is none."""
    name = question.file
    if not images.is_plain(name) or question.offset < 0:
        raise PeerError(f"{name!r} from {question.offset} is no part of an image")
    try:
        with open(os.open(place / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return os.pread(file.fileno(), PART_BYTES, question.offset)
    except OSError as err:
        raise PeerError(f"{name!r} of an image cannot be read ({err.strerror})") from err
