"""Times as sacct reads them: the table below was read off `sacct -v -S TIME` of Slurm 22.05.8."""

import time
from datetime import datetime

import pytest

from gandiva_slurm.cli.times import format_duration, format_time, parse_time
from gandiva_slurm.model.errors import UsageError

NOW_S = datetime(2026, 11, 20, 21, 25, 57).timestamp()

SEEN = {
    "12/25": "2025-12-25T00:00:00",
    "11/25": "2026-11-25T00:00:00",
    "1125": "2026-11-25T00:00:00",
    "11.20.25": "2025-11-20T00:00:00",
    "0101": "2026-01-01T00:00:00",
    "1/2": "2026-01-02T00:00:00",
    "11/20-09:30": "2026-11-20T09:30:00",
    "1125-10:00": "2026-11-25T10:00:00",
    "23:50": "2026-11-20T23:50:00",
    "11:00PM": "2026-11-20T23:00:00",
    "12:00AM": "2026-11-20T00:00:00",
    "12:30PM": "2026-11-20T12:30:00",
    "2026-11-01T1:02": "2026-11-01T01:02:00",
    "2026-11-01-01:02:03": "2026-11-01T01:02:03",
    "2026-11-01": "2026-11-01T00:00:00",
    "midnight": "2026-11-20T00:00:00",
    "today": "2026-11-20T00:00:00",
    "noon": "2026-11-20T12:00:00",
    "fika": "2026-11-20T15:00:00",
    "teatime": "2026-11-20T16:00:00",
    "tomorrow": "2026-11-21T00:00:00",
    "now": "2026-11-20T21:25:57",
    "now-3": "2026-11-20T21:25:54",
    "now-1hour": "2026-11-20T20:25:57",
    "NOW-2Hours": "2026-11-20T19:25:57",
    "now+1days": "2026-11-21T21:25:57",
    "now-1week": "2026-11-13T21:25:57",
    "now-90minutes": "2026-11-20T19:55:57",
}
REFUSED = ("bad", "13/45", "2026-11-01T25:00", "now-2h", "now-1hourzz", "elevenses", "13:00PM", "", "02/30")


@pytest.mark.parametrize(("text", "want"), SEEN.items())
def test_time_reads_as_sacct_reads_it(text: str, want: str) -> None:
    assert format_time(parse_time(text, NOW_S)) == want


def test_time_reads_unix_seconds() -> None:
    assert parse_time("uts1700000000", NOW_S) == 1_700_000_000


@pytest.mark.parametrize("text", REFUSED)
def test_time_refused_lists_what_is_allowed(text: str) -> None:
    with pytest.raises(UsageError, match="allowed: HH:MM"):
        parse_time(text, NOW_S)


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        (0, "00:00:00"),
        (59.4, "00:00:59"),
        (3_661, "01:01:01"),
        (86_400, "1-00:00:00"),
        (930_000, "10-18:20:00"),
    ],
)
def test_duration_is_days_and_clock(seconds: float, want: str) -> None:
    assert format_duration(seconds) == want


def test_duration_not_known_is_blank_and_time_not_known_is_unknown() -> None:
    assert (format_duration(None), format_time(None), format_time(0)) == ("", "Unknown", "Unknown")


def test_time_stamp_takes_a_strftime_style() -> None:
    assert format_time(NOW_S, "%d.%m. %H") == time.strftime("%d.%m. %H", time.localtime(NOW_S))
    assert format_time(NOW_S, "standard") == "2026-11-20T21:25:57"
