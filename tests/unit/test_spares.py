"""Images that jobs were restored from, for a start that a killed slurmctld has forgotten."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import elsewhere, images, spares
from gandiva_slurm.node.elsewhere import NO_TASK
from gandiva_slurm.node.image_state import Image
from gandiva_slurm.node.restorer import Restorer
from gandiva_slurm.node.spares import OVER_NS, SPARE_NS, Spares
from tests.unit.test_kept_images import BY, ME, sealed, take

KEY = JobKey(7, 2)


class Node:
    """As much of a node's jobs as is looked at."""

    def __init__(self) -> None:
        self.dropped: list[JobKey] = []
        self.spares = Spares(self.dropped.append)
        self.job: Any = SimpleNamespace(image=Image(spare_until_ns=SPARE_NS), is_ending=False)
        self.residents = {KEY: self.job}

    def look(self, now_ns: int, live: set[int] | None = frozenset({7})) -> list[JobKey]:  # type: ignore[assignment]
        self.spares.look(self.residents, live, now_ns)
        return self.dropped


def test_it_is_dropped_when_slurm_has_written_the_start_down() -> None:
    node = Node()
    assert node.look(0) == [] and node.look(SPARE_NS - 1) == []
    assert node.look(SPARE_NS) == [KEY] and node.job.image.spare_until_ns == 0
    assert node.look(100 * OVER_NS, set()) == [KEY], "once"


def test_it_is_not_while_another_image_is_made_or_its_job_ends() -> None:
    node = Node()
    node.job.image.is_whole = True
    assert node.look(SPARE_NS) == []
    node.job.image.is_whole, node.job.is_ending = False, True
    assert node.look(2 * SPARE_NS) == []


def test_one_of_a_job_that_ended_stays_while_anybody_tells_of_the_job() -> None:
    node = Node()
    node.look(0)
    node.residents = {}
    late_ns = 100 * OVER_NS
    assert node.look(late_ns) == [], "it waits to be started"
    assert node.look(2 * late_ns, None) == [], "the controller is silent"
    assert node.look(2 * late_ns + OVER_NS - 1, set()) == []
    assert node.look(2 * late_ns + OVER_NS, set()) == [KEY], "it is over"


def test_a_claimed_image_says_of_which_job_it_was(tmp_path: Path) -> None:
    images.prepare(store := tmp_path / "images")
    sealed(store, key=KEY)
    begun = images.new_work(store, KEY, BY, ME, os.getgid())
    used = take(store, KEY, BY)
    assert (images.claimed(used), images.claimed(begun)) == ({KEY}, set())


def find(store: Path, key: JobKey) -> tuple[JobKey, dict[str, Any]] | None:
    """What a start of this incarnation goes on from."""
    plan = SimpleNamespace(jobs=(SimpleNamespace(key=key, job_id=key.job_id, uid=ME, name="job"),))
    node: Any = SimpleNamespace(plan=plan, settings=SimpleNamespace(image_dir=store))
    return Restorer(node, None, None, None)._find(key, ME)  # type: ignore[arg-type]


@pytest.mark.parametrize("restart, finds", [(2, True), (3, False), (1, False)])
def test_it_is_of_the_same_incarnation_alone(tmp_path: Path, restart: int, finds: bool) -> None:
    images.prepare(store := tmp_path / "images")
    sealed(store, key=JobKey(7, 1))
    images.pass_on(store, take(store, JobKey(7, 1), BY), JobKey(7, 1), KEY, is_spare=True)
    found = find(store, JobKey(7, restart))
    assert (found is not None) == finds
    assert not finds or (found and found[0] == KEY and images.pages_of(found[1], KEY) == JobKey(7, 1))
    assert os.getuid() == ME


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_start_that_is_forgotten_finds_it_where_images_are_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_parked: bool
) -> None:
    images.prepare(store := tmp_path / "images")
    sealed(store, key=JobKey(7, 1))
    running = elsewhere.Restore(JobKey(7, 1), take(store, JobKey(7, 1), BY), NO_TASK, NO_TASK)
    settings = SimpleNamespace(image_dir=store, image_parked=is_parked)
    node: Any = SimpleNamespace(settings=settings, clock=SimpleNamespace(mono=lambda: 5))
    job: Any = SimpleNamespace(key=KEY, image=Image())
    monkeypatch.setattr(elsewhere.kept_images, "done", lambda resident: 3)
    elsewhere.keep(node, job, running)
    assert images.place_of(store, KEY).exists() and job.image.spare_until_ns == 5 + SPARE_NS


def test_one_that_was_kept_is_no_later_incarnation_s_when_its_job_ends_at_once(tmp_path: Path) -> None:
    """Its user has requeued it: it begins anew, as where images are not kept."""
    images.prepare(store := tmp_path / "images")
    sealed(store, key=KEY)
    spares.make(store, KEY)
    (images.place_of(store, KEY) / images.RETOLD).write_text("a killed gandivad's")
    images.verify(images.place_of(store, KEY), KEY, images.read(store, KEY, ME))
    assert [find(store, JobKey(7, restart)) is not None for restart in (2, 3)] == [True, False]
    spares.drop(store, KEY)
    assert not images.has_any(store, 7)
