"""A job told to leave by a checkpoint of its own keeps its turn until it has saved itself upon its signal."""

from dataclasses import replace

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.model.job import RUNNING
from gandiva_slurm.node import leaving
from gandiva_slurm.node.saved import read_job, state_of
from gandiva_slurm.wire import page as wire
from tests.unit.test_node_leaving import S, floor  # noqa: F401  (a fixture)


def told_to_save(floor, seconds=30):  # noqa: F811
    """Two jobs without attached ranks take turns; the first is told to leave by a checkpoint of its own."""
    first, second = floor.train(1, kind=wire.KIND_HOOK), floor.train(2, kind=wire.KIND_HOOK)
    floor.planned[1] = replace(floor.planned[1], is_leaving=True, own_save_s=seconds)
    floor.plan(2)
    return first, second


def test_one_that_saves_itself_upon_its_signal_keeps_its_turn(floor):  # noqa: F811
    first, _ = told_to_save(floor)
    for _ in range(5):
        floor.next_quantum()
        assert (first.state, floor.told(1).has_floor, floor.told(2).has_floor) == (RUNNING, True, False)
    assert floor.told(1).detail == "keeps its turn, to save itself upon its signal"


def test_it_keeps_its_turn_over_a_kill_of_its_gandivad(floor):  # noqa: F811
    """The next one has no controller yet, and its plan says for how long."""
    first, second = told_to_save(floor)
    row = next(row for row in state_of(floor.node)["jobs"] if row["key"] == "1.0")
    again, _ = read_job(row, "n1")
    again.sets, again.state = first.sets, RUNNING
    floor.node.residents[JobKey(1, 0)] = again
    assert not leaving.has_floor(floor.node, again)
    floor.planning.restore(floor.node.plan)
    for _ in range(5):
        floor.next_quantum()
        assert leaving.has_floor(floor.node, again) and not second.holds
    assert again.state == RUNNING


def test_it_takes_turns_again_when_it_is_to_stay(floor):  # noqa: F811
    first, _ = told_to_save(floor)
    floor.next_quantum()
    floor.plan(1)
    floor.next_quantum()
    assert first.state != RUNNING and not floor.told(1).has_floor


def test_it_keeps_its_turn_over_a_silent_controller_for_as_long_as_it_may_take(floor):  # noqa: F811
    first, _ = told_to_save(floor, 30)
    floor.node.contact_ns = floor.clock.now_ns - leaving.HEARD_NS - 20 * S
    floor.quantum()
    assert first.state == RUNNING and leaving.has_floor(floor.node, first)
    floor.node.contact_ns = floor.clock.now_ns - leaving.HEARD_NS - 31 * S
    assert not leaving.has_floor(floor.node, first)
