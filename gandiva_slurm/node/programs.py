"""Programs of gandivad's own, for work that may last or hang: they outlive it, and answer in JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def start(name: str, *words: str) -> subprocess.Popen[str]:
    """Start a module of this room with these words; OSError when it cannot be."""
    argv = [sys.executable, "-m", f"{__package__}.{name}", *words]
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd="/"
    )


def answer(call: subprocess.Popen[str], of_dead: dict[str, Any]) -> dict[str, Any] | None:
    """Return its answer, None while there is none; of one that died without one that of the dead."""
    if call.poll() is None:
        return None
    try:
        found: dict[str, Any] = json.loads(call.stdout.read() if call.stdout else "")
    except ValueError:
        return of_dead
    return found
