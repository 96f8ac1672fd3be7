"""Nothing acts once all is settled, and whoever takes turns gets on by them, whatever a turn costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import event, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from gandiva_slurm.policy import gandiva, gandiva_fair, gandiva_market
from gandiva_slurm.policy.port import Cluster, Plan, Policy, PolicySettings, View
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous, Truth
from gandiva_slurm.sim.world import Costs
from tests.sim.mixed import CLUSTER, W1C, S, settings, workload

Make = Callable[[PolicySettings], Policy]
OURS = {"gandiva_fair": gandiva_fair.make, "gandiva": gandiva.make, "gandiva_market": gandiva_market.make}
PLAIN = Cluster([("v100", 4)] * 9)
#: What a turn may cost at most: a part in so many, and some for those who come and go.
TURN = 18


class EnoughSeen(Exception):
    """The plans wanted are there."""


@dataclass
class Plans:
    """A policy and its first plans, one a quantum once nobody comes or ends."""

    policy: Policy
    wanted: int
    name: str = "plans"
    seen: list[tuple[int, dict[int, tuple[int, ...]]]] = field(default_factory=list)

    def decide(self, view: View) -> Plan:
        """Pass the question on, until there are enough."""
        if len(self.seen) == self.wanted:
            raise EnoughSeen
        plan = self.policy.decide(view)
        self.seen.append((view.now_ns, dict(plan.runs)))
        return plan


@dataclass
class Bounded:
    """A policy that has to be done within so many questions."""

    policy: Policy
    most: int
    name: str = "bounded"

    def decide(self, view: View) -> Plan:
        """Pass the question on."""
        self.most -= 1
        assert self.most >= 0, f"{len(view.jobs)} jobs are at it still at {view.now_ns / S:.0f} s"
        return self.policy.decide(view)


def plans(
    specs: Sequence[Spec], cluster: Cluster, truth: Truth, make: Make, cost_s: float, switch_s: float = -1
) -> Plans:
    """The first 110 plans; a switch costs an eighth of a move unless it is told."""
    told = settings(60, cost_s / 8 if switch_s < 0 else switch_s, cost_s)
    watched = Plans(make(told), 110)
    with pytest.raises(EnoughSeen):
        simulate(Scene(specs, cluster, truth, Costs(told.switch_ns, told.restart_ns)), watched)
    return watched


def gangs(sizes: Sequence[int]) -> list[Spec]:
    """Gangs of three users that come one a minute."""
    return [
        Spec(n, str(n), f"u{n % 3}", size, n * 60 * S, length_ns=10**6 * S) for n, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("cost_s", [0, 8])
@pytest.mark.parametrize("name", OURS)
@examples(max_examples=10)
@given(
    sizes=st.lists(st.sampled_from([1, 1, 2, 4, 8]), min_size=1, max_size=12).filter(lambda s: sum(s) <= 36)
)
def test_where_all_have_room_no_plan_changes_any_more(name: str, cost_s: float, sizes: list[int]) -> None:
    """Fifty quanta after the last has come, with gangs over nodes too."""
    seen = plans(gangs(sizes), PLAIN, Homogeneous(), OURS[name], cost_s).seen
    last = [runs for _, runs in seen[-50:]]
    assert all(runs == last[0] for runs in last) and last[0].keys() == {*range(len(sizes))}


@pytest.mark.parametrize("cost_s", [0, 8])
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("first", range(0, 100, 8))
def test_where_fast_gpus_suffice_nobody_moves_any_more(name: str, cost_s: float, first: int) -> None:
    """Eight real jobs on three types; each type is tried, then all stay where they are best."""
    specs, truth = workload(W1C)
    eight = [replace(spec, steps=spec.steps * 1000) for spec in specs[first : first + 8]]
    while sum(spec.size for spec in eight) > 12:
        eight.pop()
    seen = plans(eight, CLUSTER, truth, OURS[name], cost_s).seen
    last = [runs for _, runs in seen[-50:]]
    assert all(runs == last[0] for runs in last) and len(last[0]) == len(eight)


@pytest.mark.parametrize("name", OURS)
def test_where_fast_gpus_are_too_few_they_are_taken_in_turns_and_nobody_stops(name: str) -> None:
    """Sixteen jobs, all on GPUs: who is behind gets a faster type now and then, a few moves in 50 quanta."""
    specs, truth = workload(W1C)
    many = [replace(spec, steps=spec.steps * 1000) for spec in specs[:16]]
    while sum(spec.size for spec in many) > 32:
        many.pop()
    seen = plans(many, CLUSTER, truth, OURS[name], 8).seen
    changes = sum(before[1] != after[1] for before, after in zip(seen[-51:], seen[-50:], strict=False))
    assert all(len(runs) == len(many) for _, runs in seen[-50:])
    assert changes <= 10


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("switch_s", "restart_s"), [(60, 0), (300, 0), (0, 60), (60, 600)])
def test_two_jobs_on_one_gpu_do_not_suspend_each_other_for_ever(
    name: str, switch_s: int, restart_s: int
) -> None:
    """A switch that takes a whole quantum: turns get longer, most of the time is work."""
    specs = [Spec(n, str(n), f"u{n}", 1, 0, length_ns=7200 * S) for n in range(2)]
    told = settings(60, switch_s, restart_s)
    scene = Scene(specs, Cluster([("v100", 1)]), Homogeneous(), Costs(told.switch_ns, told.restart_ns))
    summary = simulate(replace(scene, is_checked=True), Bounded(OURS[name](told), 1000)).summary()
    assert summary["finished"] == 2
    assert summary["makespan_s"] <= 2 * 7200 * (1 + 1 / TURN) + 2 * (switch_s + restart_s)


@pytest.mark.parametrize("name", OURS)
@examples(max_examples=25)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=2, max_size=8),
    costs=st.tuples(st.sampled_from([0, 1, 60, 200]), st.sampled_from([0, 8, 100, 400])),
)
def test_everybody_gets_on_whatever_a_turn_costs(name: str, sizes: list[int], costs: tuple[int, int]) -> None:
    """Gangs on four GPUs: of the time they hold, at most a turn's part goes into coming and going."""
    specs = [Spec(n, str(n), f"u{n % 2}", size, 0, length_ns=5000 * S) for n, size in enumerate(sizes)]
    told = settings(60, *costs)
    scene = Scene(specs, Cluster([("v100", 4)]), Homogeneous(), Costs(told.switch_ns, told.restart_ns))
    summary = simulate(scene, Bounded(OURS[name](told), 3000)).summary()
    assert summary["finished"] == len(sizes)
    lost_gpu_s = summary["held_gpu_s"] - summary["useful_gpu_s"]
    # one in TURN, and what an end in the middle of a turn makes others come and go for
    assert lost_gpu_s <= summary["held_gpu_s"] / TURN + 4 * sum(costs) * len(sizes)


