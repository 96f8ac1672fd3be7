"""Trade on sets of users drawn by seed, one GPU each, and hold the result against max-min fairness's LP.

    python tests/oracles/trading_sets.py [--sets N] [--first SEED]

3 to 40 users with a job of one GPU each, models and rates of Gavel's oracle, GPUs divisible. The programme
maximises the least of all users' rates over their isolated ones, with known rates, as Gavel does. Prints one
JSON line: the sum of normalised rates (over rates on a V100) as a part of the programme's, and as a part of
the greatest that any of its optima has. Ends with 0 if nobody is below the isolated share, the sum is below
the programme's on at most 5 sets of 100, and on none by more than 3 %.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sys
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from gandiva_slurm.policy.trading.pools import Claimant, isolated
from gandiva_slurm.policy.trading.trades import divide

RATES = Path(__file__).parents[1] / "data/gavel/simulation_throughputs.json.xz"
REFERENCE = "v100"
CLUSTERS = ({"v100": 12, "p100": 12, "k80": 12}, {"v100": 8, "k80": 16}, {"v100": 4, "p100": 8, "k80": 16})
USERS = (3, 40)
#: What may be below the programme's sum: a part of the sets, and by how much.
FEW, LITTLE = 0.05, 0.03
ROUNDING = 1e-6


def drawn(seed: int) -> tuple[list[Claimant], dict[str, int]]:
    """Return the users of a set, and its cluster."""
    draw = random.Random(seed)
    counts = draw.choice(CLUSTERS)
    return [_user(number, draw) for number in range(draw.randint(*USERS))], counts


def _user(number: int, draw: random.Random) -> Claimant:
    oracle = _oracle()
    model = draw.choice([name for name in oracle[REFERENCE] if name.endswith(", 1)")])
    rates = {name: Fraction(oracle[name][model]["null"]) for name in ("v100", "p100", "k80")}
    return Claimant(f"u{number}", 1, {name: rate / rates[REFERENCE] for name, rate in rates.items()})


@cache
def _oracle() -> dict[str, dict[str, dict[str, float]]]:
    rates: dict[str, dict[str, dict[str, float]]] = json.loads(lzma.decompress(RATES.read_bytes()))
    return rates


def max_min_sums(claimants: Sequence[Claimant], counts: dict[str, int]) -> tuple[float, float]:
    """Return the sum of norms of the programme's solution, and the greatest of any that is as fair."""
    people, types = len(claimants), len(counts)
    speeds = np.array([[float(one.speeds[name]) for name in counts] for one in claimants])
    alone = speeds @ np.array([*counts.values()]) / sum(counts.values())
    rows, size = [], people * types + 1
    for who in range(people):
        one = np.zeros((2, size))
        one[0, who * types : (who + 1) * types] = 1
        one[1, who * types : (who + 1) * types] = -speeds[who] / alone[who]
        one[1, -1] = 1
        rows += [*one]
    for place in range(types):
        of_type = np.zeros(size)
        of_type[place : people * types : types] = 1
        rows.append(of_type)
    most = [1.0, 0.0] * people + [float(count) for count in counts.values()]
    least = np.append(np.zeros(size - 1), -1.0)
    first = linprog(least, A_ub=np.array(rows), b_ub=most)
    bounds = [(0, None)] * (size - 1) + [(first.x[-1] * (1 - 1e-9), None)]
    second = linprog(np.append(-speeds.ravel(), 0.0), A_ub=np.array(rows), b_ub=most, bounds=bounds)
    assert first.success and second.success
    return float(first.x[:-1] @ speeds.ravel()), -float(second.fun)


def compare(seed: int) -> dict[str, float]:
    """Divide one set."""
    claimants, counts = drawn(seed)
    holdings, alone = divide(claimants, counts).holdings, isolated(claimants, counts)
    mine = [float(holdings.speed(one.name)) for one in claimants]
    floors = [
        float(sum(part * one.speeds[name] for name, part in alone[one.name].items())) for one in claimants
    ]
    plain, greatest = max_min_sums(claimants, counts)
    return {
        "seed": seed,
        "of_max_min": sum(mine) / plain,
        "of_greatest_max_min": sum(mine) / greatest,
        "worst_of_isolated": min(got / floor for got, floor in zip(mine, floors, strict=True)),
    }


def summary(results: Sequence[dict[str, float]]) -> dict[str, object]:
    """What is to be printed of these sets."""
    told: dict[str, object] = {"sets": len(results)}
    for key in ("of_max_min", "of_greatest_max_min", "worst_of_isolated"):
        values = sorted(result[key] for result in results)
        at = {"least": 0, "p1": len(values) // 100, "p5": len(values) // 20, "median": len(values) // 2}
        told[key] = {name: round(values[index], 4) for name, index in at.items()}
    below = [result for result in results if result["of_max_min"] < 1 - ROUNDING]
    told["seeds_below_max_min"] = [int(result["seed"]) for result in below]
    is_fair = all(result["worst_of_isolated"] >= 1 - ROUNDING for result in results)
    is_great = all(result["of_max_min"] >= 1 - LITTLE for result in below)
    told["agree"] = is_fair and is_great and len(below) <= max(1, FEW * len(results))
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Check many sets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    told = parser.parse_args(arguments)
    result = summary([compare(seed) for seed in range(told.first, told.first + told.sets)])
    print(json.dumps(result))
    return 0 if result["agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
