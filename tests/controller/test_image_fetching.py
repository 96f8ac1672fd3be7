"""A node fetches the image of a job that starts there from the one that it has left: once, and whole."""

import asyncio
import dataclasses
import json
import os
from pathlib import Path

import aiohttp
import pytest

from gandiva_slurm.controller.image_places import ImagePlaces
from gandiva_slurm.model.errors import PeerBusy, PeerError
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import fetching, handing, images, restorer
from gandiva_slurm.node.binding import Peer
from gandiva_slurm.node.procs import ProcId
from gandiva_slurm.node.report import make_report
from gandiva_slurm.wire import http, image
from gandiva_slurm.wire.door import open_door
from gandiva_slurm.wire.messages import NodePlan, PlannedJob, encode
from tests.controller.plain_signer import PlainSigner
from tests.patience import slowness
from tests.ports import free_port
from tests.unit.test_images import KEY, ME, sealed
from tests.unit.test_node_leaving import Floor

FILES = {"pages": os.urandom(70_000), "core": b"c", "empty": b""}
NEXT = JobKey(KEY.job_id, KEY.restart + 1)
S = 10**9


class Two:
    """The node that has the image, and the one that wants it."""

    def __init__(self, tmp_path: Path, session: aiohttp.ClientSession) -> None:
        (tmp_path / "n1").mkdir()
        (tmp_path / "n2").mkdir()
        self.old, self.new = Floor(tmp_path / "n1"), Floor(tmp_path / "n2")
        for name, floor in (("n1", self.old), ("n2", self.new)):
            root = tmp_path / name / "images"
            images.prepare(root)
            told = {"node": name, "image_dir": root, "are_images_fetched": True}
            told["obeyed_uids"] = frozenset({0})
            floor.node.settings = dataclasses.replace(floor.node.settings, **told)
        self.hander, self.session = handing.Hander(self.old.node), session
        self.address = f"127.0.0.1:{free_port()}"
        self.fetch = fetching.fetcher(self.new.node, session, PlainSigner(0))

    @property
    def here(self) -> Path:
        """Where the image is at its old node."""
        return self.old.node.settings.image_dir

    @property
    def there(self) -> Path:
        """Where it comes to."""
        return self.new.node.settings.image_dir

    async def serve(self, allow=lambda uid: uid == 0):
        """Have the old node answer."""
        route = http.signed_route(PlainSigner(0), allow, lambda payload, _: self.hander.answer(payload))
        return await open_door({image.IMAGE_PATH: route}, "127.0.0.1", int(self.address.split(":")[1]))

    async def ask(self, **fields) -> tuple[str, str, bytes]:
        """Ask the old node as another, `node`."""
        question = image.ImageQuestion(fields.pop("node", "n3"), *KEY, ME, **fields)
        return image.decode_image_answer(await self.hander.answer(encode(question)))

    def left(self) -> list[str]:
        """What lies in the two stores, but for what is being removed."""
        return [path.name for root in (self.here, self.there) for path in (root / "whole").iterdir()]


@pytest.fixture
async def two(tmp_path, monkeypatch):
    monkeypatch.setattr(handing, "PART_BYTES", 30_000)
    async with aiohttp.ClientSession() as session:
        made = Two(tmp_path, session)
        door = await made.serve()
        yield made
        await door.cleanup()


async def until(holds) -> None:
    async with asyncio.timeout(20 * slowness()):
        while not holds():
            await asyncio.sleep(0.01)


async def test_it_comes_whole_and_is_gone_where_it_was(two):
    sealed(two.here, **FILES)
    two.old.node.images = {KEY}
    assert make_report(two.old.node).images == (tuple(KEY),)
    assert await two.fetch(KEY, ME, two.address) == ""
    place = images.place_of(two.there, KEY)
    images.verify(place, KEY, images.read(two.there, KEY, ME))
    assert {name: (place / name).read_bytes() for name in FILES} == FILES
    assert (place / "pages").stat().st_mode & 0o777 == 0o444
    await until(lambda: two.left() == [str(KEY)])
    assert make_report(two.old.node).images == () and not images.has_any(two.here, KEY.job_id)
    assert "cannot be read" in await two.fetch(KEY, ME, two.address)


