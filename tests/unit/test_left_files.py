"""node.left_files: what a job wrote into files of its node goes when it lives on elsewhere, and only then."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import left_files
from gandiva_slurm.node.carried import Carried
from gandiva_slurm.node.left_files import TOLD_NS, LeftFiles
from gandiva_slurm.node.saved import read_job, state_of
from tests.unit.test_node_images import Floor, hooked

FILES = [Carried("/tmp/log", 0o600, 7, True, 1, 2)]


@pytest.fixture
async def floor(tmp_path: Path) -> Any:
    return Floor(tmp_path)


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[left_files._Gone]:
    """Whose files were removed."""
    found: list[left_files._Gone] = []
    monkeypatch.setattr(left_files, "_remove", found.append)
    return found


def leave(floor: Any, is_whole: bool = True) -> LeftFiles:
    """A job with an image has been seen, and is here no more."""
    resident, left = hooked(floor), LeftFiles()
    floor.plan(1, is_leaving=True)
    resident.image.is_whole, resident.image.along = is_whole, FILES
    left.look(floor.node)
    del floor.node.residents[resident.key]
    return left


def tell(floor: Any, *job_ids: int) -> None:
    """gandivactld tells that these jobs wait to be started again."""
    floor.node.plan = replace(floor.node.plan, images=job_ids)


async def test_they_go_when_the_job_waits_to_be_started_again(floor: Any, removed: list[Any]) -> None:
    left = leave(floor)
    left.look(floor.node)
    assert not removed, "it may have been cancelled"
    tell(floor, 1)
    for _ in range(2):
        left.look(floor.node)
        await asyncio.sleep(0.02)
    assert [gone.files for gone in removed] == [FILES]


async def test_they_stay_of_a_job_that_has_ended_here(floor: Any, removed: list[Any]) -> None:
    left = leave(floor)
    tell(floor, 2)
    left.look(floor.node)
    floor.clock_ns = floor.node.clock.mono() + TOLD_NS + 1
    floor.node.clock.mono = lambda: floor.clock_ns
    left.look(floor.node)
    tell(floor, 1)
    left.look(floor.node)
    await asyncio.sleep(0.02)
    assert not removed


async def test_they_stay_where_its_image_was_dropped(floor: Any, removed: list[Any]) -> None:
    left = leave(floor, is_whole=False)
    tell(floor, 1)
    left.look(floor.node)
    await asyncio.sleep(0.02)
    assert not removed


async def test_they_stay_where_it_is_back_by_then(floor: Any, removed: list[Any]) -> None:
    left = leave(floor)
    floor.node.residents[JobKey(1, 1)] = hooked(floor, 2)
    tell(floor, 1)
    left.look(floor.node)
    await asyncio.sleep(0.02)
    assert not removed


async def test_the_next_gandivad_knows_them(floor: Any) -> None:
    resident = hooked(floor)
    resident.image.along, resident.image.has_card = FILES, True
    (row,) = json.loads(json.dumps(state_of(floor.node)))["jobs"]
    again, _ = read_job(row, "n1")
    assert (again.image.along, again.image.has_card) == (FILES, True)
