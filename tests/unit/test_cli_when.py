"""`gandiva when` and WHEN of the queue: what is told, what is not, and why."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gandiva_slurm.cli import jobids, main, queue, when
from tests.unit.test_cli import HELD, JOB

NOW_S = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
META = {"of_s": NOW_S, "age_s": 12.0, "reached_s": NOW_S + 1e6, "runs": 20, "past_jobs": 7}
ROW = {
    "job_id": 12, "state": "SUSPENDED", "is_told": True, "why": "",
    "turn": [NOW_S + 5, NOW_S + 40, NOW_S + 90], "start": [NOW_S - 60] * 3,
    "end": [NOW_S + 3600, NOW_S + 7200, None],
}  # fmt: skip


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def _told(line: str, answer: Any, status: int = 0) -> str:
        for module in (when, queue, jobids):
            monkeypatch.setattr(module, "query", lambda config, ask, args, timeout_s=0: answer)
        with pytest.raises(SystemExit) as end:
            main.main(line.split())
        out = capsys.readouterr()
        assert end.value.code == status, out
        return out.out + out.err

    return _told


def answer(trouble: str = "", meta: Any = META, **row: object) -> dict[str, Any]:
    return {"trouble": trouble, "forecast": meta, "jobs": [ROW | row]}


def test_it_tells_times_ranges_age_and_what_it_assumes(told) -> None:  # type: ignore[no-untyped-def]
    lines = told("when 12", answer()).splitlines()
    assert lines[0] == "job 12 is SUSPENDED"
    turn, start, end = (" ".join(line.split()) for line in lines[1:4])
    assert turn == (
        "next turn 2026-11-20T12:00:40 in 00:00:40, "
        "8 of 10 between 2026-11-20T12:00:05 and 2026-11-20T12:01:30"
    )
    assert start == "start 2026-11-20T11:59:00 it had come by then"
    assert "in 02:00:00" in end and "and after 2026-12-" in end
    assert "12 s old, by 20 runs forward" in lines[4] and "assumes: no job is submitted" in lines[5]


@pytest.mark.parametrize(
    ("it", "said"),
    [
        (answer("the last is 700 s old", None), "no forecast: the last is 700 s old"),
        (answer(is_told=False), "no forecast: it came after the last one was made"),
        (answer(why="asks for 4 GPUs"), "no time can be told: asks for 4 GPUs"),
        (answer(end=[None, None, None]), "end        after 2026-12-"),
        (answer(turn=[NOW_S - 9, NOW_S + 0.2, NOW_S + 0.4]), "next turn  2026-11-20T12:00:00  at once"),
        (
            answer(turn=[NOW_S + 90, NOW_S + 40, NOW_S + 5]),
            "between 2026-11-20T12:00:40 and 2026-11-20T12:00:40",
        ),
        (
            answer(turn=[NOW_S - 60, NOW_S + 40, NOW_S + 90]),
            "between 2026-11-20T12:00:00 and 2026-11-20T12:01:30",
        ),
        (answer(end=[NOW_S + 2e6, NOW_S + 2e6, None]), "and after 2026-12-13T15:33:20"),
    ],
)
def test_what_cannot_be_told_is_said(told, it: Any, said: str) -> None:  # type: ignore[no-untyped-def]
    assert said in told("when 12", it)


def test_json_has_the_forecast_and_what_it_assumes(told) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(told("when 12 --json", answer()))
    assert data["version"] == 1 and data["jobs"] == [ROW] and len(data["assumes"]) >= 2


def test_a_job_id_that_is_none_is_refused(told) -> None:  # type: ignore[no-untyped-def]
    assert "invalid job id 'x'" in told("when x", answer(), 2)


@pytest.mark.parametrize(
    ("state", "more", "shown"),
    [
        ("RUNNING", {}, "end+02:00:00"),
        ("SUSPENDED", {}, "turn+00:00:40"),
        ("HELD", {"start": [NOW_S, NOW_S + 60, None]}, "start+00:01:00"),
        ("HELD", {}, "turn+00:00:40"),
        ("HELD", {"start": [None, None, None]}, "start+later"),
        ("HELD", {"start": None, "why": "asks for 4 GPUs"}, "unknown"),
    ],
)
def test_the_queue_tells_what_comes_next(told, state: str, more: Any, shown: str) -> None:  # type: ignore[no-untyped-def]
    brief = {name: ROW[name] for name in ("turn", "start", "end", "why")} | {"of_s": NOW_S} | more
    row = JOB | {"state": state, "when": brief}
    assert told("queue -h -o when", [row]).strip() == shown
    assert told("queue -h -o when", [HELD, row | {"when": None}]).split() == ["-", "-"]


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ([0, 0.2, 0.4], [3600, 7200, 9000],
         ["would start at once", "would end in about 02:00:00 (between 01:00:00 and 02:30:00)"]),
        ([60, 600, None], [None, None, None],
         ["would start in about 00:10:00 (between 00:01:00 and later)",
          "would end in more than 11-13:46:40"]),
        ([90, 60, 30], [90, 100, 110],
         ["would start in about 00:01:00 (between 00:01:00 and 00:01:00)",
          "would end in about 00:01:40 (between 00:01:30 and 00:01:50)"]),
    ],
)  # fmt: skip
def test_sbatch_shows_how_long_it_would_be(told, tmp_path, start: Any, end: Any, said: list[str]) -> None:  # type: ignore[no-untyped-def]
    row: dict[str, Any] = {"why": ""}
    for name, times in (("start", start), ("end", end)):
        row[name] = [None if at is None else NOW_S + at for at in times]
    new = {"new": row, "forecast": META}
    assert told("when --test-only script -- --gres=gpu:1", new).splitlines() == said
    waits = {"new": {"why": "asks for 64 GPUs"}, "forecast": META}
    assert told("when --test-only script -- --gres=gpu:64", waits) == "would wait: asks for 64 GPUs\n"