async def test_one_node_claims_it_and_no_other_has_it(two):
    sealed(two.here, **FILES)
    state, _, manifest = await two.ask(node="n3")
    assert state == image.HERE and json.loads(manifest)["job"] == str(KEY)
    assert await two.ask(node="n3") == (state, "", manifest), "an answer that was lost is given again"
    assert "node n3 has claimed it" in await two.fetch(KEY, ME, two.address)
    assert len(two.left()) == 1 and not images.has_any(two.here, KEY.job_id)


async def test_what_lives_there_still_is_waited_for(two):
    """Its node may have it go on: an image is of what has ended."""
    sealed(two.here, **FILES)
    two.old.node.residents[KEY] = two.old.train(KEY.job_id)
    coming = asyncio.ensure_future(two.fetch(KEY, ME, two.address))
    for _ in range(3):
        assert (await two.ask())[0] == image.LATER
    assert not coming.done() and images.has_any(two.here, KEY.job_id)
    two.old.node.residents.clear()
    assert await coming == ""


async def test_another_users_none_and_those_of_a_shared_store_are_not_given(two):
    assert "cannot be read" in await two.fetch(KEY, ME, two.address)
    sealed(two.here, **FILES)
    assert "another job's" in await two.fetch(KEY, ME + 1, two.address)
    two.old.node.settings = dataclasses.replace(two.old.node.settings, are_images_fetched=False)
    assert "no node fetches images" in await two.fetch(KEY, ME, two.address)
    assert images.has_any(two.here, KEY.job_id) and not list((two.there / "whole").iterdir())


async def test_only_daemons_are_answered(two, tmp_path):
    sealed(two.here, **FILES)
    stranger = fetching.fetcher(two.new.node, two.session, PlainSigner(1001))
    assert "uid 1001 may not call" in await stranger(KEY, ME, two.address)
    assert images.has_any(two.here, KEY.job_id)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "manifest.json", ".", "", "a" * 300, "link"])
async def test_nothing_but_its_files_can_be_read(two, name):
    sealed(two.here, **FILES)
    await two.ask()
    (place,) = (two.here / "whole").iterdir()
    (place / "link").symlink_to("/etc/passwd")
    question = image.ImageQuestion("n3", *KEY, ME, name or "x", 0)
    with pytest.raises(PeerError, match=r"no part of an image|cannot be read"):
        await two.hander.answer(encode(question))
    with pytest.raises(PeerError, match="no part of an image"):
        await two.hander.answer(encode(dataclasses.replace(question, file="pages", offset=-1)))


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (lambda raw: raw | {"files": {"../../x": [1, "d"]}}, "not understood"),
        (lambda raw: raw | {"files": {"pages": ["1", "d"]}}, "not understood"),
        (lambda raw: raw | {"files": {"pages": [-1, "d"]}}, "not understood"),
        (lambda raw: raw | {"files": []}, "does not say"),
        (lambda raw: raw | {"files": {"pages": [1 << 40, "d"]}}, "image_most_gib"),
        (lambda raw: raw | {"files": {"pages": [10**6, "d"]}}, "not as long as was told"),
        (lambda raw: raw | {"files": {"pages": [10, "d"]}}, "not as long as was told"),
    ],
)
async def test_a_node_that_lies_of_it_leaves_nothing_behind(two, lie, told):
    place = sealed(two.here, **FILES)
    raw = json.loads((place / images.MANIFEST).read_text())
    (place / images.MANIFEST).write_text(json.dumps(lie(raw)))
    assert told in await two.fetch(KEY, ME, two.address)
    assert not list((two.there / "whole").iterdir())


