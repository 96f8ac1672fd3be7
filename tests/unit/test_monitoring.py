"""What slurm_conf/monitoring and docs/metrics.md name is what `gandiva metrics` gives."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gandiva_slurm.cli import families
from gandiva_slurm.model import job as states
from tests import skips

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "slurm_conf/monitoring"
BOARDS = sorted(MONITORING.glob("grafana-*.json"))
RULES = yaml.safe_load((MONITORING / "gandiva.rules.yml").read_text())["groups"][0]["rules"]
NAME = re.compile(r"\bgandiva_[a-z_]+\b")
SELECTOR = re.compile(r"(gandiva_[a-z_]+)\{([^}]*)\}")
MATCH = re.compile(r'(\w+)\s*(?:=|!=|=~|!~)\s*"([^"]*)"')
BY = re.compile(r"by \(([^)]*)\) \((gandiva_[a-z_]+)\)")
#: What each label may say, where that is a list of ours.
VALUES = {
    ("gandiva_node_state", "state"): set(families.NODE_STATES),
    ("gandiva_jobs", "state"): set(states.STATES) - {states.ENDED},
    ("gandiva_turn_lateness_seconds", "quantile"): {"0.5", "0.99"},
}
PROMTOOL = shutil.which("promtool")
FIGURES = {
    "jobs": {"RUNNING": 3, "HELD": 1}, "waiting": {"NoRoom": 1}, "wanted_gpus": 7,
    "packs": {"trial": 0, "kept": 1}, "idle": {"told": 2, "behind": 1},
    "set_aside": 0, "unread": 0, "policy_troubles": 0,
    "nodes": [{"node": "n1", "type": "v100", "state": "up", "gpus": 4, "held_gpus": 3, "jobs": 3,
               "suspends": 9, "strangers": 0, "report_age_s": 0.5, "busy": 0.75},
              {"node": "n2", "type": "k80", "state": "silent", "gpus": 4, "held_gpus": 0, "jobs": 0,
               "suspends": 0, "strangers": 0, "report_age_s": None, "busy": None}],
    "users": [{"user": "ann", "jobs": 3, "wanted_gpus": 6, "held_gpus": 2.5, "norm_share": 0.5}],
    "cycles": 12, "errors": 0, "started_s": 1.75e9, "stale_s": 0.25, "is_slurm_read": True,
    "is_state_written": True, "rounds": {"p50_ms": 5.0, "p99_ms": 250.0, "turns": 9},
}  # fmt: skip
OWN = dict.fromkeys(families.OWN, 1.0)


def exprs(board: Path) -> Iterator[str]:
    for panel in json.loads(board.read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


QUERIES = [
    *((f"{board.stem}: {expr}", expr) for board in BOARDS for expr in exprs(board)),
    *((rule["alert"], rule["expr"]) for rule in RULES),
]


def read(told=FIGURES) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every series of a page, as Prometheus's own parser reads it."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(families.page(told, OWN).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_there_are_boards_and_alerts():
    assert len(BOARDS) == 3 and len(RULES) >= 10


@pytest.mark.parametrize("expr", [expr for _, expr in QUERIES], ids=[name for name, _ in QUERIES])
def test_each_metric_and_label_that_is_asked_for_is_there(expr):
    known = families.names()
    asked = set(NAME.findall(expr))
    assert asked and asked <= known.keys(), asked - known.keys()
    for name, selector in SELECTOR.findall(expr):
        for label, value in MATCH.findall(selector):
            assert label in known[name], (name, label)
            assert value in VALUES[name, label], (name, label, value)
    for labels, name in BY.findall(expr):
        assert {label.strip() for label in labels.split(",")} <= set(known[name])


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_legends_name_labels_that_are_there(board):
    for panel in json.loads(board.read_text())["panels"]:
        for target in panel["targets"]:
            labels = {label for name in NAME.findall(target["expr"]) for label in families.names()[name]}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target


def test_alerts_say_what_is_and_what_to_do():
    for rule in RULES:
        assert {"summary", "next"} <= rule["annotations"].keys(), rule["alert"]
        labels = {label for name in NAME.findall(rule["expr"]) for label in families.names()[name]}
        assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule))) <= labels


def test_each_alert_has_a_test_of_prometheus_own():
    text = (MONITORING / "gandiva.rules.test.yml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', text)) == {rule["alert"] for rule in RULES}


@pytest.mark.skipif(PROMTOOL is None, reason=skips.NO_PROMTOOL)
def test_each_alert_fires_for_its_trouble_and_not_without():
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "gandiva.rules.test.yml"], cwd=MONITORING, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_what_the_table_says_and_nothing_else():
    told = read()
    assert told.keys() == families.names().keys()
    for name, series in told.items():
        assert {tuple(label for label, _ in labels) for labels in series} == {
            tuple(sorted(families.names()[name]))
        }, name


def test_every_metric_is_told_of_in_the_documentation():
    page = (ROOT / "docs/metrics.md").read_text()
    told = {}
    for line in page.splitlines():
        if match := re.match(r"\| `(gandiva_[a-z_]+)` \|([^|]*)\|", line):
            told[match[1]] = tuple(label.strip(" `") for label in match[2].split(",") if label.strip())
    assert told == families.names()


def test_units_are_in_names():
    for name in families.names():
        assert not name.endswith(("_s", "_ms", "_ns", "_percent", "_mib", "_time")), name


def test_values_are_those_of_the_figures():
    told = read()
    assert told["gandiva_jobs"][("state", "RUNNING"),] == 3
    assert told["gandiva_node_gpus_held"][("node", "n1"), ("type", "v100")] == 3
    assert told["gandiva_node_state"][("node", "n2"), ("state", "silent")] == 1
    assert told["gandiva_node_state"][("node", "n2"), ("state", "up")] == 0
    assert (("node", "n2"), ("type", "k80")) not in told["gandiva_node_report_age_seconds"]
    assert told["gandiva_turn_lateness_seconds"][("quantile", "0.99"),] == 0.25
    assert told["gandiva_user_gpus_held"][("user", "ann"),] == 2.5


def test_nothing_old_is_shown_while_gandivactld_does_not_answer():
    assert read(None).keys() == families.OWN.keys()


def test_no_name_makes_another_series():
    hostile = 'x"} 1\ngandiva_up 0\\'
    users = [FIGURES["users"][0] | {"user": hostile}]
    told = read(FIGURES | {"users": users})
    assert told["gandiva_user_jobs"] == {(("user", hostile),): 3}
    assert told["gandiva_up"] == {(): 1}
