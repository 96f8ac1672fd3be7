"""A turn is given where the job's memory finds room beside what parked jobs keep, as NVML sees it."""

import pytest

from gandiva_slurm.node.memory import KEPT_NS, lack
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.usage import Usage
from tests.node_bench import QUANTUM_NS, Bench

GIB = 1 << 30


class Card:
    """NVML with one GPU of 80 GiB."""

    def cards(self):
        return (80 * GIB,)


class Shared(Bench):
    """Two jobs on one GPU: the first takes 60 GiB, the second 40. Frozen, a job says that it keeps it all."""

    def __init__(self, directory, takes, has_nvml):
        super().__init__(directory, 1)
        self.node.nvml = Card() if has_nvml else None
        self.jobs = [self.add(n, f"user{n}", (0,)) for n in (1, 2)]
        for job, size in zip(self.jobs, takes, strict=True):
            job.usage = Usage(memory=size * GIB)

    def look(self, *kept):
        """NVML looks: what each keeps while it is parked, in GiB."""
        self.clock.now_ns += 1
        for job, size in zip(self.jobs, kept, strict=True):
            if not job.holds:
                job.kept = (round(size * GIB), self.clock.mono())
        self.node.look_soon.clear()
        self.slicer.fill()
        self.settle()

    def says(self, job_id):
        told = {one.job_id: one for one in make_report(self.node).residents}
        return told[job_id].reason, told[job_id].detail


@pytest.fixture
def shared(tmp_path):
    return lambda *takes, has_nvml=True: Shared(tmp_path / "node", takes or (60, 40), has_nvml)


def test_one_that_would_not_fit_waits_for_what_nvml_sees_and_the_other_goes_on(shared):
    node = shared()
    assert node.holders() == {1}
    node.quantum()
    assert node.holders() == set() and node.node.look_soon.is_set(), "it says that it keeps 60 GiB"
    node.look(60, 0.5)
    assert node.holders() == {1}
    word = "of GPU 0's 81920 MiB job 1 keeps 61440 MiB; it needs 41472 MiB"
    assert node.says(2) == ("NoMemoryToBegin", word)
    node.quantum(10)
    assert node.holders() == {1}, "it would keep as much again"


def test_what_a_job_keeps_is_looked_at_anew_after_a_while(shared):
    node = shared()
    node.quantum()
    node.look(60, 0.5)
    node.clock.now_ns += KEPT_NS
    node.quantum()
    assert node.holders() == set() and node.node.look_soon.is_set()
    node.look(0.5, 0.5)
    assert node.holders() == {2}
    node.quantum()
    node.look(0.5, 0.5)
    node.quantum()
    node.look(0.5, 0.5)
    assert node.jobs[1].counts.suspends >= 1 and not lack(node.node, node.jobs[1])


def test_a_job_keeps_nobody_out_by_its_word(shared):
    node = shared()
    node.quantum()
    node.look(0.5, 0.5)
    assert node.holders() == {2}


def test_what_fits_beside_what_is_kept_has_its_turn(shared):
    node = shared(30, 40)
    node.quantum()
    node.look(30, 0.5)
    assert node.holders() == {2}


def test_a_job_that_has_not_told_what_it_takes_needs_the_whole_gpu(shared):
    node = shared(60, 0)
    node.quantum()
    node.look(60, 0)
    assert node.holders() == {1}
    assert node.says(2)[1].endswith("job 1 keeps 61440 MiB; what it needs is not known yet")
    node.clock.now_ns += KEPT_NS
    node.quantum()
    node.look(1, 0)
    assert node.holders() == {2}, "a context keeps nobody out"


def test_one_that_keeps_next_to_nothing_hands_over_at_once(shared):
    node = shared(0, 40)
    node.quantum()
    assert node.holders() == {2} and not node.node.look_soon.is_set()


def test_without_nvml_nobody_waits(shared):
    node = shared(has_nvml=False)
    node.quantum()
    assert node.holders() == {2}


def test_where_the_planned_one_does_not_fit_the_others_go_on(shared):
    node = shared()
    node.quantum()
    node.look(60, 0.5)
    node.node.contact_ns = node.clock.mono()
    node.jobs[0].is_on, node.jobs[1].is_on = False, True
    node.quantum(3)
    node.node.contact_ns = node.clock.mono()
    node.quantum()
    assert node.holders() == {1}
    node.jobs[0].kept = (0, node.clock.mono())
    node.clock.now_ns += QUANTUM_NS
    node.node.contact_ns = node.clock.mono()
    node.quantum()
    node.look(0.5, 0.5)
    assert node.holders() == {2}
