"""A bad policy: refused with a sentence, `gandiva check` and `why` say so, and the cluster goes on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.cli import check
from gandiva_slurm.controller import bounded
from gandiva_slurm.controller.api import Api
from gandiva_slurm.controller.privacy import read_rules
from gandiva_slurm.engine.apply import decider as deciders
from gandiva_slurm.engine.apply.decider import Leader
from gandiva_slurm.engine.invariants import no_job_is_lost, violations
from gandiva_slurm.model import span
from gandiva_slurm.policy.port import Plan, Policy, View
from tests import patience
from tests.controller.fakes import World

#: On a quiet machine: for how long a decision stands, beside no quantum; how long a policy may think.
LEASE_S, LIMIT_S = 5.0, 1.0
GIB = 1 << 30
OWN_TURNS = r"no decision of the policy for \d+ s: turns are each node's own meanwhile"


class MayBeBad:
    """Has the job with the lowest number hold the first GPU, until it is told to answer something else."""

    name = "maybe"
    fits_memory = True
    answer: Callable[[View], Plan] | None = None

    def decide(self, view: View) -> Plan:
        if self.answer is not None:
            return self.answer(view)
        homeless = [job_id for job_id, job in view.jobs.items() if not job.gpus]
        first = [*homeless, *sorted(view.jobs)][:1]
        return Plan(dict.fromkeys(first, (0,)), view.now_ns + 1)


def live(view: View) -> list[int]:
    """The jobs that live on the GPU, and those that wait."""
    return sorted(view.jobs, key=lambda job_id: (not view.jobs[job_id].gpus, job_id))


def a_gpu_twice(view: View) -> Plan:
    return Plan(dict.fromkeys(live(view)[:3], (0,)))


def a_host_it_may_not_use(view: View) -> Plan:
    return Plan({live(view)[-1]: (1,)})


def a_job_that_ended(view: View) -> Plan:
    return Plan({live(view)[0]: (0,), 101: (0,)})


def a_pair_that_does_not_fit(view: View) -> Plan:
    return Plan(dict.fromkeys(live(view)[:2], (0,)))


def raises(view: View) -> Plan:
    raise ValueError("no idea")


def takes_30_s(view: View) -> Plan:
    time.sleep(30)
    return Plan({})


def returns_nothing(view: View) -> Plan:
    return None  # type: ignore[return-value]


BAD = [
    (a_gpu_twice, "two jobs may share all their GPUs, not more jobs"),
    (a_host_it_may_not_use, "it may not use that node"),
    (a_job_that_ended, "puts job 101 on GPUs [0]: there is no such live job"),
    (a_pair_that_does_not_fit, "are not known to fit into its memory together"),
    (raises, "fails: ValueError: no idea"),
    (takes_30_s, "took more than {limit_s:g} s; it begins anew"),
    (returns_nothing, "answers NoneType, not a plan"),
]


class Led(World):
    """One GPU on which three jobs live, by turns, and a node that takes no new jobs."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, {"n1": 1, "n2": 1})
        self.quantum_s, self.mind = 0.3, MayBeBad()
        self.limit_s = round(LIMIT_S * patience.slowness(), 1)
        self.fleet["n1"].facts = {"card_bytes": 16 * GIB, "peak_bytes": 12 * GIB}
        self.slurm.nodes["n2"] = replace(self.slurm.nodes["n2"], state=frozenset({"IDLE", "DRAIN"}))
        self.jobs: list[int] = []

    def ask(self, policy: Policy, view: View) -> Plan:
        return bounded.ask(policy, view, self.limit_s)

    async def fill(self) -> None:
        """Of one job that has ended nothing is left, three others live there, the first of them is on."""
        controller = await self.start()
        controller.engine.lead(Leader(lambda: self.mind, {"policy": "maybe"}, self.ask))
        gone = self.slurm.submit("user1")
        await self.until(lambda: self.runs(gone))
        self.slurm.finish(gone)
        for user in ("user1", "user2", "user3"):
            job = self.slurm.submit(user)
            await self.until(lambda job=job: self.lives(job))  # type: ignore[misc]
            self.jobs.append(job)
        await self.until(lambda: turns(self) == self.first_on(), "the first to be on")

    def first_on(self) -> dict[int, bool | None]:
        """Turns by its good plan."""
        return {job: job == self.jobs[0] for job in self.jobs}


