"""A job's story, as `gandiva why` tells it: changes of its state, with their reasons."""

from __future__ import annotations

from typing import NamedTuple

from gandiva_slurm.model import job as states

#: Lines kept of a job's story, how many of them may tell of slicing alone, and codes that tell of more.
STORY_LINES, SLICING_LINES = 50, 10
DECIDED = ("Started", "PackTrial", "PackUndone", "Promoted")


class StoryLine(NamedTuple):
    """One line of a job's story: when, from which state to which, why."""

    t_s: float
    from_: str
    to: str
    code: str
    text: str


def is_slicing(line: StoryLine) -> bool:
    """True for a line that tells of a turn's beginning or end, and of nothing that was decided besides."""
    return line.from_ in states.SLICED and line.to in states.SLICED and line.code not in DECIDED
