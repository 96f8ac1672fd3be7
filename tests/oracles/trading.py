"""Trade on static job sets, each job a user, and hold the result against Gavel's allocations of these sets.

    python tests/oracles/trading.py FILE

FILE is in the format of gavel_alloc_snapshots. Prints one JSON line and ends with 0 if on every set: nobody
is below his isolated share, no GPU and no user is used beyond the whole, the sum of normalised rates (rate
over rate on a V100) is above max-min fairness's, at least 0.98 of that of max-min fairness with known rates,
and not above the greatest that any division with these floors can have (a linear programme).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from scipy.optimize import linprog

from gandiva_slurm.policy.trading.pools import Claimant, isolated
from gandiva_slurm.policy.trading.trades import Division, divide

REFERENCE = "v100"
#: Floors and the maximum are held to this; the files have six digits.
ROUNDING = 1e-6
#: What is asked of the sum, as a part of that of max-min fairness with known rates.
LEAST_OF_PERF = 0.98


def claimants_of(snapshot: dict[str, Any]) -> list[Claimant]:
    """Each job is a user who wants its GPUs; a GPU's speed is in parts of a V100's."""
    return [
        Claimant(
            str(job["id"]),
            job["gpus"],
            {
                gpu_type: Fraction(rate) / Fraction(job["throughput"][REFERENCE])
                for gpu_type, rate in job["throughput"].items()
            },
        )
        for job in snapshot["jobs"]
    ]


def norm(claimant: Claimant, held: dict[str, Fraction]) -> Fraction:
    """The rate of a user over its rate on V100s."""
    parts = (part * claimant.speeds[gpu_type] for gpu_type, part in held.items())
    return sum(parts, Fraction(0)) / claimant.demand


def greatest_sum(claimants: Sequence[Claimant], counts: dict[str, int], floors: Sequence[float]) -> float:
    """The greatest sum of norms in which everybody has at least his floor."""
    types, people = list(counts), len(claimants)
    worth = [[float(one.speeds[name]) / one.demand for name in types] for one in claimants]
    rows, bounds = [], []
    for who, one in enumerate(claimants):
        rows.append([1.0 if index // len(types) == who else 0.0 for index in range(people * len(types))])
        bounds.append(float(one.demand))
        rows.append([-worth[who][index % len(types)] * row for index, row in enumerate(rows[-1])])
        bounds.append(-floors[who])
    for place, name in enumerate(types):
        rows.append([1.0 if index % len(types) == place else 0.0 for index in range(people * len(types))])
        bounds.append(float(counts[name]))
    answer = linprog([-value for row in worth for value in row], A_ub=rows, b_ub=bounds)
    assert answer.success, answer.message
    return -float(answer.fun)


def is_within_bounds(division: Division) -> bool:
    """No GPU given twice, nobody with more than he asked for, nobody with less than nothing."""
    holdings = division.holdings
    whole = all(
        sum(held[name] for held in holdings.held.values()) + holdings.idle[name] == count
        for name, count in holdings.counts.items()
    )
    parts = [part for held in (*holdings.held.values(), holdings.idle) for part in held.values()]
    return whole and min(parts) >= 0 and all(holdings.room(name) >= 0 for name in holdings.claimants)


def check(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Divide one set and compare."""
    claimants, counts, theirs = claimants_of(snapshot), snapshot["cluster"], snapshot["policies"]
    division = divide(claimants, counts)
    norms = [norm(one, division.holdings.held[one.name]) for one in claimants]
    alone = isolated(claimants, counts)
    floors = [norm(one, alone[one.name]) for one in claimants]
    whole, most = float(sum(norms)), greatest_sum(claimants, counts, [float(floor) for floor in floors])
    plain, perf = (theirs[name]["norm_sum"] for name in ("max_min_fairness", "max_min_fairness_perf"))
    worst = float(min(mine / floor for mine, floor in zip(norms, floors, strict=True)))
    checks = {
        "nobody_below_isolated": worst >= 1 - ROUNDING,
        "isolated_as_theirs": abs(float(sum(floors)) - theirs["isolated"]["norm_sum"]) < 1e-4,
        "within_bounds": is_within_bounds(division),
        "above_max_min": whole > plain,
        "near_perf": whole >= LEAST_OF_PERF * perf,
        "below_maximum": whole <= most * (1 + ROUNDING),
    }
    return {
        "seed": snapshot["seed"],
        "users": len(claimants),
        "trades": len(division.trades),
        "norm_sum": round(whole, 6),
        "of_max_min": round(whole / plain, 4),
        "of_perf": round(whole / perf, 4),
        "of_maximum": round(whole / most, 4),
        "worst_of_isolated": round(worst, 6),
        "failed": sorted(name for name, is_met in checks.items() if not is_met),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    path: Path = parser.parse_args(arguments).file
    try:
        snapshots = json.loads(path.read_text(encoding="utf-8"))["snapshots"]
    except (OSError, ValueError, KeyError, TypeError) as err:
        print(json.dumps({"agree": False, "error": f"{path} holds no snapshots of allocations: {err}"}))
        return 1
    results = [check(snapshot) for snapshot in snapshots]
    is_agreed = bool(results) and not any(result["failed"] for result in results)
    print(json.dumps({"agree": is_agreed, "snapshots": results}))
    return 0 if is_agreed else 1


if __name__ == "__main__":
    sys.exit(main())
