"""`gandiva report --plot`: what is drawn is what the rows say, whatever their names; a file is whole."""

from __future__ import annotations

import errno
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from gandiva_slurm.cli import main, report, report_plot
from gandiva_slurm.cli.report_plot import MOST_ROWS, parts_of, plot
from gandiva_slurm.model.errors import UsageError

HOUR = 3600.0
ROW = {
    "account": "lab", "user": "ann", "jobs": 3, "gpu_held_s": 10 * HOUR, "gpu_parking_s": HOUR,
    "gpu_packed_s": 0.0, "gpu_parked_s": HOUR, "gpu_seen_s": 6 * HOUR, "gpu_busy_s": 4.5 * HOUR,
    "gpu_exclusive_s": 12 * HOUR, "waited_s": 300.0, "begun": 2, "began_s": 240.0,
    "entitled": 0.5, "all_held_s": 20 * HOUR,
}  # fmt: skip
WINDOW = (0.0, 86_400.0)


def drawn(path: Path, rows: list[dict[str, Any]]) -> bytes:
    """Draw these rows; returns what is in the file then."""
    plot(path, report.FIELDS, rows, report.total_of(rows), WINDOW, ["- a note & more"])
    return path.read_bytes()


def texts(svg: str) -> list[str]:
    """The texts of a picture, as one who reads it sees them."""
    return [node.text for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text") if node.text]


@pytest.mark.parametrize(
    ("changes", "hours"),
    [
        ({}, (4.5, 3.0, 1.5, 1.0)),
        ({"gpu_seen_s": 0.0, "gpu_busy_s": 0.0}, (0.0, 9.0, 0.0, 1.0)),
        # NVML's figures are of whole runs: only their proportion counts where they are more than was held
        ({"gpu_seen_s": 40 * HOUR, "gpu_busy_s": 10 * HOUR}, (2.25, 0.0, 6.75, 1.0)),
        ({"gpu_busy_s": 900 * HOUR}, (6.0, 3.0, 0.0, 1.0)),
        ({"gpu_held_s": 0.0, "gpu_parking_s": 0.0}, (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_the_parts_of_a_bar_are_what_was_held(
    changes: dict[str, float], hours: tuple[float, ...]
) -> None:
    row = ROW | changes
    assert parts_of(row) == pytest.approx(hours)
    assert sum(parts_of(row)) == pytest.approx(row["gpu_held_s"] / HOUR)


def test_a_picture_has_every_name_as_it_is(tmp_path: Path) -> None:
    names = ["$x^2$", "<script>alert(1)</script>", "a&b", "\x1b[2J\u202etrap", "a" * 500, "Ω"]
    rows = [ROW | {"account": "", "user": name} for name in names]
    seen = texts(drawn(tmp_path / "page.svg", rows).decode())
    for name in ("$x^2$", "<script>alert(1)</script>", "a&b", "Ω"):
        assert name in seen
    assert not any(re.search(r"[\x00-\x1f\u202e]", text) or len(text) > 60 for text in seen)


def test_rows_beyond_the_most_are_added_up(tmp_path: Path) -> None:
    rows = [ROW | {"user": f"u{number:03}", "gpu_held_s": number * HOUR} for number in range(MOST_ROWS + 5)]
    seen = texts(drawn(tmp_path / "page.svg", rows).decode())
    assert "5 others" in seen and f"lab u{MOST_ROWS + 4:03}" in seen and "lab u004" not in seen


def test_a_page_stands_alone_and_takes_no_name_for_markup(tmp_path: Path) -> None:
    hostile = '"><img src=x onerror=alert(1)>'
    page = drawn(tmp_path / "page.HTML", [ROW | {"account": hostile}, ROW]).decode()
    assert "<img" not in page and "<script" not in page
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:|//)""", page)
    assert page.count("<tr>") == 4, "heads, two rows, the total"
    assert "<li>a note &amp; more</li>" in page and page.index("<svg") < page.index("<table")


def test_a_png_is_one_and_nothing_is_a_picture_too(tmp_path: Path) -> None:
    assert drawn(tmp_path / "page.png", [ROW]).startswith(b"\x89PNG")
    assert "no job was in the queue" in " ".join(texts(drawn(tmp_path / "none.svg", []).decode()))


def test_a_file_that_cannot_be_written_is_told_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.svg"
    old = drawn(path, [ROW])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(report_plot.os, "fsync", full)
    with pytest.raises(UsageError, match=r"page\.svg cannot be written: No space left"):
        drawn(path, [ROW | {"user": "bob"}])
    assert path.read_bytes() == old and [*tmp_path.iterdir()] == [path]
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        drawn(tmp_path / "away" / "page.svg", [ROW])


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "page.svg").symlink_to(other)
    drawn(tmp_path / "page.svg", [ROW])
    assert other.read_text() == "mine" and not (tmp_path / "page.svg").is_symlink()


def test_another_kind_of_file_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "query", lambda *_: pytest.fail("asked"))
    with pytest.raises(SystemExit) as end:
        main.main(["report", "--plot", "page.pdf"])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert "--plot: 'page.pdf' names no kind of picture; takes FILE.png, .svg or .html" in told
