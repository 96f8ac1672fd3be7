"""Fetching the image of a job that starts here from the node that it has left (`node.image_store: nodes`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import criu, images
from gandiva_slurm.node.context import Node
from gandiva_slurm.wire import http
from gandiva_slurm.wire.auth import Signer
from gandiva_slurm.wire.image import IMAGE_PATH, LATER, NONE, ImageQuestion, decode_image_answer
from gandiva_slurm.wire.messages import encode

#: How long one answer may take, and how soon is asked again where there is none yet.
PART_S, AGAIN_S = 30.0, 0.1
#: How long the whole may take, besides what its bytes take a slow store.
WHOLE_S = 200.0

#: Fetches the image of an incarnation of this user's job from host:port; "" when it is here, else why not.
Fetch = Callable[[JobKey, int, str], Coroutine[Any, Any, str]]


def fetcher(node: Node, session: aiohttp.ClientSession, signer: Signer) -> Fetch:
    """Return what fetches images into this node's store."""
    settings = node.settings

    async def fetch(key: JobKey, uid: int, address: str) -> str:
        root = settings.image_dir
        assert root is not None
        url = f"http://{address}{IMAGE_PATH}"

        async def ask(file: str = "", offset: int = 0, is_had: bool = False) -> bytes:
            question = ImageQuestion(settings.node, *key, uid, file, offset, is_had)
            uids = settings.obeyed_uids
            while True:
                body = await http.post(session, url, signer, encode(question), PART_S, uids)
                state, why, data = decode_image_answer(body)
                if state == NONE:
                    raise images.BadImage(f"{address}: {why}")
                if state != LATER:
                    return data
                await asyncio.sleep(AGAIN_S)

        most_s = WHOLE_S
        try:
            async with asyncio.timeout(most_s) as bound:
                manifest = json.loads(await ask())
                # What is larger is refused.
                most_s += min(images.size_of(manifest), settings.image_most) / criu.SLOWEST
                bound.reschedule(asyncio.get_running_loop().time() + most_s)
                await _fetch(node, root, key, manifest, ask)
        except (GandivaError, images.BadImage, OSError, ValueError) as err:
            return str(err)
        except TimeoutError:
            return f"{address} did not give it within {most_s:.0f} s"
        return ""

    return fetch


async def _fetch(
    node: Node, root: Path, key: JobKey, manifest: dict[str, Any], ask: Callable[..., Awaitable[bytes]]
) -> None:
    """Copy the image here; BadImage, OSError, ValueError, GandivaError: nothing of it is here."""
    sizes = images.sizes_of(manifest)
    await asyncio.to_thread(images.check_room, root, sum(sizes.values()), node.settings.image_most)
    new = await asyncio.to_thread(images.begin, root, images.part_name(key, node.images_by))
    try:
        for name, size in sizes.items():
            with open(new / name, "xb") as file:
                while (had := file.tell()) < size:
                    part = await ask(name, had)
                    if not part or had + len(part) > size:
                        raise images.BadImage(f"{name} is not as long as was told")
                    await asyncio.to_thread(file.write, part)
            (new / name).chmod(0o444)
        await asyncio.to_thread(images.finish, root, key, new, manifest)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    with contextlib.suppress(GandivaError, images.BadImage):  # it is here; there it goes after a while
        await ask(is_had=True)