async def test_a_full_disk_and_a_node_that_goes_leave_nothing_behind(two, monkeypatch):
    sealed(two.here, **FILES)
    monkeypatch.setattr(images, "SPARE", 1 << 60)
    assert "free" in await two.fetch(KEY, ME, two.address)
    monkeypatch.undo()
    monkeypatch.setattr(handing, "PART_BYTES", 30_000)
    asked = []

    async def gone(payload):
        asked.append(payload)
        if len(asked) > 2:
            raise OSError("gone")
        return await handing.Hander.answer(two.hander, payload)

    monkeypatch.setattr(two.hander, "answer", gone)
    assert await two.fetch(KEY, ME, two.address)
    assert len(asked) == 3 and not list((two.there / "whole").iterdir())


async def test_what_is_whole_here_is_here_though_the_other_node_is_gone_by_then(two, monkeypatch):
    sealed(two.here, **FILES)

    async def gone(payload):
        if image.decode_image_question(payload).is_had:
            raise OSError("gone")
        return await handing.Hander.answer(two.hander, payload)

    monkeypatch.setattr(two.hander, "answer", gone)
    assert await two.fetch(KEY, ME, two.address) == ""
    images.verify(images.place_of(two.there, KEY), KEY, images.read(two.there, KEY, ME))


async def test_a_node_that_asks_no_more_has_given_it_up(two, monkeypatch):
    sealed(two.here, **FILES)
    monkeypatch.setattr(handing, "SILENT_S", 0.2)
    await two.ask(node="n3")
    await until(lambda: two.left() == [])
    assert (await two.ask(node="n3", file="pages"))[0] == image.NONE


def a_planned(key: JobKey, **fields) -> PlannedJob:
    return PlannedJob(*key, "user1", ME, (0,), 1, 0, "job", **fields)


def test_the_plan_says_where_it_is(two_reports):
    places, config = two_reports
    assert places.named(a_planned(NEXT), "n2", config).image_at == "10.0.0.1:7000"
    assert places.named(a_planned(NEXT), "n1", config).image_at == "", "it is there"
    assert places.named(a_planned(KEY), "n2", config).image_at == "", "it is of that very incarnation"
    later = a_planned(JobKey(KEY.job_id, KEY.restart + 2))
    assert places.named(later, "n2", config).image_restart == KEY.restart, "its target was lost meanwhile"
    places.forget("n1")
    assert places.named(a_planned(NEXT), "n2", config).image_at == ""


@pytest.fixture
def two_reports(tmp_path):
    class Config:
        def node_address(self, name):
            return {"n1": "10.0.0.1"}[name], 7000

    floor = Floor(tmp_path)
    floor.node.images = {KEY}
    places = ImagePlaces()
    places.note(dataclasses.replace(make_report(floor.node), node="n1"))
    places.note(dataclasses.replace(make_report(floor.node), node="n2", images=()))
    return places, Config()


async def test_a_task_waits_until_it_is_there_and_begins_anew_where_it_does_not_come(two, monkeypatch):
    monkeypatch.setattr(restorer, "batch_job_above", lambda pid: KEY.job_id)
    outcome, began = asyncio.get_running_loop().create_future(), []

    async def fetch(key, uid, address):
        began.append((key, uid, address))
        return await outcome

    asked = restorer.Restorer(two.new.node, two.new.slicer, two.new.watcher, fetch)
    peer = Peer(ProcId(os.getpid(), 1), ME)
    assert not await asked.offers(peer)
    planned = a_planned(NEXT, image_at=two.address, image_restart=KEY.restart)
    two.new.node.plan = NodePlan("n2", 1, 1, S, 1, (planned,), (), "", 0)
    assert await asked.offers(peer)
    two.new.node.residents[NEXT] = two.new.add(8, "user1", (0,))
    for _ in range(2):
        with pytest.raises(PeerBusy, match="fetched from the node that it has left"):
            asked.ask(peer, NEXT)
        await asyncio.sleep(0)
    assert began == [(KEY, ME, two.address)]
    outcome.set_result("n1: it is gone")
    await until(lambda: asked._fetching[NEXT][0].done())
    assert asked.ask(peer, NEXT) == {}
