"""Where the time of a run goes: what each test takes, noted while it runs, summed up by floor and file.

    make test TIMES=/tmp/times && python -m tests.times /tmp/times

Processor time is that of pytest's worker and of the processes that it waited for; a mini cluster's own is not
in it. The rest of a test's time is waiting, for clusters, daemons and turns, or for a processor.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: File to which each test adds a line; nothing is noted where it is not set.
VARIABLE = "GANDIVA_TIMES"
MOST_FILES = 30


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the seconds that a test takes with its fixtures: in all, and of processor time."""
    path = os.environ.get(VARIABLE)
    began_s, before = time.monotonic(), os.times()
    yield
    if path:
        after = os.times()
        cpu_s = sum(after[:4]) - sum(before[:4])
        line = {"id": item.nodeid, "wall_s": round(time.monotonic() - began_s, 3), "cpu_s": round(cpu_s, 3)}
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


def summed(rows: list[dict[str, Any]], key: Callable[[str], str]) -> list[tuple[str, int, float, float]]:
    """Return (name, tests, seconds, processor seconds) by what `key` makes of a test's id, longest first."""
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for row in rows:
        sums = found[key(row["id"])]
        for n, value in enumerate((1, row["wall_s"], row["cpu_s"])):
            sums[n] += value
    table = [(name, int(count), wall_s, cpu_s) for name, (count, wall_s, cpu_s) in found.items()]
    return sorted(table, key=lambda row: -row[2])


def main() -> None:
    """Print the floors, then the files that take most."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    for title, key, most in (
        ("floor", lambda test: test.split("/")[1], None),
        ("file", lambda test: test.partition("::")[0], MOST_FILES),
    ):
        print(f"{title:44} {'tests':>6} {'seconds':>8} {'of them processor':>18}")
        for name, count, wall_s, cpu_s in summed(rows, key)[:most]:
            print(f"{name:44} {count:6} {wall_s:8.1f} {cpu_s:18.1f}")


if __name__ == "__main__":
    main()
