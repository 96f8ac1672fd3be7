"""The trading run, simulated: 12 V100, 24 P100, 128 K80, four users of 200 jobs each; rates are measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from gandiva_slurm.cli.main import cli
from gandiva_slurm.policy.gandiva_market import GandivaMarket
from gandiva_slurm.policy.port import Cluster, Plan, Policy, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.slurm_world import SlurmWorld
from gandiva_slurm.sim.truth import Oracle
from gandiva_slurm.sim.world import Costs
from tests.sim.mixed import S, settings
from tests.slow import long_form, slow

CLUSTER = Cluster([("v100", 4)] * 3 + [("p100", 4)] * 6 + [("k80", 8)] * 16)
#: how much faster than a K80, whose rate is 1
MODELS: Mapping[str, Mapping[str, float]] = {
    "VAE": {"v100": 1.25, "p100": 1.19, "k80": 1},
    "SuperRes": {"v100": 1.87, "p100": 1.73, "k80": 1},
    "LSTM": {"v100": 4.81, "p100": 3.58, "k80": 1},
    "ResNeXt50": {"v100": 6.33, "p100": 4.12, "k80": 1},
    "MID": {"v100": 3.0, "p100": 2.5, "k80": 1},
}
FOUR = ("VAE", "SuperRes", "LSTM", "ResNeXt50")
ORACLE = Oracle({kind: {(m, 1): {None: 10 * MODELS[m][kind]} for m in MODELS} for kind in CLUSTER.counts})
JOBS, LENGTH_S = 200, 6 * 3600
#: from the first moment, with all that has to be learnt; nobody has ended by then
UNTIL_S = 3 * 3600


class TimeIsUp(Exception):
    """Enough was seen."""


@dataclass
class Until:
    """A policy, watched until a moment."""

    policy: Policy
    end_s: float
    name: str = "until"
    done: dict[str, float] = field(default_factory=dict)

    def decide(self, view: View) -> Plan:
        """Pass the question on, or write down what each user's jobs have done, in hours of K80s."""
        if view.now_ns >= self.end_s * S:
            for job in view.jobs.values():
                self.done[job.user] = self.done.get(job.user, 0.0) + job.progress * LENGTH_S / 3600
            raise TimeIsUp
        return self.policy.decide(view)


def crowd(models: Sequence[str], jobs: int = JOBS, late_s: int = 0) -> list[Spec]:
    """Users of so many one-GPU jobs, one model a user; the last of them may come later."""
    return [
        Spec(
            n * JOBS + k, f"{n}-{k}", f"user{n}", 1, late_s * S if n == len(models) else 0,
            steps=10 * LENGTH_S, model=model,
        )
        for n, model in enumerate(models, 1)
        for k in range(jobs)
    ]  # fmt: skip


def done(specs: Sequence[Spec], policy: Policy, costs: Costs | None = None) -> list[float]:
    """What each user has got done, in hours of K80s."""
    watched = Until(policy, UNTIL_S)
    with pytest.raises(TimeIsUp):
        simulate(Scene(specs, CLUSTER, ORACLE, costs or Costs(), is_checked=True), watched)
    return [watched.done[user] for user in sorted(watched.done)]


def gains(models: Sequence[str], costs: Costs | None = None) -> list[float]:
    """What trading brings each user, in per cent."""
    told = settings(60, costs.switch_ns / S, costs.restart_ns / S) if costs else settings()
    before, after = (done(crowd(models), GandivaMarket(told, trades), costs) for trades in (False, True))
    return [100 * (new / old - 1) for new, old in zip(after, before, strict=True)]


@pytest.mark.parametrize(
    ("models", "want"),
    [
        (("VAE", "MID", "MID", "ResNeXt50"), (30.6, 0, 0, 26.0)),
        long_form(FOUR, (29.8, 18.4, 0, 12.7), why="6 s; other models are in make test"),
    ],
)
def test_the_trading_run(models: Sequence[str], want: Sequence[float]) -> None:
    """The exact gains, but for what it takes to learn the rates, and nobody is slower for a trade."""
    got = gains(models)
    assert got == pytest.approx(want, abs=0.3)
    assert min(got) >= 0


@slow("6 s; where moves cost is in make test")
def test_trades_by_scattered_rates_are_nearly_as_good() -> None:
    """With 5 % of noise a price is off by as much; who is indifferent may win or lose by it."""
    assert gains(FOUR, Costs(noise=0.05)) == pytest.approx((29.8, 18.4, 0, 12.7), abs=1.5)


def test_trades_where_moves_cost_are_nearly_as_good() -> None:
    assert gains(FOUR, Costs(S, 8 * S)) == pytest.approx((29.8, 18.4, 0, 12.7), abs=1.5)


