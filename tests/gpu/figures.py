"""Figures that tests of the GPU floor find: said, noted as lines of JSON, and put into a table.

    python -m tests.gpu.figures FILE    # the noted figures as Markdown, with date, device and command

Noted they are where GANDIVA_FIGURES names a file, each with its day and its command (GANDIVA_FIGURES_OF).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

#: The file to which each figure adds a line.
VARIABLE = "GANDIVA_FIGURES"
#: The command that the figures are of.
COMMAND = "GANDIVA_FIGURES_OF"
#: What the first figure of a run is called: it names the device.
DEVICE = "device"


def figure(what: str, measured: str, wanted: str = "") -> None:
    """Say a figure, and note it."""
    print(f"\n{what}: {measured}" + (f" (wanted: {wanted})" if wanted else ""))
    if path := os.environ.get(VARIABLE):
        row = {"what": what, "measured": measured, "wanted": wanted}
        row |= {"date": time.strftime("%Y-%m-%d"), "command": os.environ.get(COMMAND, "")}
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")


def table(lines: list[str]) -> str:
    """Return the figures as a table of docs/measurements.md."""
    rows = [json.loads(line) for line in lines]
    device = next((row["measured"] for row in rows if row["what"] == DEVICE), "no device was named")
    run = f"{rows[0]['date']}, {device}, `{rows[0]['command']}`"
    head = [run, "", "| what | wanted | measured |", "|---|---|---|"]
    told = [row for row in rows if row["what"] != DEVICE]
    return "\n".join([*head, *(f"| {row['what']} | {row['wanted']} | {row['measured']} |" for row in told)])


def main() -> None:
    """Print the table of a file of figures."""
    print(table(Path(sys.argv[1]).read_text().splitlines()))


if __name__ == "__main__":
    main()
