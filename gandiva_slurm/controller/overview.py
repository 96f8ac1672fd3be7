"""All jobs at once and uncut, with what is private, for a process that keeps to that (`gandiva web`)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gandiva_slurm.controller.privacy import Rules
from gandiva_slurm.controller.views import World, queue_rows
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model.ids import JobKey

#: Jobs of a part: 0.1 to 0.2 s. A whole cycle may come after each, so that parts are few.
PART = 10_000


async def in_parts(
    world: World, records: Sequence[JobRecord], shares: Mapping[JobKey, float]
) -> list[str]:
    """Return the queue in parts, each JSON by itself: neither side stands still for all of them."""
    parts = []
    for first in range(0, len(records), PART):
        rows = queue_rows(world, records[first : first + PART], shares)
        parts.append(json.dumps(rows, separators=(",", ":")))
        await asyncio.sleep(0)
    return parts


def private(rules: Rules, users: Iterable[str]) -> dict[str, Any]:
    """Return what Slurm hides, from whom it does not, and the names of users there are."""
    people = [{**dataclasses.asdict(one), "coordinates": sorted(one.coordinates)} for one in rules.people]
    return {"hidden": sorted(rules.hidden), "people": people, "users": sorted(users)}
