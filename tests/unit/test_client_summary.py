"""What a rank says at its end stands in its job's output: once, after a training that was one."""

from __future__ import annotations

import pytest

from gandiva_slurm.client import notice, summary

MINUTE = 60 * 10**9


@pytest.fixture(autouse=True)
def of_job_12(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID", "GANDIVA_JOB", "GANDIVA_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(notice, "_said", set())


def said(capsys: pytest.CaptureFixture[str], lived_ns: int = 80 * MINUTE) -> str:
    summary.sum_up(40123, lived_ns, 38 * MINUTE + 51 * 10**9, 117, 3 << 30)
    return capsys.readouterr().err


def test_it_tells_what_was_trained_and_how_long_it_was_parked(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys) == (
        "gandiva: job 12: 40123 mini-batches in 01:20:00: trained for 00:41:09, and was parked for 00:38:51 "
        "(117 times); 3072 MiB of GPU memory at the peak; `gandiva eff 12` tells what the GPUs did\n"
    )


def test_one_that_was_never_parked_or_has_no_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    summary.sum_up(7, 2 * MINUTE, 0, 0, 1)
    told = capsys.readouterr().err
    assert "trained for 00:02:00, and was never parked; `gandiva eff 12`" in told


def test_short_ones_others_than_the_first_and_who_wants_none_say_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not said(capsys, MINUTE - 1)
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert not said(capsys)
    monkeypatch.delenv("SLURM_PROCID")
    monkeypatch.setenv("GANDIVA_SUMMARY", "0")
    assert not said(capsys)
    monkeypatch.delenv("GANDIVA_SUMMARY")
    assert said(capsys)
