"""What the client says: a line on stderr, each sentence once, and only by the gang's first rank."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Set

_said: Set[str] = set()


def say(sentence: str) -> None:
    """Print `gandiva: sentence` on stderr, once; silently when stderr is gone."""
    if sentence in _said or (os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0") != "0":
        return
    _said.add(sentence)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"gandiva: {sentence}", file=sys.stderr, flush=True)
