"""Images that jobs were restored from, kept for as long as Slurm may forget that it has started them.

slurmctld writes down what it knows within some seconds. One that is killed before has the job where it was
before the move: it ends what goes on elsewhere, misses the other, and starts the same incarnation again. That
one finds the spare image; any later one begins anew, as after a requeue that was asked for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import images
from gandiva_slurm.node.jobs import Resident

#: A start is written down by then, and the job lives.
SPARE_NS = 20 * 10**9
#: For how long nobody has told of a job that has ended with a spare image: it is over. Until gandivactld has
#: understood what a slurmctld has forgotten takes half a minute.
OVER_NS = 120 * 10**9


def make(root: Path, key: JobKey) -> None:
    """Keep an incarnation's image for a second start of that one alone."""
    place = images.place_of(root, key)
    with contextlib.suppress(FileNotFoundError, ValueError):
        images.retell(place, _told(place) | {"is_spare": True})


def drop(root: Path, key: JobKey) -> None:
    """Remove an incarnation's image if it is a spare one, and none that was made of it since."""
    with contextlib.suppress(OSError, ValueError):
        if _told(images.place_of(root, key)).get("is_spare"):
            for gone in images.put_away(root, key):
                images.remove(gone)


def _told(place: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((place / images.MANIFEST).read_bytes()[: images.MOST_MANIFEST])
    return told


class Spares:
    """The spare images of one node's jobs; `drop` removes one."""

    def __init__(self, drop: Callable[[JobKey], None]) -> None:
        self._drop = drop
        #: when each job was last told of
        self._told_ns: dict[JobKey, int] = {}

    def look(self, residents: Mapping[JobKey, Resident], live: Collection[int] | None, now_ns: int) -> None:
        """Drop those that no start can ask for any more; `live`: jobs that are told of, None: not known."""
        for key, resident in residents.items():
            until_ns = resident.image.spare_until_ns
            is_busy = resident.is_ending or resident.image.keeps_still
            if until_ns and now_ns >= until_ns and not is_busy:
                resident.image.spare_until_ns = 0
                self._told_ns.pop(key, None)
                self._drop(key)
            elif until_ns:
                self._told_ns[key] = now_ns
        for key, told_ns in list(self._told_ns.items()):
            if live is None or key.job_id in live:
                self._told_ns[key] = now_ns
            elif now_ns - told_ns >= OVER_NS:
                del self._told_ns[key]
                self._drop(key)
