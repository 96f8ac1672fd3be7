"""Times and durations as Slurm's tools read and write them (sacct(1), "Valid time formats").

Pure: the present is an argument. The table in tests/unit/test_cli_times.py was read off sacct 22.05.8.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

from gandiva_slurm.model.errors import UsageError

ALLOWED = (
    "HH:MM[:SS] [AM|PM], MMDD[YY], MM/DD[/YY], MM.DD[.YY], YYYY-MM-DD[THH:MM[:SS]], "
    "today, midnight, noon, fika, teatime, tomorrow, now[{+|-}N[seconds|minutes|hours|days|weeks]]"
)

_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
#: The moments there are, unix seconds: what lies beyond, no clock of this machine can show.
_LAST_S = 253_402_214_400
#: Words for an hour of today; fika is 3 PM, teatime 4 PM.
_WORD_HOURS = {"today": 0, "midnight": 0, "noon": 12, "fika": 15, "teatime": 16, "tomorrow": 24}
_NOW = re.compile(r"now(?:([+-])(\d{1,15})(?:(second|minute|hour|day|week)s?)?)?")
_UNIX = re.compile(r"uts(\d{1,15})")
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?\s*(?P<half>am|pm)?"
_DATES = (
    r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})",
    r"(?P<month>\d{1,2})/(?P<day>\d{1,2})(?:/(?P<year>\d{4}|\d{2}))?",
    r"(?P<month>\d{1,2})\.(?P<day>\d{1,2})(?:\.(?P<year>\d{4}|\d{2}))?",
    r"(?P<month>\d{2})(?P<day>\d{2})(?P<year>\d{2})?",
)
_CALENDAR = (re.compile(_CLOCK), *(re.compile(f"{date}(?:[t-]{_CLOCK})?") for date in _DATES))


def parse_time(text: str, now_s: float) -> float:
    """Return the unix seconds a user means by `text`; UsageError lists what is allowed."""
    moment_s = _read(text, now_s)
    if not 0 <= moment_s < _LAST_S:
        raise UsageError(f"invalid time {text!r}: before 1970 or after 9999")
    return moment_s


def require_window(start_s: float, end_s: float) -> None:
    """UsageError when a window ends before it starts."""
    if end_s < start_s:
        window = f"from {format_time(start_s)} to {format_time(end_s)}"
        raise UsageError(f"the window {window} ends before it starts; see -S and -E")


def _read(text: str, now_s: float) -> float:
    word = text.strip().lower()
    if match := _UNIX.fullmatch(word):
        return float(match[1])
    if match := _NOW.fullmatch(word):
        return now_s + _offset_s(*match.groups())
    midnight = datetime.fromtimestamp(now_s).replace(hour=0, minute=0, second=0, microsecond=0)
    if word in _WORD_HOURS:
        return (midnight + timedelta(hours=_WORD_HOURS[word])).timestamp()
    for pattern in _CALENDAR:
        if match := pattern.fullmatch(word):
            return _calendar_s(text, match.groupdict(), midnight)
    raise _bad_time(text)


def _offset_s(sign: str | None, count: str | None, unit: str | None) -> int:
    offset_s = int(count or 0) * _UNITS_S[unit or "second"]
    return -offset_s if sign == "-" else offset_s


def _calendar_s(text: str, parts: dict[str, str | None], midnight: datetime) -> float:
    try:
        day = midnight
        if parts.get("month"):
            month = int(parts["month"] or 0)
            year = _year(parts["year"], month, midnight)
            day = midnight.replace(year=year, month=month, day=int(parts["day"] or 0))
        hour = _hour(int(parts["hour"] or 0), parts["half"])
        moment = day.replace(hour=hour, minute=int(parts["minute"] or 0), second=int(parts["second"] or 0))
        return moment.timestamp()
    except (ValueError, OverflowError) as err:
        raise _bad_time(text) from err


def _year(text: str | None, month: int, midnight: datetime) -> int:
    """A date without a year lies in the past: a month still to come is last year's (as sacct has it)."""
    if text is None:
        return midnight.year - 1 if month > midnight.month else midnight.year
    return int(text) if len(text) == 4 else 2000 + int(text)


def _hour(hour: int, half: str | None) -> int:
    if half and not 1 <= hour <= 12:
        raise ValueError("12-hour clock")
    if half:
        return hour % 12 + (12 if half == "pm" else 0)
    return hour


def _bad_time(text: str) -> UsageError:
    return UsageError(f"invalid time {text!r}; allowed: {ALLOWED}")


def format_time(moment_s: float | None, style: str = "") -> str:
    """Write a time stamp; `style` is a strftime format (SLURM_TIME_FORMAT), else YYYY-MM-DDTHH:MM:SS."""
    if not moment_s:
        return "Unknown"
    return time.strftime(style if "%" in style else "%Y-%m-%dT%H:%M:%S", time.localtime(moment_s))


def format_duration(seconds: float | None) -> str:
    """Write a duration as [D-]HH:MM:SS, whole seconds."""
    if seconds is None:
        return ""
    days, rest = divmod(round(max(seconds, 0)), 86_400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