@pytest.mark.parametrize("name", ["gandiva_fair", "gandiva"])
def test_those_that_live_on_one_gpu_hand_it_over_each_quantum_however_dear_moves_are(name: str) -> None:
    specs = [Spec(n, str(n), f"u{n}", 1, 0, length_ns=10**6 * S, can_pack=False) for n in range(3)]
    seen = plans(specs, Cluster([("v100", 1)]), Homogeneous(), OURS[name], 480, 1).seen
    holders = [[*runs] for _, runs in seen[3:]]
    assert all(len({*map(tuple, holders[at : at + 3])}) == 3 for at in range(len(holders) - 2))


@examples(max_examples=30)
@given(
    sizes=st.lists(st.sampled_from([1, 1, 2, 4]), min_size=2, max_size=14).filter(lambda s: sum(s) > 8),
)
def test_nobody_moves_inside_a_turn_but_to_gpus_on_which_no_other_lives(sizes: list[int]) -> None:
    """Eight GPUs and more jobs than they hold."""
    specs = [replace(spec, can_pack=False) for spec in gangs(sizes)]
    seen = plans(specs, Cluster([("v100", 4)] * 2), Homogeneous(), gandiva_fair.make, 120, 1).seen
    turn_ns, lived, handed = TURN * 120 * S, dict[int, tuple[int, ...]](), 0
    last: tuple[int, dict[int, tuple[int, ...]]] = (0, {})
    for at_ns, runs in seen:
        if at_ns > len(sizes) * 60 * S and at_ns // turn_ns == last[0] // turn_ns:
            handed += runs != last[1]
            movers = [job_id for job_id in runs if lived.get(job_id, runs[job_id]) != runs[job_id]]
            used = {gpu for job_id, gpus in lived.items() if job_id not in movers for gpu in gpus}
            assert used.isdisjoint(gpu for job_id in movers for gpu in runs[job_id])
        lived.update(runs)
        last = (at_ns, runs)
    event(f"handed over {min(handed, 3)} times or more")