@pytest.fixture
async def led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Led]:
    """At its end no invariant is broken."""
    monkeypatch.setattr(span, "LEASE_QUANTA", 0)
    monkeypatch.setattr(span, "LEASE_NS", round(LEASE_S * patience.slowness() * 1e9))
    monkeypatch.setattr(deciders, "REST_NS", round(1e9))
    made = Led(tmp_path)
    await made.fill()
    yield made
    await made.kill()
    assert violations(made.controller.engine) == []
    assert no_job_is_lost(made.controller.engine.state, dict.fromkeys(made.live(), 0)) == []


def turns(world: World) -> dict[int, bool | None]:
    """What the node was last told."""
    plan = world.fleet["n1"].plan
    return {job.job_id: job.is_on for job in plan.jobs} if plan is not None else {}


async def told(world: World, ask: str, **args: Any) -> Any:
    """What the command line is told."""
    api = Api(world.controller, frozenset({0}), lambda: read_rules(world.slurm))
    return json.loads(await api.answer(json.dumps({"ask": ask, "args": args}).encode(), 0))["data"]


async def evidence(world: World, job: int) -> list[str]:
    """What `gandiva why` says beside the reason."""
    return [*(await told(world, "why", job_id=job))["evidence"]]


async def checked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `gandiva check` says of the daemons."""
    answers = {ask: await told(world, ask) for ask in ("ping", "nodes")}
    monkeypatch.setattr(check, "query", lambda config, ask, args: answers[ask])
    return [finding.text for finding in check._daemons(None, {})]


@pytest.mark.parametrize(("answer", "fault"), BAD, ids=[answer.__name__ for answer, _ in BAD])
async def test_a_bad_policy_is_refused_and_the_cluster_goes_on(
    led: Led, answer: Callable[[View], Plan], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = fault.format(limit_s=led.limit_s)
    led.mind.answer = answer

    def said() -> str:
        return next((sentence for sentence in led.controller.troubles if fault in sentence), "")

    await led.until(said, "the plan to be refused")
    sentence = said()
    assert sentence.startswith("policy maybe ")
    assert sentence.endswith("; its last good plan stays") and turns(led) == led.first_on()
    assert any(sentence in line for line in await checked(led, monkeypatch))
    for job in led.jobs:
        assert sentence in await evidence(led, job)
    assert all("n2" not in job.nodes for job in led.slurm.jobs.values())

    await led.until(lambda: {*turns(led).values()} == {None}, "turns to be left to the node")
    refused = said()
    assert any(re.fullmatch(OWN_TURNS, told) for told in led.controller.troubles) and refused
    for lines in (await evidence(led, led.jobs[1]), await checked(led, monkeypatch)):
        assert any(refused in line for line in lines) and any(re.search(OWN_TURNS, line) for line in lines)

    late = led.slurm.submit("user1")
    led.slurm.finish(led.jobs[2])
    await led.until(lambda: led.state(led.jobs[2]) == "ENDED" and led.state(late) == "HELD", "it to go on")
    led.mind.answer = None
    await led.until(lambda: led.lives(late), "the next good plan")
    await led.until(lambda: not led.controller.troubles, "nothing to be wrong")
    assert await checked(led, monkeypatch) == []
    assert all(led.lives(job) for job in (*led.jobs[:2], late))


async def test_where_slurm_is_away_it_is_said_whose_the_turns_are(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    led.slurm.is_down = True
    await led.until(lambda: {*turns(led).values()} == {None}, "turns to be left to the node")
    (own,) = led.controller.troubles
    assert re.fullmatch(OWN_TURNS, own)
    for lines in (await evidence(led, led.jobs[0]), await checked(led, monkeypatch)):
        assert any(re.search(OWN_TURNS, line) for line in lines)
    led.slurm.is_down = False
    await led.until(lambda: not led.controller.troubles, "the policy to decide again")
