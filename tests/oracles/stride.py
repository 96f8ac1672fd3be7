"""Replay stride tables round by round with the functions that run on clusters.

    python tests/oracles/stride.py FILE

FILE is JSON: each value with `rounds` is a table of `numGPUs`, `jobs` {name: {tickets, gpus}}, `order`, and
`rounds` of `pass` (before the round's charge, in the order of `order`) and `run` (sorted). Prints one JSON
line and ends with 0 if passes and picks agree in every round of every table.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from gandiva_slurm.sim.paper.stride import Table

#: Tables write passes in decimals.
ROUNDING = Fraction(1, 10**9)


def differences(data: dict[str, Any]) -> list[str]:
    """Replay a table and tell each round that comes out otherwise."""
    table, found = Table(data), []
    for line in data["rounds"]:
        passes, want = table.passes(), [Fraction(value) for value in line["pass"]]
        if any(abs(mine - theirs) > ROUNDING for mine, theirs in zip(passes, want, strict=True)):
            found.append(
                f"t={line['t']}: passes {[*map(float, passes)]}, the table has {[*map(float, want)]}"
            )
        run = table.run()
        if run != sorted(line["run"]):
            found.append(f"t={line['t']}: ran {run}, the table has {line['run']}")
    return found


def main(path: Path) -> int:
    """Check every table of a file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_float=Fraction)
        tables = {name: part for name, part in data.items() if isinstance(part, dict) and "rounds" in part}
    except (OSError, ValueError, AttributeError) as err:
        print(json.dumps({"agree": False, "error": f"{path} holds no tables of strides: {err}"}))
        return 1
    wrong = {name: found for name, part in tables.items() if (found := differences(part))}
    rounds = sum(len(part["rounds"]) for part in tables.values())
    is_good = bool(tables) and not wrong
    print(json.dumps({"tables": len(tables), "rounds": rounds, "agree": is_good, "differences": wrong}))
    return 0 if is_good else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: stride.py FILE")
    sys.exit(main(Path(sys.argv[1])))
