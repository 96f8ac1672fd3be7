"""`gandiva report --plot FILE`: the report's rows as a picture, or as a page with the picture in it."""

from __future__ import annotations

import html
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gandiva_slurm.cli.table import Field, Row, printable
from gandiva_slurm.cli.times import format_time
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.sim.draw import pyplot_of

#: Rows that a picture shows; those with less GPU time are added up in one.
MOST_ROWS = 20
#: The longest name beside a bar, in characters.
MOST_LETTERS = 40
SUFFIXES = (".png", ".svg", ".html")
#: What a held GPU hour was, the colour of its part of a bar.
PARTS = {
    "busy, as NVML saw it": "tab:green",
    "not looked at": "tab:gray",
    "idle, as NVML saw it": "tab:orange",
    "after an order to park": "tab:red",
}
#: The page's manner; light and dark follow the reader's own.
_STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
    "th,td{padding:.2em .8em;border-bottom:1px solid #8888;text-align:right}"
    ".text{text-align:left}svg{max-width:100%;height:auto;background:#fff}"
    ":root{color-scheme:light dark}"
)


def require_drawable(path: Path) -> None:
    """UsageError: a file of that name is none that is drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot: {path.name!r} names no kind of picture; takes FILE.png, .svg or .html")


def plot(
    path: Path,
    fields: Sequence[Field],
    rows: Sequence[Row],
    total: Row,
    window: tuple[float, float],
    notes: Sequence[str],
) -> None:
    """Draw into a PNG or SVG file, or write a page: the picture, the table and its total, the notes below.

    The file is there whole or as it was before; UsageError: matplotlib is missing, or it cannot be written.
    """
    require_drawable(path)
    start, end = (format_time(moment) for moment in window)
    title = f"GPU time from {start} to {end}"
    kind = path.suffix.lower().removeprefix(".")
    if kind == "html":
        picture = _draw("svg", _most(rows), title).decode()
        _write(path, _page(title, picture, fields, [*rows, total], notes).encode())
    else:
        _write(path, _draw(kind, _most(rows), title))


def parts_of(row: Row) -> tuple[float, float, float, float]:
    """Return the hours of a row's parts, in the order of PARTS; together they are what was held.

    What NVML saw is of runs, whole, that were in the window: where that is more than was held in it, its
    proportion of busy and idle counts.
    """
    held_s, parking_s = row["gpu_held_s"], row["gpu_parking_s"]
    run_s = max(0.0, held_s - parking_s)
    seen_s = min(row["gpu_seen_s"], run_s)
    busy_s = seen_s * min(1.0, row["gpu_busy_s"] / row["gpu_seen_s"]) if row["gpu_seen_s"] > 0 else 0.0
    return busy_s / 3600, (run_s - seen_s) / 3600, (seen_s - busy_s) / 3600, min(parking_s, held_s) / 3600


def _most(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Return the rows to be drawn with their names, most GPU time first; the rest as one."""
    found = sorted(rows, key=lambda row: -row["gpu_held_s"])
    named = [(_name(row), row) for row in found[:MOST_ROWS]]
    rest = found[MOST_ROWS:]
    if rest:
        sums = {
            key: sum(row[key] for row in rest)
            for key in ("gpu_held_s", "gpu_parking_s", "gpu_seen_s", "gpu_busy_s")
        }
        named.append((f"{len(rest)} others", {**sums, "all_held_s": rest[0]["all_held_s"], "entitled": None}))
    return named


#: A legend above its axes hides no bar.
_ABOVE: dict[str, Any] = {"fontsize": "small", "loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}


def _name(row: Row) -> str:
    words = (str(row[key]) for key in ("account", "user", "type") if row.get(key))
    name = printable(" ".join(words)) or "-"
    return name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - 1] + "…"


def _draw(kind: str, rows: Sequence[tuple[str, Row]], title: str) -> bytes:
    pyplot = pyplot_of()
    # Text of an SVG stays text, to be searched and read aloud.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gandiva"}):
        height = 2.3 + 0.35 * max(2, len(rows))
        figure, (hours, parts) = pyplot.subplots(1, 2, figsize=(12, height), width_ratios=(3, 2), sharey=True)
        try:
            _hours(hours, rows)
            _parts(parts, rows)
            places = range(len(rows))
            labels = hours.set_yticks(places, [name for name, _ in rows]) if rows else []
            for tick in labels:
                # A name may have dollar signs, which would be a formula to matplotlib.
                tick.label1.set_parse_math(False)
            hours.invert_yaxis()
            figure.suptitle(title if rows else f"{title}: no job was in the queue")
            figure.tight_layout()
            out = io.BytesIO()
            figure.savefig(out, format=kind, **({"metadata": {"Date": None}} if kind == "svg" else {}))
        finally:
            pyplot.close(figure)
    return out.getvalue()


def _hours(axis: Any, rows: Sequence[tuple[str, Row]]) -> None:
    """Draw a bar for each row: GPU hours held, by what they were."""
    columns = list(zip(*(parts_of(row) for _, row in rows), strict=True)) or [()] * len(PARTS)
    ends = [0.0] * len(rows)
    for (part, colour), widths in zip(PARTS.items(), columns, strict=True):
        axis.barh(range(len(rows)), widths, left=ends, color=colour, label=part)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axis.set(xlabel="GPU hours held")
    axis.legend(**_ABOVE, ncols=4)


def _parts(axis: Any, rows: Sequence[tuple[str, Row]]) -> None:
    """Draw each row's part of all GPU time, and a mark at what Slurm's shares alone would give it."""
    of_all = [100 * row["gpu_held_s"] / row["all_held_s"] if row["all_held_s"] else 0.0 for _, row in rows]
    axis.barh(range(len(rows)), of_all, color="tab:blue", label="held, of all shown")
    entitled = [row["entitled"] for _, row in rows]
    due = [(place, 100 * part) for place, part in enumerate(entitled) if part is not None]
    axis.plot([part for _, part in due], [place for place, _ in due], "kd", label="entitled, of the cluster")
    axis.set(xlabel="percent", xlim=(0, max([1.0, *of_all, *(part for _, part in due)]) * 1.05))
    axis.legend(**_ABOVE, ncols=2)


def _page(
    title: str, picture: str, fields: Sequence[Field], rows: Sequence[Row], notes: Sequence[str]
) -> str:
    """Return a page that stands alone: no script, nothing from elsewhere."""
    drawn = picture[picture.index("<svg") :]
    out = [
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>{drawn}<table><thead><tr>",
    ]
    classes = ['class="text"' if field.left else "" for field in fields]
    out += [f"<th {kind}>{field.name}</th>" for field, kind in zip(fields, classes, strict=True)]
    out.append("</tr></thead><tbody>")
    for row in rows:
        cells = (html.escape(printable(field.show(row))) for field in fields)
        shown = (f"<td {kind}>{cell}</td>" for cell, kind in zip(cells, classes, strict=True))
        out.append(f"<tr>{''.join(shown)}</tr>")
    out.append("</tbody></table><ul>")
    out += [f"<li>{html.escape(note.removeprefix('- '))}</li>" for note in notes]
    out.append("</ul></body></html>\n")
    return "\n".join(out)


def _write(path: Path, data: bytes) -> None:
    """Put a file there whole: written beside its place, then renamed; with the mode that umask gives."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as err:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"--plot: {path} cannot be written: {err.strerror}") from err
