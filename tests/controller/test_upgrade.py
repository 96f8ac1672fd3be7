"""What daemons of an older release left, jobs running, is read by today's: no job lost, none charged twice.

tests/data/upgrade-e824e5a/README.md says how it was recorded; tests/cluster/test_upgrade.py has the same on a
real cluster.
"""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.config import Config, load_config, outdated
from gandiva_slurm.controller.journal import Journal
from gandiva_slurm.controller.settings import engine_settings, leader
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import clock, context
from gandiva_slurm.node.adopt import Adoption
from gandiva_slurm.node.context import Node
from gandiva_slurm.node.planning import Planning
from gandiva_slurm.node.settings import NodeSettings
from gandiva_slurm.node.slicer import Slicer
from gandiva_slurm.node.watch import Watcher
from gandiva_slurm.wire.messages import Hold
from tests.controller.fakes import World
from tests.records import read_lines

LEFT = Path(__file__).parents[1] / "data/upgrade-e824e5a"
TRUTH = json.loads((LEFT / "truth.json").read_text())
#: GPUs of each node, by type
NODES = {"n1": "v100", "n2": "v100", "n3": "k80"}
RUNNING = {row["job_id"]: row for row in TRUTH["slurm"] if row["state"] == "RUNNING"}
#: The order of the states in which jobs live on GPUs.
LIVE = ("RUNNING", "SUSPENDED", "RESUMING", "SUSPENDING")
#: What its gandiva.yaml says of what the policy decides now.
UNUSED = {
    "moves": ("at_once", "balance_percent", "faster_percent"),
    "packing": ("trial_quanta", "retry_s"),
}


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(LEFT, tmp_path / "left"))


def config_of(left: Path) -> Config:
    """Its gandiva.yaml, with directories where the copy lies."""
    text = (left / "gandiva.yaml").read_text()
    old = text.partition("state_dir: ")[2].partition("/spool/")[0] + "/spool"
    (left / "gandiva.yaml").write_text(text.replace(old, str(left)))
    (left / "gandiva.yaml").chmod(0o644)
    return load_config(left / "gandiva.yaml")


def engine_of(left: Path, config: Config) -> Engine:
    """The engine of its journal."""
    with closing(Journal.open(left / "gandivactld/journal.sqlite")) as journal:
        state = journal.engine_state()
    assert state is not None
    return Engine.from_json(engine_settings(config), state, leader(config))


def holds_left(left: Path, node: str) -> list[Hold]:
    """All holds that a node has closed, acknowledged or not."""
    rows = read_lines(left / "gandivad" / node / "holds.jsonl")
    return [Hold(**(row | {"gpus": tuple(row["gpus"])})) for row in rows]


