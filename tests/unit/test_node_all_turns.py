"""Every gang of a node has its turn, whatever comes and goes, and whatever its user has elsewhere."""

import itertools
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gandiva_slurm.model.job import RUNNING, SUSPENDED
from gandiva_slurm.slicing.starvation import PASSED_OVER
from tests.node_bench import QUANTUM_NS, Bench
from tests.unit.test_node_slicer import report_of


def test_one_whose_user_has_its_share_by_another_has_its_turn_all_the_same(tmp_path):
    """That one has a GPU which nobody else wants: a stride by users alone would never come to this one."""
    node = Bench(tmp_path, 2)
    for job_id, user, gpu in ((1, "a", 0), (2, "a", 0), (3, "a", 0), (4, "c", 0), (5, "c", 1)):
        node.add(job_id, user, (gpu,))
    turns = Counter()
    for _ in range(3 * PASSED_OVER):
        node.quantum()
        turns.update(node.holders())
    assert 2 <= turns[4] <= 4 and turns[5] == 3 * PASSED_OVER


def test_one_that_was_passed_over_comes_in_no_way_of_one_whose_bound_is_over(tmp_path, monkeypatch):
    node = Bench(tmp_path, 2)
    gangs = [node.add(job_id, "a", gpus).key for job_id, gpus in ((1, (0, 1)), (2, (0,)), (3, (1,)))]
    monkeypatch.setattr(node.slicer._starving, "starved", lambda: gangs[:1])
    assert node.slicer._starved(gangs, []) == gangs[:1]
    assert node.slicer._starved(gangs, gangs[2:]) == [] == node.slicer._starved(gangs[1:], [])


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_comes_and_goes_gangs_are_whole_and_all_get_their_turn(data, tmp_path_factory):
    gpus = data.draw(st.integers(1, 4))
    node = Bench(tmp_path_factory.mktemp("bench"), gpus)
    node.node.settings = replace(node.node.settings, max_park_ns=10 * QUANTUM_NS)
    job_ids = itertools.count(1)
    for _ in range(data.draw(st.integers(5, 25))):
        act = data.draw(st.sampled_from(["add", "add", "quantum", "quantum", "remove", "pause"]))
        residents = list(node.node.residents.values())
        if act == "add" and len(residents) < 6:
            places = data.draw(st.sets(st.integers(0, gpus - 1), min_size=1))
            node.add(next(job_ids), data.draw(st.sampled_from("abc")), tuple(sorted(places)))
        elif act == "remove" and residents:
            node.remove(data.draw(st.sampled_from(residents)))
        elif act == "pause":
            node.clock.now_ns += data.draw(st.integers(1, QUANTUM_NS))
            node.slicer.fill()
            node.settle()
        else:
            node.quantum()
        assert {resident.state for resident in node.node.residents.values()} <= {RUNNING, SUSPENDED}
    granted, everybody = set(), {key.job_id for key in node.node.residents}
    # Of six, four may be passed over for others of their user's, one after the other.
    for _ in range(6 * PASSED_OVER):
        node.quantum()
        granted |= node.holders()
        if granted == everybody:
            break
    assert granted == everybody
    spans = sorted((gpu, hold.t0_ns, hold.t1_ns) for hold in report_of(node).holds for gpu in hold.gpus)
    assert all(one[0] != two[0] or one[2] <= two[1] for one, two in itertools.pairwise(spans))
