"""Nobody gains or loses by the controller's death: nodes go on from where the policy's passes stood."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.engine.state.records import EngineSettings
from gandiva_slurm.model import job as states
from tests.builders import SECOND_NS, an_association_tree
from tests.outage_world import OutageWorld
from tests.slow import DRAWN, drawn

QUANTUM_S = 10
#: (user, GPUs) of each job: few enough that all find room.
JOBS = st.lists(
    st.tuples(st.sampled_from(("user1", "user2", "user3")), st.integers(1, 2)), min_size=2, max_size=6
)
#: The same of one GPU each: where gangs are among them a user may keep some quanta more than a round.
SINGLES = st.lists(
    st.tuples(st.sampled_from(("user1", "user2", "user3")), st.just(1)), min_size=2, max_size=6
)
#: quanta with a controller, then without one
SPELLS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6)
TICKETS = st.tuples(*[st.integers(1, 4)] * 3)


def begun(nodes: dict[str, int], jobs: list[tuple[str, int]], tickets: tuple[int, int, int]) -> OutageWorld:
    """All jobs live on nodes, none can be moved."""
    made_of = EngineSettings(quantum_ns=QUANTUM_S * SECOND_NS, slots_per_gpu=8, moves=False)
    world = OutageWorld(nodes, made_of)
    world.tree = an_association_tree(**dict(zip(world.users, tickets, strict=True)))
    for user, gpus in jobs:
        world.submit(user, gpus)
    for _ in range(100):
        world.led()
        if {record.state for record in world.engine.jobs.values()} <= {*states.SLICED}:
            return world
    raise AssertionError(f"these did not all start: {world.jobs}")


@DRAWN
@settings(max_examples=drawn(100), deadline=None)
@given(JOBS, TICKETS, SPELLS)
def test_shares_of_a_node_are_the_same_with_outages_and_without(
    jobs: list[tuple[str, int]], tickets: tuple[int, int, int], spells: list[tuple[int, int]]
) -> None:
    """Within a quantum of each of a user's jobs, at whatever moment one looks."""
    steady, troubled = (begun({"n1": 2}, jobs, tickets) for _ in range(2))
    for led, alone in spells:
        steady.led(led + alone)
        troubled.led(led)
        troubled.alone(alone)
        steady_s, troubled_s = steady.held_s(), troubled.held_s()
        for user in steady_s:
            bound_s = QUANTUM_S * sum(gpus for name, gpus in jobs if name == user)
            assert abs(steady_s[user] - troubled_s[user]) <= bound_s, (user, steady_s, troubled_s)


@DRAWN
@settings(max_examples=drawn(40), deadline=None)
@given(SINGLES, TICKETS, SPELLS)
def test_what_an_outage_gave_on_several_nodes_is_made_up_for_after_it(
    jobs: list[tuple[str, int]], tickets: tuple[int, int, int], spells: list[tuple[int, int]]
) -> None:
    """A node alone knows its own jobs: a user with others elsewhere is given more, and pays it back.

    Within a round of all GPUs, which is what levelling forgives, and a quantum of each of the user's jobs.
    """
    steady, troubled = (begun({"n1": 2, "n2": 2}, jobs, tickets) for _ in range(2))
    for led, alone in spells:
        troubled.led(led)
        troubled.alone(alone)
    quanta = sum(map(sum, spells)) + 4 * sum(alone for _, alone in spells)
    steady.led(quanta)
    troubled.led(4 * sum(alone for _, alone in spells))
    steady_s, troubled_s = steady.held_s(), troubled.held_s()
    for user in steady_s:
        bound_s = QUANTUM_S * (4 + sum(gpus for name, gpus in jobs if name == user))
        assert abs(steady_s[user] - troubled_s[user]) <= bound_s, (user, steady_s, troubled_s)
