"""`make fuzz`: each part for FUZZ_S seconds, shared among its targets; exit 1 where anything was found.

usage: python -m tests.fuzz.run --seconds 3600 --seed 1 [messages pages flags configs]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import configs, controller, flags, messages, pages, sockets
from tests.fuzz.kit import FOUND, Budget, Tally, Target, fuzz
from tests.node.harness import NodeHarness
from tests.skips import NO_ROOT

#: Of the time of its part, beside 1 for every other target: what is slow needs more for as many.
WEIGHTS = {"planned": 2.0, "report": 2.0, "plan": 2.0, "question": 2.0}


def _share(targets: tuple[Target, ...], seed: int, seconds: float) -> list[Tally]:
    whole = sum(WEIGHTS.get(target.name, 1.0) for target in targets)
    tallies = []
    for target in targets:
        budget = Budget(seconds=seconds * WEIGHTS.get(target.name, 1.0) / whole)
        tallies.append(fuzz(target, random.Random(f"{seed} {target.name}"), budget))
        print(tallies[-1].told(), flush=True)
    return tallies


def _messages(seed: int, seconds: float) -> list[Tally]:
    """Half of the time for what gandivad reads, a tenth for a real one, the rest for a controller."""
    with tempfile.TemporaryDirectory(prefix="gandiva-fuzz-") as directory:
        with messages.targets(Path(directory)) as targets:
            tallies = _share(targets, seed, 0.5 * seconds)
        with controller.targets(Path(directory) / "controller") as targets:
            tallies += _share(targets, seed, 0.4 * seconds)
    if os.geteuid() != 0:
        print(f"gandivad: left out: {NO_ROOT}")
        return tallies
    with NodeHarness(gpus=2) as node:
        tallies.append(
            sockets.fuzz_node(node, random.Random(f"{seed} gandivad"), Budget(seconds=0.1 * seconds))
        )
    print(tallies[-1].told(), flush=True)
    return tallies


def _pages(seed: int, seconds: float) -> list[Tally]:
    with pages.targets() as targets:
        return _share(targets, seed, seconds)


def _flags(seed: int, seconds: float) -> list[Tally]:
    if flags.CANNOT:
        print(f"flags: left out: {flags.CANNOT}")
        return []
    tally = flags.fuzz_flags(random.Random(f"{seed} flags"), Budget(seconds=seconds))
    print(tally.told(), flush=True)
    return [tally]


def _configs(seed: int, seconds: float) -> list[Tally]:
    with configs.targets() as targets:
        return _share(targets, seed, seconds)


PARTS: dict[str, Callable[[int, float], list[Tally]]] = {
    "messages": _messages,
    "pages": _pages,
    "flags": _flags,
    "configs": _configs,
}


def main() -> int:
    """Run the parts named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless named")
    asked = parser.parse_args()
    found = 0
    for name in asked.parts or PARTS:
        print(f"== {name}: {asked.seconds:g} s, seed {asked.seed}", flush=True)
        found += sum(len(tally.findings) for tally in PARTS[name](asked.seed, asked.seconds))
    print(f"{found} findings" + (f"; their cases lie in {FOUND}" if found else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
