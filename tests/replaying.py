"""Replays a journal as the command does."""

from pathlib import Path

from gandiva_slurm.cli.replay import compare
from gandiva_slurm.controller.segments import read_segments
from gandiva_slurm.engine.replay import Tally


def replay_journal(path: Path) -> Tally:
    """Return what was compared; `first` is None when all was equal."""
    tally = Tally()
    compare(read_segments(path), tally)
    return tally
