"""All jobs at once and uncut, with what is private, for a process that keeps to that (`gandiva web`)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from gandiva_slurm.controller.privacy import Rules
from gandiva_slurm.controller.views import Row, World, queue_rows
from gandiva_slurm.engine.state.records import JobRecord
from gandiva_slurm.model.ids import JobKey

#: Jobs of a part: 0.1 s. A whole cycle may come after each, so that parts are few.
PART = 10_000


async def parts_of(
    world: World, records: Sequence[JobRecord], shares: Mapping[JobKey, float]
) -> AsyncIterator[list[Row]]:
    """Yield the queue's rows in parts, between which rounds go on."""
    for first in range(0, len(records), PART):
        yield queue_rows(world, records[first : first + PART], shares)
        await asyncio.sleep(0)


async def in_parts(
    world: World, records: Sequence[JobRecord], shares: Mapping[JobKey, float]
) -> list[str]:
    """Return the queue in parts, each JSON by itself: neither side stands still for all of them."""
    parts = parts_of(world, records, shares)
    return [json.dumps(rows, separators=(",", ":")) async for rows in parts]


def private(rules: Rules, users: Iterable[str]) -> dict[str, Any]:
    """Return what Slurm hides, from whom it does not, and the names of users there are."""
    people = [{**dataclasses.asdict(one), "coordinates": sorted(one.coordinates)} for one in rules.people]
    return {"hidden": sorted(rules.hidden), "people": people, "users": sorted(users)}