@slow("19 s of processor; by plans alone it is in make test, every policy by the engine in unit/test_sim_cli")
def test_the_trading_run_through_the_engine() -> None:
    """On a quarter of the GPUs: what the daemons' engine makes of the plans."""
    cluster = Cluster([("v100", 3), ("p100", 6), ("k80", 8), ("k80", 8), ("k80", 16)])
    told = settings()
    done_by = []
    for trades in (False, True):
        market = GandivaMarket(told, trades)
        engine = SlurmWorld(told, market, slots_per_gpu=8)
        watched = Until(engine, UNTIL_S)
        with pytest.raises(TimeIsUp):
            simulate(Scene(crowd(FOUR, 50), cluster, ORACLE, Costs(), is_checked=True), watched)
        done_by.append([watched.done[user] for user in sorted(watched.done)])
    gained = [100 * (new / old - 1) for old, new in zip(*done_by, strict=True)]
    assert gained == pytest.approx((29.8, 18.4, 0, 12.7), abs=1.5)
    books = engine.of_users()
    assert books["user4"].traded_in["v100"] == pytest.approx(6 / 4 * UNTIL_S, rel=0.05)
    assert sum(told.traded_in.get("k80", 0) for told in books.values()) == pytest.approx(
        sum(told.traded_out.get("k80", 0) for told in books.values())
    )


def test_the_ledger_of_trades_balances_and_is_the_exact_one() -> None:
    """3 V100s at 4.81 from each of two sellers, over time; what comes in has gone out."""
    market = GandivaMarket(settings())
    done(crowd(FOUR), market)
    assert market.counts == {"trades": 3}
    # the first two quanta go to learning
    assert market.traded_in["user4"]["v100"] == pytest.approx(6 * UNTIL_S, rel=0.02)
    assert market.traded_out["user4"] == pytest.approx({"k80": 32 * UNTIL_S}, rel=0.02)
    for kind in CLUSTER.counts:
        came, went = (
            sum(mine.get(kind, 0.0) for mine in book.values())
            for book in (market.traded_in, market.traded_out)
        )
        assert came == pytest.approx(went)


def test_who_comes_later_opens_new_trades() -> None:
    """Three users have traded by themselves; the fourth is the one to whom fast GPUs are worth most."""
    market = GandivaMarket(settings())
    done(crowd(FOUR, late_s=UNTIL_S // 2), market)
    alone = GandivaMarket(settings())
    done(crowd(FOUR[:3]), alone)
    assert market.counts["trades"] > alone.counts["trades"] > 0
    assert market.traded_in["user4"]["v100"] == pytest.approx(6 * UNTIL_S / 2, rel=0.03)


def test_gpu_time_on_each_type_is_what_was_traded() -> None:
    """Users hold, of each type, what the division says, to a hundredth of a GPU in the mean."""
    market = GandivaMarket(settings())
    held: dict[str, dict[str, float]] = {}

    class Look:
        name = "look"

        def decide(self, view: View) -> Plan:
            plan = market.decide(view)
            for job_id, gpus in plan.runs.items() if view.now_ns >= UNTIL_S // 2 * S else ():
                mine = held.setdefault(view.jobs[job_id].user, dict.fromkeys(CLUSTER.counts, 0.0))
                mine[CLUSTER.type_of[gpus[0]]] += len(gpus) / (UNTIL_S / 2 / 60)
            return plan

    done(crowd(FOUR), Look())
    want = {
        "user1": {"v100": 0, "p100": 6 - 3.14 / 3.58, "k80": 49.57},
        "user2": {"v100": 0, "p100": 6, "k80": 46.43},
        "user3": {"v100": 3, "p100": 6, "k80": 32},
        "user4": {"v100": 9, "p100": 6 + 3.14 / 3.58, "k80": 0},
    }
    for user, parts in want.items():
        assert held[user] == pytest.approx(parts, abs=0.02), user


def test_a_lone_job_tries_all_types_and_stays_on_the_fastest() -> None:
    """Nothing says which type is faster before each was run once."""
    seen: list[str] = []

    class Look:
        name = "look"
        market = GandivaMarket(settings())

        def decide(self, view: View) -> Plan:
            plan = self.market.decide(view)
            seen.extend(cluster.type_of[gpus[0]] for gpus in plan.runs.values())
            return plan

    cluster = Cluster([("k80", 2), ("p100", 2), ("v100", 2)])
    one = Spec(1, "1", "ann", 1, 0, steps=10 * LENGTH_S, model="LSTM")
    simulate(Scene([one], cluster, ORACLE, is_checked=True), Look())
    assert {*seen[:3]} == {*CLUSTER.counts} and {*seen[3:]} == {"v100"}


def test_the_command_tells_trades_and_what_they_brought() -> None:
    data = Path(__file__).parents[1] / "data/gavel"
    told = ("--format", "gavel", "--throughputs", str(data / "simulation_throughputs.json.xz"), "--json", "-")
    where = ("--cluster", "v100:3x4,p100:3x4,k80:3x4", "--users", "4", "--quantum", "360", "--limit", "60")
    trace = ("--workload", str(data / "gavel_static100_s20.trace"), "--policy", "gandiva_market")
    ran = CliRunner().invoke(cli, ["sim", "run", *trace, *told, *where, "--check-invariants"])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    result = json.loads(ran.stdout)
    assert result["finished"] == 60 and result["trades"] > 0
    for kind in ("v100", "p100", "k80"):
        came, went = (
            sum(user[book].get(kind, 0.0) for user in result["users"].values())
            for book in ("traded_in", "traded_out")
        )
        assert came == pytest.approx(went)
    assert sum(user["traded_in"].get("v100", 0.0) for user in result["users"].values()) > 0
