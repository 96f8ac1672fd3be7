"""Slurm's text forms of GRES and TRES: `gpu:v100:16(IDX:0-3)` and `cpu=2,mem=62.50G,node=1`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from fractions import Fraction

_GRES = re.compile(
    r"(?P<name>\w+)(?::(?P<type>[^:,()]+))??(?::(?P<count>\d+)(?P<unit>[KMGT]?))?(?:\([^)]*\))?(?:,|$)"
)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def gpus(text: str) -> list[tuple[str, int]]:
    """Return (type, count) of each gres/gpu in the text; the type is "" where there is none."""
    found = (match for match in _GRES.finditer(text) if match["name"] == "gpu")
    return [(match["type"] or "", int(match["count"] or 1) * _UNITS[match["unit"] or ""]) for match in found]


@functools.lru_cache(maxsize=4096)
def tres(text: str) -> Mapping[str, int]:
    """Return the counts of a TRES text; `mem` in MiB, rounded up. What cannot be read is left out."""
    counts = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        amount = _amount(value, 1024**2 if name == "mem" else 1)
        if amount is not None:
            counts[name] = amount
    return counts


def _amount(value: str, unit: int) -> int | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", value)
    if not match:
        return None
    # A memory with no letter is in MiB already.
    factor = _UNITS[match[2]] if match[2] or unit == 1 else unit
    return -int(-(Fraction(match[1]) * factor) // unit)
