"""`gandiva replay`: what the controller heard, told to the engine again; it must decide the same."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gandiva_slurm import __version__
from gandiva_slurm.controller.books import JOURNAL_NAME
from gandiva_slurm.controller.segments import UNREADABLE, Segment, count_segments, read_segments
from gandiva_slurm.controller.settings import leader_of
from gandiva_slurm.engine.apply.decider import Leader, ask
from gandiva_slurm.engine.engine import Engine
from gandiva_slurm.engine.replay import SCHEMA, START, Difference, Tally, compare_state, engine_of
from gandiva_slurm.engine.replay import replay as replay_cycles
from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.output import progress, require_folder, write_result

#: Version of the JSON.
VERSION = 1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("journal", type=click.Path(path_type=Path))
@click.option("--json", "json_", metavar="FILE|-", help="Write the result as JSON.")
def replay(journal: Path, json_: str | None) -> int:
    """Tell the engine again what JOURNAL says it heard; exit 1 when it decides otherwise.

    JOURNAL is the journal.sqlite in gandivactld's state_dir, or that directory; it is only read, and its
    gandivactld may be running.
    """
    require_folder(json_)
    path = journal / JOURNAL_NAME if journal.is_dir() else journal
    tally = Tally()
    with progress("segments", count_segments(path)) as on_segment:
        releases = compare(read_segments(path), tally, on_segment)
    summary = {"version": VERSION, "journal": str(path), "releases": releases, **dataclasses.asdict(tally)}
    write_result(json_, summary, "\n".join(sentences(tally, releases)))
    return int(tally.first is not None)


def compare(
    segments: Iterator[Segment], tally: Tally, on_segment: Callable[[int], None] | None = None
) -> list[str]:
    """Replay segments one after the other; return the releases that recorded them.

    Those of another form, as an older release leaves them, are passed over; UsageError: there are no others.
    """
    releases: dict[str, None] = {}
    last: Engine | None = None
    other = ""
    for segment in segments:
        frame = segment.frame
        if segment.form != SCHEMA:
            last, other = None, segment.other_form()
            tally.passed_over += 1
            continue
        if last is not None:
            compare_state(last, frame.engine, frame.why, frame.at_ns, tally)
        try:
            engine = engine_of(frame.engine, frame.settings, _leader, frame.why != START)
        except UNREADABLE as err:
            raise UsageError(segment.unreadable(err)) from err
        is_same = replay_cycles(engine, segment.cycles, tally)
        last = engine if is_same else None
        releases[segment.release] = None
        tally.segments += 1
        if on_segment:
            on_segment(tally.segments + tally.passed_over)
    if other and not tally.segments:
        raise UsageError(other)
    return [*releases]


def _leader(told: Mapping[str, Any]) -> Leader:
    """Return a policy that may think for as long as it likes: what it did not answer was recorded."""
    return replace(leader_of(told), ask=ask)


def sentences(tally: Tally, releases: list[str]) -> Iterator[str]:
    """Say what came of it."""
    others = [release for release in releases if release != __version__]
    if others:
        yield f"recorded by gandiva {', '.join(others)}, replayed with {__version__}: it may decide otherwise"
    yield (
        f"{tally.segments} segments, {tally.cycles} cycles, {tally.events} events: "
        f"{tally.equal} actions equal, {tally.different} different"
    )
    if tally.passed_over:
        yield f"passed over: {tally.passed_over} segments of another release's form, which that one replays"
    if tally.skipped:
        yield f"not compared: {tally.skipped} cycles that follow a difference in their segment"
    if tally.first is not None:
        yield from told(tally.first)
    elif not tally.cycles:
        yield "nothing is recorded (controller.replay_hours)"


def told(first: Difference) -> Iterator[str]:
    """Say a difference."""
    where = f"cycle {first.cycle} of its segment" if first.cycle else "the end of a segment"
    yield f"first difference: {_time(first.at_ns)}, {where}, {first.what}"
    yield f"  expected: {first.want}"
    yield f"  got:      {first.got}"


def _time(at_ns: int) -> str:
    at = datetime.datetime.fromtimestamp(at_ns // 10**9)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ns % 10**9 // 10**6:03d}"
