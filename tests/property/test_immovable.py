"""Jobs that can never leave: no GPU is idle for long beside one that could move, homes are near the best."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import event, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from gandiva_slurm.policy import gandiva_fair
from gandiva_slurm.policy.port import Cluster, Policy
from gandiva_slurm.sim.immovable import immovable
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.truth import Homogeneous
from gandiva_slurm.sim.world import Costs
from tests.idle_watch import IdleWatch
from tests.oracles.homes import HomesBySearch, best_homes
from tests.sim.mixed import S, mean_jct_s, settings
from tests.slow import DRAWN, drawn

QUANTUM_S, SWITCH_S = 60, 1


def a_spec(number: int, user: int, at_s: int, length_s: float) -> Spec:
    return Spec(number, str(number), f"u{user}", 1, at_s * S, length_ns=round(length_s * S), can_pack=False)


def scene(specs: Sequence[Spec], gpus: int, move_s: int) -> Scene:
    costs = Costs(SWITCH_S * S, move_s * S, slots=4)
    return Scene(specs, Cluster([("v100", 1)] * gpus), Homogeneous(), costs, is_checked=True)


def watch(specs: Sequence[Spec], gpus: int, move_s: int) -> IdleWatch:
    watched = IdleWatch(gandiva_fair.make(settings(QUANTUM_S, SWITCH_S, move_s)))
    assert simulate(scene(specs, gpus, move_s), watched).summary()["finished"] == len(specs)
    return watched


@st.composite
def workloads(draw: st.DrawFn) -> list[Spec]:
    """Up to nine jobs of three users that come within half an hour, and some of which cannot be moved."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from((0, 0, 30, 90, 400, 1500)), st.integers(60, 6000)),
            min_size=3, max_size=9,
        )
    )  # fmt: skip
    rows.sort(key=lambda row: row[1])
    specs = [a_spec(number, *row) for number, row in enumerate(rows)]
    return immovable(specs, draw(st.sampled_from((0.0, 0.25, 0.5, 0.75))), draw(st.integers(0, 3)))


@DRAWN
@examples(max_examples=drawn(150))
@given(specs=workloads(), gpus=st.integers(2, 4), move_s=st.sampled_from((8, 60, 300)))
def test_no_gpu_is_idle_for_long_while_another_is_shared_by_a_job_that_can_move(
    specs: list[Spec], gpus: int, move_s: int
) -> None:
    watched = watch(specs, gpus, move_s)
    event(f"idle at all: {watched.idle_gpu_s > 0}")
    assert watched.longest_s <= 2 * QUANTUM_S + move_s


def test_one_that_waits_for_its_gpus_keeps_no_other_from_idle_ones() -> None:
    """Jobs 0 and 1 cannot leave; job 2 lives beside job 1, and a third GPU becomes idle in mid-turn."""
    rows = [(2, 30, 4342), (2, 1530, 3892), (1, 1530, 2303), (2, 1530, 139), (0, 1530, 757), (1, 1530, 1237),
            (0, 1930, 79)]  # fmt: skip
    specs = [a_spec(number, *row) for number, row in enumerate(rows)]
    assert watch(immovable(specs, 0.5, 5), 3, 60).longest_s <= 2 * QUANTUM_S + 60


def test_one_that_waits_for_its_gpus_keeps_no_other_from_idle_ones_of_its_turn() -> None:
    """Five of seven cannot leave; those picked find their GPUs taken, and another could have idle ones."""
    rows = [
        (0, 400, 273),
        (1, 400, 242),
        (1, 400, 700),
        (1, 400, 268),
        (1, 490, 284),
        (1, 890, 460),
        (1, 920, 594),
    ]
    specs = [a_spec(number, *row) for number, row in enumerate(rows)]
    assert watch(immovable(specs, 0.75, 290), 3, 60).longest_s <= 2 * QUANTUM_S + 60


def test_the_neighbour_that_can_move_makes_way_though_its_turn_is_always_first() -> None:
    """Job 0 cannot leave, and its user has other GPUs; job 4's has none but this."""
    rows = [(0, 90, 1020), (0, 90, 389), (2, 120, 258), (0, 150, 962), (2, 240, 980)]
    specs = [a_spec(number, *row) for number, row in enumerate(rows)]
    assert watch(immovable(specs, 0.25, 186), 4, 60).longest_s <= 2 * QUANTUM_S + 60


@pytest.mark.parametrize("part", [0, 0.25, 0.5, 0.75])
def test_of_nine_trainings_on_four_gpus_three_remain_each_on_its_own(part: float) -> None:
    """Three users' nine, of which six end: what can move leaves for the GPUs that these had."""
    specs = [a_spec(n, n % 3, 10 * n, 900 if n < 6 else 9000) for n in range(9)]
    for seed in range(5):
        assert watch(immovable(specs, part, seed), 4, 60).longest_s <= 2 * QUANTUM_S + 60


def by_chance(seed: int) -> tuple[list[Spec], int]:
    """Up to seven jobs on up to four GPUs, none of which can be moved."""
    draw, at_s, specs = random.Random(seed), 0, []
    count, gpus, users = draw.randint(3, 7), draw.randint(1, 4), draw.randint(1, 3)
    for number in range(count):
        at_s += draw.choice([0, 0, 30, 90, 400, 1500])
        specs.append(a_spec(number, draw.randrange(users), at_s, draw.expovariate(1 / 1500) + 60))
    return immovable(specs, 1.0, 0), gpus


@DRAWN
def test_where_none_can_move_homes_are_near_those_found_by_search() -> None:
    """At each arrival, with the same knowledge: no lengths. Single cases are better or worse by luck."""
    ratios = []
    for seed in range(drawn(100)):
        specs, gpus = by_chance(seed)
        ours: Policy = gandiva_fair.make(settings(QUANTUM_S, SWITCH_S, 8))
        best = HomesBySearch(gandiva_fair.make(settings(QUANTUM_S, SWITCH_S, 8)), [1.0] * gpus)
        means = [mean_jct_s(simulate(scene(specs, gpus, 8), policy)) for policy in (ours, best)]
        ratios.append(means[0] / means[1])
    assert statistics.geometric_mean(ratios) <= 1.05


def test_the_search_prefers_empty_gpus_then_fast_ones() -> None:
    assert best_homes({0: 1}, [1.0, 1.0], 1) == (1,)
    assert best_homes({}, [1.0, 3.0], 3) == (0, 1, 1)


def test_a_part_is_exact_and_grows() -> None:
    specs = [a_spec(number, 0, 0, 60) for number in range(10)]
    found = [{s.job_id for s in immovable(specs, part, 7) if not s.can_migrate} for part in (0, 0.25, 0.5, 1)]
    assert [len(each) for each in found] == [0, 2, 5, 10]
    assert found[0] < found[1] < found[2] < found[3] and found[2] != {0, 1, 2, 3, 4}
    assert immovable(specs, 0.5, 7) == immovable(specs, 0.5, 7) != immovable(specs, 0.5, 8)
