"""On a real Slurm: what each command prints with --json is what docs/commands.schema.json says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gandiva_slurm.cli.json_shapes import PRINTED
from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, forecast, own_cluster, wait_for


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    with own_cluster("shapes", "v100:1x2", 1.0) as made:
        yield made


def test_each_command_prints_what_is_published(fleet: Fleet) -> None:
    """`doctor` needs no Slurm (tests/attach/test_trial.py), images criu (tests/docker/test_images.py)."""
    job = str(fleet.train("user1", "one"))
    fleet.wait_running(int(job))

    def has_steps() -> bool:
        return any(row["steps"] for row in fleet.ask("acct", "-j", job)["jobs"])

    wait_for(has_steps, "it to be told that it trains")
    forecast(fleet)
    asked = {
        "queue": [], "nodes": [], "acct": ["-a"], "share": [], "why": [job, "--story"], "eff": [job],
        "when": [job], "when --if": [job, "--if", "tickets=200"], "when --new": ["--new", "gpus=1,limit=600"],
        "update": [job, "priority=5"], "report": ["-S", "now-1hour"],
    }  # fmt: skip
    told = {name: fleet.ask(name.split()[0], *words) for name, words in asked.items()}
    assert told["queue"]["jobs"][0]["when"]["end"] and told["why"]["story"] and told["nodes"]["nodes"]
    assert [len(told[name]["jobs"]) for name in ("acct", "eff", "when", "update")] == [1, 1, 1, 1]
    assert told["share"]["users"] and told["report"]["rows"]
    assert told["when --if"]["then"]["job_id"] == int(job)
    for by in ("account", "type"):
        fleet.ask("report", "-S", "now-1hour", "--by", by)
    check = fleet.mini.exec(["gandiva", "check", "--json"], check=False).stdout
    PRINTED["check"].model_validate(json.loads(check))
    assert {*asked, "check", "check --process-images", "doctor"} == {*PRINTED}
    fleet.stop("user1", "one")
    fleet.wait_ended(int(job), "COMPLETED")
