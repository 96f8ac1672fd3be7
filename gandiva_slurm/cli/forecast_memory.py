"""What `gandiva forecast` learns of itself, kept from one forecast to the next."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path

from gandiva_slurm.sim.forecast.memory import Memory

FILE_NAME = "forecast_memory.json"

log = logging.getLogger(__name__)


def load(folder: Path) -> Memory:
    """Return what was learnt; nothing where there is no file, or none that can be read."""
    path = folder / FILE_NAME
    try:
        return Memory.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return Memory()
    except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as err:
        log.warning("%s cannot be read (%r): it is begun anew", path, err)
        return Memory()


def save(folder: Path, memory: Memory) -> None:
    """Put it in the place of the old one. OSError: that one is still there."""
    new = folder / f"{FILE_NAME}.new"
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(memory.to_json(), file, separators=(",", ":"))
        new.replace(folder / FILE_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
