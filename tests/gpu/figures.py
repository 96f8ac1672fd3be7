"""Figures that tests of the GPU floor find: said, noted as lines of JSON, and put into a table.

    python -m tests.gpu.figures FILE COMMAND    # the noted figures as Markdown, with date, device and command

Noted they are where GANDIVA_FIGURES names a file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

#: The file to which each figure adds a line.
VARIABLE = "GANDIVA_FIGURES"
#: What the first figure of a run is called: it names the device.
DEVICE = "device"


def figure(what: str, measured: str, wanted: str = "") -> None:
    """Say a figure, and note it."""
    print(f"\n{what}: {measured}" + (f" (wanted: {wanted})" if wanted else ""))
    if path := os.environ.get(VARIABLE):
        with open(path, "a") as file:
            file.write(json.dumps({"what": what, "measured": measured, "wanted": wanted}) + "\n")


def table(lines: list[str], command: str, date: str) -> str:
    """Return the figures as a table of docs/measurements.md."""
    rows = [json.loads(line) for line in lines]
    device = next((row["measured"] for row in rows if row["what"] == DEVICE), "no device was named")
    head = [f"{date}, {device}, `{command}`", "", "| what | wanted | measured |", "|---|---|---|"]
    told = [row for row in rows if row["what"] != DEVICE]
    return "\n".join([*head, *(f"| {row['what']} | {row['wanted']} | {row['measured']} |" for row in told)])


def main() -> None:
    """Print the table of a file of figures."""
    path, command = sys.argv[1], " ".join(sys.argv[2:])
    print(table(Path(path).read_text().splitlines(), command, time.strftime("%Y-%m-%d")))


if __name__ == "__main__":
    main()
