"""A made record through the whole of a validation but its cluster: simulated, drawn, judged and told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gandiva_slurm.mini.demo_busy import Usage
from gandiva_slurm.mini.demo_verdict import exit_code
from gandiva_slurm.mini.spec import MiniSpec, parse_nodes
from gandiva_slurm.mini.validation import picture, play
from gandiva_slurm.mini.validation.report import Compared, lines_of, report_of
from gandiva_slurm.policy.port import Cluster
from tests.unit.test_validation_costs import RECORD

SPEC = MiniSpec("made", parse_nodes("v100:1x1,p100:1x1"), 3.0, backend="local", policy="gandiva_fair")
QUIET, BUSY = Usage(100, 80, 75), Usage(100, 95, 75)


@pytest.fixture(scope="module")
def compared() -> Compared:
    return play.compare(RECORD, SPEC)[0]


def failed(report: dict[str, object]) -> set[str]:
    return {check["name"] for check in report["checks"] if check["verdict"] == "FAILED"}  # type: ignore[attr-defined]


def test_what_became_of_the_jobs_is_taken_from_the_event_logs(compared: Compared) -> None:
    first, other = compared.real
    assert (first.submit_s, first.end_s, other.submit_s, other.end_s) == (0, 9.6, 3, 6.5)
    assert first.gpu_s == pytest.approx(2.53 + 0.15 + 2.45) and other.gpu_s == pytest.approx(1.4 + 0.34)
    assert compared.moves == 1
    assert [job.submit_s for job in compared.simulated] == [0, 3]
    assert all(job.end_s > job.submit_s for job in compared.simulated)


def test_what_a_load_changes_fails_on_a_quiet_machine_alone(compared: Compared) -> None:
    quiet, busy = (report_of(compared, usage, ()) for usage in (QUIET, BUSY))
    assert not failed(busy) and failed(quiet) == set(busy["not_judged"]) >= {"moves"}
    assert (exit_code(quiet, strict=False), exit_code(busy, strict=True)) == (1, 2)


def test_a_job_that_did_not_complete_or_something_left_behind_fails(compared: Compared) -> None:
    bad = replace(compared, recorded=replace(RECORD, states={"a": "COMPLETED", "b": "FAILED"}))
    assert failed(report_of(bad, BUSY, ("a process",))) == {"ends", "left behind"}


def test_a_report_is_told_in_lines_and_as_json(compared: Compared) -> None:
    report = json.loads(json.dumps(report_of(compared, QUIET, ()) | {"wall_s": 1.0}))
    assert report["costs"]["counts"]["load"] == 2 and len(report["jobs"]) == 2
    lines = [*lines_of(report, QUIET)]
    assert any("PyTorch is loaded in 1.50 s (2)" in line for line in lines)
    assert lines[-1].startswith("FAILED in 1 s: moves")


def test_both_are_drawn(compared: Compared, tmp_path: Path) -> None:
    cluster = Cluster([(node.gpu_type, node.gpus) for node in SPEC.nodes])
    real = picture.spans_of(compared, cluster, ["n1", "n2"])
    assert [span.gpus for span in real] == [(0,), (0,), (0,), (0,), (1,)]
    assert [round(span.start_ns / 1e9, 2) for span in real] == [1.0, 4.6, 6.0, 6.16, 7.15]
    picture.draw(tmp_path / "both.svg", compared, cluster, (real, real))
    assert "<svg" in (tmp_path / "both.svg").read_text()
