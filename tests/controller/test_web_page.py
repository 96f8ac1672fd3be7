"""The page of `gandiva web` in Chromium: 50,000 jobs, hostile names, keys, offline and back."""

from __future__ import annotations

import json
import time

import jwt
import pytest

from gandiva_slurm.cli.web import lane, look, main
from gandiva_slurm.cli.web.api import Api
from gandiva_slurm.cli.web.login import SECRET_HEADER, Login
from gandiva_slurm.model.errors import PeerError
from tests import chromium, skips, web_kit
from tests.ports import free_port

SECRET = "0123456789abcdef"
KEY, CLAIMS = b"x" * 32, {"sun": "ann", "exp": time.time() + 36_000}
JOBS = 50_000
pytestmark = pytest.mark.skipif(chromium.CHROMIUM is None, reason=skips.NO_CHROMIUM)


@pytest.fixture
async def site(monkeypatch):
    """The page over a made-up gandivactld, at a port of the loopback."""
    monkeypatch.setattr(look, "RESTS", 0)
    monkeypatch.setattr(lane, "RESTS", 0)
    told = web_kit.Told(JOBS)
    told.port = free_port()
    told.api = Api(told, Login("X-Remote-User", SECRET.encode()))
    door = await main.opened(told.api, f"127.0.0.1:{told.port}")
    yield told
    await door.cleanup()


@pytest.fixture
async def browser(tmp_path, site):
    """Chromium, with the headers that a proxy sets, at the page."""
    heads = {"X-Remote-User": "ann", SECRET_HEADER: SECRET}
    async with chromium.opened(tmp_path, f"http://127.0.0.1:{site.port}/", heads) as made:
        await made.until("document.querySelectorAll('#space .job').length > 5")
        yield made


async def test_what_users_write_is_shown_and_never_run(browser, site):
    await browser.until("document.querySelectorAll('#shares tr').length === 50")
    await browser.value("document.querySelector('details').open = true, at('row-0').click()")
    await browser.until("document.querySelectorAll('#evidence li').length === 6")
    shown = await browser.value("document.body.textContent")
    for text in web_kit.HOSTILE[:5]:
        assert text in shown, text
    assert await browser.value("window.hacked") is None
    own = await browser.value(
        "[...document.querySelectorAll('script,img,style,iframe')].map((one) => one.src)"
    )
    assert own == [f"http://127.0.0.1:{site.port}/page.js"]
    assert browser.complaints == []


async def test_fifty_thousand_jobs_are_a_hundred_rows_and_keys_reach_the_last(browser, site):
    assert await browser.until("at('total').textContent") == f"{JOBS} jobs"
    await browser.value("at('grid').focus()")
    await browser.press("End")
    assert await browser.until(f"at('row-{JOBS - 1}')?.firstChild.textContent !== '...'")
    assert await browser.value(f"at('row-{JOBS - 1}').firstChild.textContent") == str(JOBS)
    assert await browser.value("document.querySelectorAll('#space .job').length") < 100
    told = "[at('grid').getAttribute('aria-rowcount'), at('grid').getAttribute('aria-activedescendant')]"
    assert await browser.value(told) == [str(JOBS + 1), f"row-{JOBS - 1}"]
    await browser.press("ArrowUp")
    await browser.press("Enter")
    await browser.until(f"at('story-title').textContent.startsWith('Job {JOBS - 1} of ')")
    await browser.press("Escape")
    assert await browser.value("at('story').hidden && document.activeElement.id") == "grid"
    await browser.value("at('user').value = 'user7', at('filter').requestSubmit()")
    assert await browser.until(f"at('total').textContent === '{JOBS // 50} jobs'")
    assert browser.complaints == []


async def test_gpus_are_drawn_with_those_who_hold_them(browser):
    label = "document.querySelector('#chart svg')?.getAttribute('aria-label')"
    assert (await browser.until(label)).startswith("6 of 12 GPUs are held")
    titles = "[...document.querySelectorAll('#chart title')].map((one) => one.textContent)"
    shown = await browser.until(titles)
    assert len(shown) == 6 and any(text.startswith("1 (<img") for text in shown)
    assert sum(text.startswith("held, ") for text in shown) == 3
    names = "[...document.querySelectorAll('button,input,select,[role=grid],section')].filter("
    names += "(one) => !(one.textContent || one.labels?.length || one.ariaLabel)).length"
    assert await browser.value(names) == 0, "everything has a name for a screen reader"


async def test_where_a_token_is_asked_for_it_is_typed_and_kept_while_the_page_is_open(tmp_path, site):
    heads = {SECRET_HEADER: "none"}
    site.api.login = Login("X-Remote-User", SECRET.encode(), KEY)
    async with chromium.opened(tmp_path, f"http://127.0.0.1:{site.port}/", heads) as made:
        await made.until("document.getElementById('login')?.hidden === false")
        for token in ("SLURM_JWT=wrong\u202e\u0000", f"SLURM_JWT={jwt.encode(CLAIMS, KEY, 'HS256')}"):
            await made.value(f"at('token').value = {json.dumps(token)}, at('login').requestSubmit()")
            await made.until("at('token').value === ''")
        await made.until("document.querySelectorAll('#space .job').length > 5 && at('login').hidden")
        await made.until("at('state').textContent.startsWith('Seen by ann')")
        assert await made.value("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        assert all("401" in one for one in made.complaints), made.complaints


async def test_while_nothing_answers_the_last_is_shown_as_old_and_then_the_next(browser, site):
    await browser.until("at('state').textContent.startsWith('Seen by ann')")
    site.trouble = PeerError("gandivactld does not answer at ctl1:7321")
    text = await browser.until("at('trouble').textContent")
    assert "does not answer" in text and " s old; trying again" in text
    assert await browser.value("document.querySelectorAll('#space .job').length > 5"), "rows stay"
    assert await browser.value("document.querySelector('main').className") == "old"
    site.trouble = None
    await browser.until("at('trouble').textContent === ''")
    nothing = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await browser.call("Network.emulateNetworkConditions", offline=True, **nothing)
    await browser.until("at('trouble').textContent.startsWith('this browser is offline')")
    await browser.call("Network.emulateNetworkConditions", offline=False, **nothing)
    await browser.until("at('trouble').textContent === ''")
