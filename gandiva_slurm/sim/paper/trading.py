"""The trading run: 12 V100, 24 P100 and 128 K80, four users of 200 one-GPU jobs each (Gandiva_fair).

First in exact arithmetic, as the division's own functions have it; then three hours of the policy that trades
and of the same policy without trades, from measured rates, the time of learning them included.

Speed-ups over a K80 are the paper's; which four models its users ran is not known to us, so there are two
mixes: one in which the users in the middle set the price, and four of its models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from fractions import Fraction

from gandiva_slurm.policy.gandiva_market import GandivaMarket
from gandiva_slurm.policy.port import Cluster, Plan, Policy, PolicySettings, View
from gandiva_slurm.policy.trading.market import Trade
from gandiva_slurm.policy.trading.pools import Claimant, own_shares
from gandiva_slurm.policy.trading.trades import Division, divide
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.paper.result import Row, Setup, published
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Oracle

JOBS = 200
#: What is simulated: nobody's jobs end meanwhile.
HOURS, LENGTH_S, QUANTUM_S = 3, 6 * 3600, 60
GPUS_OF_A_NODE = {"v100": 4, "p100": 4, "k80": 8}
#: Between the paper's models, as users who neither buy nor sell at the price.
MID = {"v100": Fraction(3), "p100": Fraction("2.5"), "k80": Fraction(1)}
_S = 10**9
MIXES = {
    ("VAE", "MID", "MID", "ResNeXt50"): "users in the middle as the paper tells of them",
    ("VAE", "SuperResolution", "LSTM", "ResNeXt50"): "four of its models; which its users ran is not known",
}


def run(setup: Setup) -> list[Row]:
    """Divide the cluster among the users of each mix, and compare with their own shares."""
    paper = published("gandiva_fair")["trading"]
    rows = []
    for done, (models, note) in enumerate(MIXES.items(), 1):
        users = _users(models)
        division = divide(users, paper["cluster"])
        gains = gains_of(users, division)
        rows += [
            Row(f"{user.name}, {model}: gain", round(gain, 1), f"about {said:+d}" if said else 0, "%", note)
            for user, model, gain, said in zip(users, models, gains, paper["gain_pct"], strict=True)
        ]
        rows += [_sale(sale) for sale in division.trades]
        rows += [
            Row(f"{user.name}, {model}: simulated", round(gain, 1), None, "%", f"{HOURS} h, rates measured")
            for user, model, gain in zip(users, models, simulated_gains(models), strict=True)
        ]
        setup.tell(done, len(MIXES))
    rows.append(_slide(paper["slide_price"]))
    return rows


def _sale(sale: Trade) -> Row:
    fast, slow = (f"{float(part):.3g}" for part in (sale.amount, sale.paid))
    unit, note = f"for {slow} {sale.goods.slow}", f"at {float(sale.price):.3g}, bid by {sale.setter}"
    return Row(f"{sale.seller} sells to {sale.buyer}", f"{fast} {sale.goods.fast}", None, unit, note)


def simulated_gains(models: Sequence[str]) -> list[float]:
    """Run the mix with trades and without; return what each user got done more, in per cent."""
    done = []
    for is_trading in (False, True):
        policy = _Until(GandivaMarket(PolicySettings(QUANTUM_S * _S), is_trading))
        with contextlib.suppress(_TimeIsUp):
            simulate(_scene(models), policy)
        done.append(policy.done)
    without, with_trades = done
    return [100 * (with_trades[user] / without[user] - 1) for user in sorted(without)]


def _scene(models: Sequence[str]) -> Scene:
    """The cluster, and the users' jobs: a step takes 0.1 s on a K80."""
    counts = published("gandiva_fair")["trading"]["cluster"]
    nodes = {kind: counts[kind] // size for kind, size in GPUS_OF_A_NODE.items()}
    shape = [(kind, GPUS_OF_A_NODE[kind]) for kind in counts for _ in range(nodes[kind])]
    known = speed_ups()
    tables = {
        kind: {(model, 1): {None: 10.0 * float(known[model][kind])} for model in models} for kind in counts
    }
    specs = [
        Spec(number * JOBS + n, f"{number}-{n}", f"user{number}", 1, 0, steps=10 * LENGTH_S, model=model)
        for number, model in enumerate(models, 1)
        for n in range(JOBS)
    ]
    return Scene(specs, Cluster(shape), Oracle(tables))


class _TimeIsUp(Exception):
    """Enough was simulated."""


class _Until:
    """A policy, until the time is up; then what each user's jobs have done, in parts of a job."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy
        self.done: dict[str, float] = {}

    def decide(self, view: View) -> Plan:
        """Pass the question on, or look at what was done."""
        if view.now_ns < HOURS * 3600 * _S:
            return self._policy.decide(view)
        for job in view.jobs.values():
            self.done[job.user] = self.done.get(job.user, 0.0) + job.progress
        raise _TimeIsUp


def speed_ups() -> dict[str, dict[str, Fraction]]:
    """Return the paper's speed-ups over a K80 by model and GPU type, and MID's."""
    table = published("stride")["speedup_vs_K80"]
    types = [name.lower() for name in table["columns"]]
    found = {
        model: {name: Fraction(str(value)) for name, value in zip(types, values, strict=True)}
        for model, values in table.items()
        if model != "columns"
    }
    return {model: {**speeds, "k80": Fraction(1)} for model, speeds in found.items()} | {"MID": MID}


def gains_of(users: Sequence[Claimant], division: Division) -> list[float]:
    """What each got faster by trading, in per cent of what he does with his own share."""
    before = own_shares(users, division.holdings.counts)
    return [float(100 * (division.holdings.speed(user.name) / before.speed(user.name) - 1)) for user in users]


def _users(models: Sequence[str]) -> list[Claimant]:
    known = speed_ups()
    return [
        Claimant(f"user{number}", JOBS, {name: known[model][name] for name in MID})
        for number, model in enumerate(models, 1)
    ]


def _slide(paper: int) -> Row:
    """The slide's three users: who sells to whom, at whose bid."""
    speeds: Mapping[str, float] = published("stride")["trade_slide"]["speedups"]
    users = [
        Claimant(name, JOBS, {"v100": Fraction(str(value)), "k80": Fraction(1)})
        for name, value in speeds.items()
    ]
    sale = divide(users, {"v100": 3, "k80": 30}).trades[0]
    return Row("slide: price of a V100", float(sale.price), paper, "K80", f"{sale.seller} to {sale.buyer}")
