"""`gandiva eff`: what is made of a row of the accounts, and that each thing wrong with a job is told."""

import json
import time
from typing import Any

import pytest

from gandiva_slurm.cli import eff, main
from gandiva_slurm.cli.advice import with_advice

NOW_S = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
ROW: dict[str, Any] = {
    "job_id": 12, "array_job_id": None, "array_task_id": None, "name": "train", "user": "user1",
    "account": "lab", "partition": "gandiva", "state": "COMPLETED", "gpus": 2, "type": "v100", "node": "n1",
    "exit_code": "0:0", "submit_s": NOW_S - 7200, "start_s": NOW_S - 7190, "end_s": NOW_S, "now_s": NOW_S,
    "gpu_held_s": 7200.0, "gpu_run_s": 7128.0, "gpu_parked_s": 3600.0, "gpu_packed_s": 0.0,
    "packed_with": [], "gpu_seen_s": 7000.0, "gpu_busy_s": 6300.0, "gpu_mem_peak_bytes": 20 << 30,
    "gpu_mem_live_bytes": 1 << 30, "steps": 1000, "suspends": 7, "migrations": 0, "lost_steps": 0,
    "lost_steps_why": "", "ckpt_s": 0.0, "restarts": 0, "first_100_s": 60.0, "start_latency_s": 0.5,
}  # fmt: skip


@pytest.fixture
def gandiva(monkeypatch, capsys):
    """Run `gandiva eff ...` on rows; returns what it printed, and what it asked."""

    def run(*args, rows=(ROW,), status=0):
        asked = []

        def answer(config, ask, arguments):
            asked.append((ask, arguments))
            return list(rows)

        monkeypatch.setattr(eff, "query", answer)
        with pytest.raises(SystemExit) as end:
            main.main(["eff", *args])
        told = capsys.readouterr()
        assert end.value.code == status, told
        return told.out if status == 0 else told.err, asked

    return run


def test_a_job_is_told_line_by_line(gandiva):
    told, asked = gandiva("12")
    assert asked[0][0] == "acct" and asked[0][1]["job_ids"] == [12] and asked[0][1]["start_s"] == 0
    assert told.splitlines() == [
        "job 12 train, user1 (lab): 2 v100 GPU(s) on n1, COMPLETED",
        "  GPU time  held 02:00:00, useful 99 %; parked 01:00:00",
        "  idle      10 % of 01:56:40 that NVML looked at",
        "  memory    20480M at the peak, on one node",
        "  turns     7 times parked, never moved",
        "  steps     1000 mini-batches, the 100th 00:01:00 after submission",
        "  advice    nothing to change",
    ]


def test_what_was_spilled_and_what_a_step_took_is_told(gandiva):
    times = {"step_p50_ms": 20.0, "step_p99_ms": 21.5}
    times |= {"packed_step_p50_ms": 21.0, "packed_step_p99_ms": 34.25}
    told, _ = gandiva("12", rows=[ROW | times | {"gpu_mem_spilled_bytes": 5 << 30}])
    lines = told.splitlines()
    assert lines[3].endswith("on one node; 5120M more in host memory, for its GPU was full")
    assert "  a step    20 ms alone on its GPUs, 21.5 ms at the 99th percentile, of late" in lines
    assert "  a step    21 ms beside another job, 34.2 ms at the 99th percentile, of late" in lines


def test_what_was_not_measured_is_not_made_up(gandiva):
    row = ROW | {"gpu_seen_s": 0.0, "gpu_busy_s": 0.0, "gpu_mem_peak_bytes": None, "first_100_s": None}
    told, _ = gandiva("12", rows=[row | {"gpu_held_s": 0.0, "gpu_run_s": 0.0, "steps": 0}])
    assert "useful" not in told
    assert "  idle      not measured: NVML saw none of its processes" in told
    assert "  memory    - at the peak" in told


def test_a_users_jobs_are_a_table(gandiva):
    other = ROW | {"job_id": 13, "migrations": 2, "lost_steps": 5, "gpu_seen_s": 0.0}
    told, asked = gandiva("-u", "user1", "-S", "2026-11-13", rows=[other, ROW])
    assert asked[0][1]["users"] == ["user1"]
    assert asked[0][1]["start_s"] == time.mktime((2026, 11, 13, 0, 0, 0, 0, 0, -1))
    heads, *lines = [line.split()[:10] for line in told.splitlines()]
    assert heads == ["JOBID", "NAME", "STATE", "GPUS", "HELD", "USEFUL", "IDLE", "PARKED", "MEMPEAK", "MOVES"]
    assert lines == [
        ["12", "train", "COMPLETED", "2", "02:00:00", "99%", "10%", "01:00:00", "20480M", "0"],
        ["13", "train", "COMPLETED", "2", "02:00:00", "99%", "-", "01:00:00", "20480M", "2"],
    ]


def test_json_has_the_row_and_what_was_made_of_it(gandiva):
    data = json.loads(gandiva("12", "--json")[0])
    (row,) = data["jobs"]
    assert data["version"] == 1 and row["gpu_held_s"] == 7200
    assert (row["useful"], round(row["idle"], 3), row["advice"]) == (0.99, 0.1, "")


def test_a_job_of_which_nothing_is_recorded_is_said(gandiva):
    assert "nothing is recorded of job 99" in gandiva("99", rows=[], status=1)[0]


def test_a_name_steers_no_terminal(gandiva):
    told, _ = gandiva("12", rows=[ROW | {"name": "a\x1b[2Jb\nadvice"}])
    assert "\x1b" not in told and len(told.splitlines()) == 7


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": "OUT_OF_MEMORY"}, "ended OUT_OF_MEMORY (exit code 0:0): ask for more with --mem"),
        ({"state": "TIMEOUT"}, "ask for more with --time"),
        ({"state": "FAILED", "exit_code": "1:0"}, "ended FAILED (exit code 1:0): see its output"),
        ({"steps": 0}, "no mini-batch was seen in 02:00:00 of GPU time: `gandiva doctor"),
        ({"gpu_busy_s": 1400.0}, "idle for 80 % of the time it held them: more loader workers"),
        ({"gpu_busy_s": 1400.0}, "or fewer GPUs"),
        ({"lost_steps": 200}, "200 of 1000 mini-batches were done again"),
        ({"gpu_run_s": 5760.0}, "parking took 20 % of the time"),
        ({"first_100_s": 3600.0}, "its 100th mini-batch came 01:00:00 after submission"),
        ({"gpus": 1, "gpu_mem_peak_bytes": 2 << 30, "gpu_parked_s": 9000.0}, "took 2048 MiB of its GPU"),
    ],
)
def test_what_is_wrong_with_a_job_is_advised(changes, says):
    assert says in with_advice(ROW | changes)["advice"]


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_held_s": 30.0, "gpu_run_s": 20.0, "steps": 0, "gpu_seen_s": 30.0, "gpu_busy_s": 0.0},
        {"lost_steps": None, "migrations": 1},
        {"gpus": 1, "gpu_mem_peak_bytes": 2 << 30, "gpu_parked_s": 9000.0, "gpu_packed_s": 60.0},
    ],
    ids=["young", "not known", "packed already"],
)
def test_nothing_is_advised_where_nothing_is_known_to_be_wrong(changes):
    assert with_advice(ROW | changes)["advice"] == ""


def test_a_job_without_a_mini_batch_is_not_called_useful():
    assert with_advice(ROW | {"steps": 0})["useful"] is None


def test_what_was_done_again_is_not_useful():
    assert with_advice(ROW | {"lost_steps": 100})["useful"] == pytest.approx(0.99 * 0.9)