def test_its_configuration_is_read_and_what_has_no_effect_any_more_is_told(
    left: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = config_of(left)
    assert config.policy == "gandiva_fair" and config.moves.deadline_s == 60 and not config.packing.enabled
    told = outdated(left / "gandiva.yaml")
    for key in (f"{section}.{key}" for section, keys in UNUSED.items() for key in keys):
        sentence = f"{key} has no effect any more, the policy decides: leave it out"
        assert sentence in caplog.text and any(sentence in line for line in told)


def test_all_jobs_are_in_its_journal_where_they_lived(left: Path) -> None:
    jobs = engine_of(left, config_of(left)).jobs
    assert {job_id for job_id, record in jobs.items() if record.state in LIVE} == RUNNING.keys()
    for job_id, row in RUNNING.items():
        assert jobs[job_id].places == {row["node"]: (0,)} and jobs[job_id].job.restart == row["restart"]
    assert jobs[TRUTH["moved"]].job.restart == 1 and jobs[TRUTH["waiting"]].state == "HELD"


class Upgraded(World):
    """Today's gandivactld on what the older one left, among the same Slurm jobs and nodes."""

    def __init__(self, left: Path, tmp_path: Path) -> None:
        super().__init__(tmp_path, dict.fromkeys(NODES, 1))
        self.read = config_of(left)
        self.state_dir = left / "gandivactld"
        for name, kind in NODES.items():
            self.slurm.nodes[name] = replace(self.slurm.nodes[name], gpu_type=kind)
        jobs = engine_of(left, self.read).jobs
        for row in TRUTH["slurm"]:
            job, nodes = jobs[row["job_id"]].job, tuple(filter(None, [row["node"]]))
            told = {"state": row["state"], "restart": row["restart"]}
            self.slurm.jobs[job.job_id] = replace(job, nodes=nodes, **told)
        for name, node in self.fleet.items():
            ledger = json.loads((left / "gandivad" / name / "state.json").read_text())["ledger"]
            node.boot, node.closed = ledger["boot"], holds_left(left, name)
            holds = {JobKey.parse(key).job_id for key in ledger["open"]}
            # A job that waits is in no state there yet: started, it would be reported suspended for ever.
            node.states = {job_id: "RUNNING" if job_id in holds else "SUSPENDED" for job_id in RUNNING}

    def config(self) -> Config:
        return self.read

    def charged(self) -> dict[int, int]:
        """GPU time of each job in the ledger, in ns."""
        query = "SELECT job_id, sum((t1_ns - t0_ns) * gpu_count) FROM holds GROUP BY job_id"
        with closing(sqlite3.connect(self.state_dir / "ledger.sqlite")) as db:
            return dict(db.execute(query))


@pytest.fixture
async def upgraded(left: Path, tmp_path: Path) -> Any:
    made = Upgraded(left, tmp_path)
    yield made
    await made.kill()
    assert made.controller.status.errors == 0, made.controller.status.last_error


def has_all(charged: Mapping[int, int], want: Mapping[int, int]) -> bool:
    """True when each job is charged what it held, or more."""
    return all(charged.get(job_id, 0) >= held_ns for job_id, held_ns in want.items())


async def test_each_job_goes_on_where_it_was_and_each_hold_is_charged_once(
    upgraded: Upgraded, caplog: pytest.LogCaptureFixture
) -> None:
    """The nodes report all holds again, also those that the ledger has; and again after another kill."""
    want: dict[int, int] = {}
    for node in upgraded.fleet.values():
        for hold in node.closed:
            want[hold.job_id] = want.get(hold.job_id, 0) + (hold.t1_ns - hold.t0_ns) * len(hold.gpus)
    assert upgraded.charged() != want, "the ledger lacks some yet"
    await upgraded.start()
    await upgraded.until(lambda: all(upgraded.state(job) in LIVE for job in RUNNING), "all to live")
    await upgraded.until(lambda: has_all(upgraded.charged(), want), "the ledger to have all")
    assert upgraded.charged() == want
    await upgraded.kill()
    for node in upgraded.fleet.values():
        node.plan = None
    await upgraded.start()
    await upgraded.until(lambda: all(upgraded.state(job) in LIVE for job in RUNNING), "all to live again")
    await upgraded.cycles(3)
    assert upgraded.charged() == want
    for job_id, row in RUNNING.items():
        assert upgraded.controller.engine.jobs[job_id].places == {row["node"]: (0,)}
        assert upgraded.slurm.calls_of(job_id) == [], "whoever runs is left as he is"
    assert upgraded.state(TRUTH["waiting"]) == "HELD"
    assert "cannot be used" not in caplog.text, "nothing is rebuilt"


async def test_the_job_that_waited_is_started_once_when_there_is_room(upgraded: Upgraded) -> None:
    await upgraded.start()
    await upgraded.until(lambda: all(upgraded.state(job) in LIVE for job in RUNNING), "all to live")
    for job, row in RUNNING.items():
        if row["node"] == "n3":
            upgraded.slurm.finish(job)
    await upgraded.until(lambda: upgraded.runs(TRUTH["waiting"]), "its start")
    assert upgraded.slurm.calls_of(TRUTH["waiting"]) == ["start"]


def passes(local: Mapping[str, Any]) -> dict[str, int]:
    """The pass of each user on a node."""
    return {user: passed for user, passed, *_ in local["users"]["accounts"]}


@pytest.mark.parametrize("name", NODES)
async def test_gandivad_knows_all_that_the_one_before_it_knew(
    left: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their processes are gone by now, which ends the jobs: their holds are closed, once."""
    saved = json.loads((left / "gandivad" / name / "state.json").read_text())
    unheard = [hold for hold in holds_left(left, name) if hold.seq > saved["ledger"]["acked"]]
    for module in (clock, context):
        monkeypatch.setattr(module, "host_boot", lambda: saved["host_boot"])
    node = Node(NodeSettings.of(config_of(left), name))
    watcher = Watcher(node, slicer := Slicer(node))
    planning = Planning(node, slicer, watcher)
    Adoption(node, slicer, watcher, planning).run()
    assert "not readable" not in caplog.text and "torn" not in caplog.text
    keys = {JobKey.parse(row["key"]) for row in saved["jobs"]}
    assert keys == node.residents.keys() and node.plan is not None
    assert {(job.job_id, job.restart) for job in node.plan.jobs} == keys
    reported = node.ledger.report(node.clock.mono())
    assert [hold for hold in reported if hold.seq][: len(unheard)] == unheard
    assert {hold.seq for hold in reported if hold.seq}.isdisjoint(range(1, saved["ledger"]["acked"] + 1))
    before, after = passes(saved["local"]), passes(node.local.to_json())
    assert before.keys() == after.keys() and all(after[user] >= before[user] for user in before)
