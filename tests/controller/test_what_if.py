"""`gandiva when --if`: asked of a child, one at a time, whatever the child does."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from gandiva_slurm.cli import forecast as making
from gandiva_slurm.controller import api as controller_api
from gandiva_slurm.controller import what_if
from gandiva_slurm.controller.what_if import WhatIf
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.model.wish import Wish, parse_wish
from gandiva_slurm.sim.forecast.granting import grant
from tests.builders import a_job
from tests.controller.test_controller_api import ask, data, running  # noqa: F401
from tests.unit.test_forward import NOW_NS, engine

WISH = Wish(12, "tickets", "200")


def child(code: str) -> WhatIf:
    return WhatIf(Path("gandiva.yaml"), Path("/nowhere"), (sys.executable, "-c", f"import sys, time\n{code}"))


async def test_it_is_told_the_job_and_the_wish_as_words():
    told = await child("import json; print(json.dumps({'words': sys.argv[1:]}))").ask(WISH)
    assert told == {"words": ["-f", "gandiva.yaml", "forecast", "--if", "12", "tickets=200"]}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("time.sleep(60)", "no answer within 0.5 s"),
        ("while True: print('x' * 100000)", "the answer is too long"),
        ("print('[' * 100000)", "no answer: see"),
        ("sys.exit(1)", "no answer: see"),
        ("print('[1]')", "no answer: see"),
        ("print('{\"error\": \"job 12 has begun\"}')", "job 12 has begun"),
    ],
)
async def test_one_that_hangs_floods_or_fails_is_ended_and_said(code, said, monkeypatch):
    monkeypatch.setattr(what_if, "DEADLINE_S", 0.5 if "sleep" in code else 30.0)
    asked = child(code)
    for _ in range(2):  # the next may ask again
        with pytest.raises(GandivaError, match=said):
            await asked.ask(WISH)


async def test_one_at_a_time(monkeypatch):
    asked = child("time.sleep(60)")
    first = asyncio.create_task(asked.ask(WISH))
    await asyncio.sleep(0)
    with pytest.raises(GandivaError, match="another --if is being answered"):
        await asked.ask(WISH)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not asked._is_asked


async def test_of_jobs_not_submitted_yet_a_users_questions_wait_for_each_other(monkeypatch):
    """Others' do not; a fifth of one user's is refused, and the next is not."""
    asked, gates = WhatIf(Path("gandiva.yaml"), Path("/nowhere")), [asyncio.Event(), asyncio.Event()]
    begun: list[int] = []

    async def worked_out(self, job, text):
        uid = json.loads(text)["uid"]
        begun.append(uid)
        await gates[uid].wait()
        return {"of": len(begun)}

    monkeypatch.setattr(WhatIf, "_by_child", worked_out)
    waiting = [asyncio.create_task(asked.ask_new("gpus=1", 0, "gpu")) for _ in range(what_if.MOST_NEW)]
    await asyncio.sleep(0.05)
    assert begun == [0]
    with pytest.raises(GandivaError, match="4 other --new of yours wait"):
        await asked.ask_new("gpus=1", 0, "gpu")
    gates[1].set()
    assert await asked.ask_new("gpus=1", 1, "gpu") == {"of": 2}
    waiting.pop().cancel()
    gates[0].set()
    assert [one["of"] for one in await asyncio.gather(*waiting)] == [2, 3, 4]
    assert not asked._turns
    assert await asked.ask_new("gpus=1", 0, "gpu") == {"of": 5}


async def test_of_a_job_that_is_not_submitted_yet_its_user_is_told(world, ask, monkeypatch):  # noqa: F811
    await running(world, "user1", 2)
    await world.cycles(3)
    monkeypatch.setattr(making, "_bound", lambda: None)
    words: list[str] = []

    async def worked_out(self, job, text):
        words[:] = [job, text]
        return making._what_if(world.controller.config, job, text)

    monkeypatch.setattr(WhatIf, "_by_child", worked_out)
    assert (await ask("when", new="gpus=1"))["ok"], "nobody is asked: one job's, or all"
    made = WhatIf(Path("gandiva.yaml"), Path("/nowhere"))
    here = property(lambda api: made, lambda api, value: None)
    monkeypatch.setattr(controller_api.Api, "what_if", here, raising=False)
    for text, word in (("gpus=1,limit=600", "start"), ("gpus=4096,nodes=1", "why")):
        told = await data(ask, "when", new=text)
        assert told["new"][word] and told["forecast"]["runs"] >= 1, told
    assert words[0] == what_if.NEW and json.loads(words[1])["uid"] is not None
    assert "invalid --new" in (await ask("when", new="gpus=x"))["error"]


async def test_what_would_be_is_worked_out_beside_what_is(world, ask, monkeypatch):  # noqa: F811
    one = await running(world, "user1", 2)
    waits = world.slurm.submit("user2", 64)
    await world.cycles(3)
    monkeypatch.setattr(making, "_bound", lambda: None)
    monkeypatch.setattr(making, "WISH_S", 0.3)
    told = making._what_if(world.controller.config, str(waits), "gpus=1")
    assert "64 GPUs" in told["now"]["why"] and told["then"]["end"] and not told["then"]["why"]
    assert "has begun" in making._what_if(world.controller.config, str(one), "type=v100")["error"]
    assert "no job 999" in making._what_if(world.controller.config, "999", "gpus=1")["error"]
    answer = await ask("when", job_ids=[one], **{"if": "tickets=x"})
    assert "`if` is for one job" in answer["error"]
    assert (await data(ask, "when", job_ids=[one]))["jobs"]


@pytest.mark.parametrize(
    "text", ["", "tickets", "tickets=", "tickets=0", "tickets=1001", "tickets=-1", "gpus=1e3", "gpus=²",
             "type=", "priority=3", "type=a\nb", "tickets=" + "9" * 5000, "type=" + "x" * 65],
)  # fmt: skip
def test_a_wish_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="invalid --if"):
        parse_wish(12, text)


def test_wishes_are_granted():
    it, work = engine(a_job(1), a_job(2, gpus=4), gpus=2), {1: 100, 2: 100}
    grant(Wish(2, "gpus", "2"), it, work, NOW_NS)
    grant(Wish(2, "tickets", "7"), it, work, NOW_NS)
    options = it.jobs[2].options
    assert (options.gpus, options.tickets, work[2]) == (2, 7, 201)
    grant(Wish(2, "type", "k80"), it, work, NOW_NS)
    assert it.jobs[2].options.gpu_type == "k80" and json.dumps(work)
    with pytest.raises(GandivaError, match="has begun"):
        grant(Wish(1, "type", "k80"), it, work, NOW_NS)
